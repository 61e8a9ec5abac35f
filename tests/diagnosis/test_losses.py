"""Each fix of a rule about runs says what it does to the losses, from one table."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.finding import Change, Fix, Losses, joined, losses_text
from training_profiler.model.snapshot import LineStats, LoaderStats


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), ""),
        ((Change.NUM_WORKERS,), "same bit for bit, if samples draw no random numbers"),
        ((Change.OTHER_MODEL, Change.ACCUMULATION), "differ"),
        ((Change.ACCUMULATION, Change.FUSED), "fused: differ by rounding; accumulated gradients: differ"),
    ],
)
def test_changes_that_do_not_do_the_same_are_named_in_the_order_of_the_table(changes, expected):
    assert losses_text(changes) == expected


def test_joined_fixes_name_the_changes_of_all():
    first, second = Fix("Do this", (Change.FUSED,)), Fix("Do that", (Change.BATCHED,))
    both = joined([first, second.as_next])
    assert (both, both.changes) == ("Do this; do that", (Change.FUSED, Change.BATCHED))


@pytest.mark.parametrize("file", ["autocast_data.py", "accumulate_inference_mode.py"])
def test_names_of_the_users_files_say_nothing_about_losses(file):
    line = LineStats(file, 7, "Data.__getitem__", 0.7, 90, phase="fetch", called={"Image.open": 0.7})
    loader = LoaderStats("0", 100, 3200, 7.0, "train", num_workers=0)
    run = snapshot_of({"data_loading": 0.7, "backward_pass": 0.3})
    run = replace(run, loaders=(loader,), lines={"data_loading": (line,)})
    (found,) = (each for each in diagnose(run) if each.code == "data-loading-bound")
    assert file in found.message
    assert "autocast" not in found.losses
    assert "no gradients" not in found.losses
    assert found.losses == "same bit for bit, if samples draw no random numbers"


def test_conditions_are_those_of_their_kind():
    for change in Change:
        assert bool(change.condition) or change.losses is not Losses.EXACT_IF, change.label
        assert not change.condition or change.losses is not Losses.EXACT, change.label
