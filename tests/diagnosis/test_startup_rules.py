"""The rule about the time before the first step."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.outside_steps import slow_startup
from training_profiler.snapshot.snapshot import StartupPart, StartupStats


def begun(*parts, wall_s=60.0, has_steps=True):
    total_s = sum(part.seconds for part in parts)
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.6})
    return replace(run, wall_s=wall_s, startup=StartupStats(total_s, has_steps, parts))


TOKENIZED = StartupPart("data set", 42.0, (("train.py:12 load", 36.0), ("train.py:14 load", 4.0)))


def test_preparations_of_over_half_a_run_are_named_with_their_lines():
    finding = slow_startup(begun(StartupPart("imports", 3.0), TOKENIZED))
    assert finding.message == (
        "Before its first step the program spends 40.0 s on its data set, 67% of the run so far: train.py:12 load, "
        "train.py:14 load"
    )
    assert finding.potential_saving_s == pytest.approx(40.0)


def test_it_stands_first_and_the_run_is_not_healthy():
    codes = [finding.code for finding in diagnose(begun(TOKENIZED))]
    assert codes[0] == "slow-startup"
    assert "healthy" not in codes


@pytest.mark.parametrize(
    "run",
    [
        begun(TOKENIZED, wall_s=90.0),
        begun(StartupPart("data set", 9.0, (("train.py:12 load", 9.0),)), wall_s=10.0),
        begun(StartupPart("imports", 42.0, (("train.py:1 <module>", 42.0),))),
        begun(StartupPart("compile", 42.0, (("train.py:9 <module>", 42.0),))),
        begun(StartupPart("other code", 42.0)),
        begun(TOKENIZED, has_steps=False),
        begun(),
    ],
    ids=["a long run", "a short start", "imports", "compiling", "no line of the program", "no steps", "nothing seen"],
)
def test_other_starts_are_not_flagged(run):
    assert slow_startup(run) is None


def test_code_without_a_purpose_is_flagged_by_its_line():
    run = begun(StartupPart("other code", 42.0, (("train.py:5 <module>", 41.0),)))
    assert "spends 41.0 s, 68% of the run so far: train.py:5 <module>" in slow_startup(run).message
