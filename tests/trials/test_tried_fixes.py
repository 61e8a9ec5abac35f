"""A finding says what trials of its fix have shown."""

from dataclasses import replace

import pytest

from tests.trials.test_results import COMPILED, FUSED, PINNED, RESULTS, WORKERS, effect
from training_profiler.findings.finding import Finding, Fix
from training_profiler.findings.losses import Change
from training_profiler.trials.results import FAILED, FASTER, NOT_CONFIRMED, NOT_SHOWN
from training_profiler.trials.tried_fixes import with_trials

FOREACH = replace(FUSED, name="foreach", family="foreach", verdict=NOT_SHOWN, effect=effect(-0.005))
UNSAVED = replace(WORKERS, name="no_checkpoints", family="no_checkpoints", is_ceiling=True)


def tried(code, *rows):
    finding = Finding(code, "it is slow", {}, 1.0, Fix("change it", (Change.DETACH,)))
    (found,) = with_trials([finding], replace(RESULTS, rows=rows))
    return found.tried


def test_a_fix_that_helped_has_its_gain():
    assert tried("data-loading-bound", WORKERS, FUSED) == "num_workers=2 -39.5% (-40.5 .. -38.5)"
    assert tried("optimizer-heavy", WORKERS, FUSED) == "fused -3.4% (-4.4 .. -2.4)"


@pytest.mark.parametrize(("row", "is_against"), [(WORKERS, True), (UNSAVED, False), (FUSED, False)])
def test_a_gain_beside_a_prediction_of_none_says_which_was_measured(row, is_against):
    finding = Finding("data-loading-bound", "it waits", {}, 1.0, "Workers would not help: all CPUs are busy")
    row = replace(row, name="one_batch", family="one_batch") if row.is_ceiling else row
    (found,) = with_trials([finding], replace(RESULTS, rows=(row,)))
    assert found.tried.endswith("-38.5), which was measured, unlike the prediction") == is_against


def test_of_two_numbers_of_workers_the_better_is_named_and_changes_that_go_together_all():
    four = replace(WORKERS, name="num_workers=4", effect=effect(-0.3))
    kept = replace(WORKERS, name="persistent_workers", family="persistent_workers", effect=effect(-0.1))
    assert tried("data-loading-bound", kept, four, WORKERS) == (
        "num_workers=2 -39.5% (-40.5 .. -38.5), persistent_workers -10.0% (-11.0 .. -9.0)"
    )
    assert tried("optimizer-heavy", FUSED, replace(FOREACH, verdict=FASTER)) == "fused -3.4% (-4.4 .. -2.4)"


def test_fixes_that_brought_nothing_say_so():
    assert tried("optimizer-heavy", replace(FUSED, verdict=NOT_SHOWN), FOREACH) == "no gain shown (fused, foreach)"
    assert tried("forward-dominates", COMPILED) == "slower (compile)"
    rows = (replace(FUSED, verdict=NOT_CONFIRMED), replace(FOREACH, verdict=FAILED, effect=None))
    assert tried("optimizer-heavy", *rows) == "gain not confirmed (fused); failed (foreach)"


def test_a_ceiling_counts_only_where_nothing_else_was_tried_and_is_marked():
    assert tried("checkpointing-heavy", UNSAVED) == "no_checkpoints -39.5% (-40.5 .. -38.5) (a ceiling)"
    one_batch = replace(UNSAVED, name="one_batch", family="one_batch")
    assert (
        tried("data-loading-bound", one_batch, replace(WORKERS, verdict=NOT_SHOWN)) == "no gain shown (num_workers=2)"
    )


@pytest.mark.parametrize(
    ("code", "row"), [("data-loading-bound", PINNED), ("data-loading-bound", FUSED), ("memory-growth", WORKERS)]
)
def test_nothing_is_said_of_changes_that_were_not_tried_or_are_not_the_fix(code, row):
    assert tried(code, row) == ""


def test_a_finding_without_a_fix_and_a_run_without_trials_stay_as_they_are():
    healthy = Finding("healthy", "no bottleneck", {}, 0.0, "")
    slow = Finding("optimizer-heavy", "it is slow", {}, 1.0, "change it")
    assert with_trials([healthy], RESULTS) == [healthy]
    assert with_trials([slow], None) == [slow]


def test_the_advice_ends_with_the_trials():
    finding = Finding("optimizer-heavy", "it is slow", {}, 1.0, Fix("change it", (Change.DETACH,)), tried="fused -3.4%")
    assert finding.advice == "change it. Losses: same bit for bit. Tried: fused -3.4%"
    assert replace(finding, fix="change it").advice == "change it. Tried: fused -3.4%"
