"""The table of a session, and what the findings of a run say of their fixes."""

from dataclasses import replace

import pytest

from tests.trials.test_results import COMPILED, CONTROL, FUSED, PINNED, RESULTS, WORKERS, effect
from training_profiler.diagnosis.finding import Change, Finding, Fix
from training_profiler.reports.layout import Layout
from training_profiler.trials.report import render_results, with_trials
from training_profiler.trials.results import (
    FAILED,
    FASTER,
    NO_VERDICT,
    NOT_CONFIRMED,
    NOT_SHOWN,
    NOT_TRIED,
    UNDECIDED,
    Row,
)


def rendered(results, width=80):
    return render_results(results, "runs/20261121-142530", Layout(width=width))


def row_of(text, begin):
    (line,) = [line for line in text.splitlines() if line.startswith(begin)]
    return line.split()


def test_the_table_shows_step_gain_losses_and_line():
    text = rendered(RESULTS)
    assert text.startswith("=== Tried on train.py: 3 changes, 4 min 12 s ===\n")
    assert row_of(text, "num_workers=2") == [
        "num_workers=2", "24.9", "ms", "-39.5%", "(-40.5", "..", "-38.5)", "identical", "train.py:41",
    ]  # fmt: skip
    assert row_of(text, "unchanged ") == ["unchanged", "41.2", "ms"]
    assert row_of(text, "pin_memory") == ["pin_memory", "-", "not", "tried:", "no", "accelerator"]
    assert "    slower; compiles for 38.0 s, 2 recompilations\n" in text
    order = ["num_workers=2", "-3.4%", "+6.8%", "not tried", "all together"]  # the largest gain first
    assert sorted(order, key=text.index) == order
    for width in (80, 100):
        assert max(map(len, rendered(RESULTS, width).splitlines())) <= width


def test_changes_of_a_kind_that_were_not_tried_for_the_same_reason_are_one_row():
    many = [
        Row(f"num_workers={count}", "num_workers", f"DataLoader(num_workers={count})", NOT_TRIED, "only 2 CPUs")
        for count in (4, 8, 16)
    ]
    other = replace(many[0], name="num_workers=1", reason="is set already")
    text = rendered(replace(RESULTS, rows=(WORKERS, many[0], PINNED, *many[1:], other)), 100)
    assert row_of(text, "num_workers=4")[:3] == ["num_workers=4,", "8,", "16"]
    assert "not tried: only 2 CPUs" in text
    assert "num_workers=8" not in text
    assert "is set already" in text


AUTOCAST = replace(FUSED, name="autocast", label="autocast(bfloat16)", changes_numerics=True)
BESIDE_OTHERS = replace(FUSED, verdict=UNDECIDED, reason="it waited for a CPU")
NO_GAIN = {"rows": (COMPILED, PINNED), "together": None, "together_names": ()}
UNCONFIRMED = {"rows": (replace(WORKERS, verdict=NOT_CONFIRMED), replace(FUSED, verdict=NO_VERDICT)), "together": None}
LEFT = {
    "rows": (replace(WORKERS, verdict=NOT_SHOWN), replace(PINNED, name="compile", label="compile")),
    "together": None,
    "remaining": ("num_workers=2", "compile"),
}
COMPILE = replace(FUSED, name="compile", label="torch.compile(model)", family="compile", warmup_s=30.0)
PAYING = replace(COMPILE, compile_s=28.0, recompilations=1, break_even_steps=20_000)


@pytest.mark.parametrize(
    ("changed", "there", "not_there"),
    [
        ({"rows": (BESIDE_OTHERS,)}, ["    undecided: it waited for a CPU\n"], []),
        ({"rows": (AUTOCAST,)}, ["    changes the numerics\n"], []),
        ({"rows": (replace(AUTOCAST, is_ceiling=True),)}, ["a ceiling: no edit has this"], ["changes the numerics"]),
        (
            {"rows": (WORKERS, replace(FUSED, verdict=NOT_CONFIRMED))},
            ["    with fused, not confirmed alone\nThis run"],
            [],
        ),
        ({}, ["This run of 12,000 steps would take 4 min 37 s instead of"], ["not confirmed alone"]),
        ({}, ["8 min 14 s, with", "The edit: training-profiler try --show-diff runs/20261121-142530"], []),
        ({"total_steps": None}, ["1,000 steps would take 23.1 s instead of 41.2 s"], []),
        ({"total_steps": None}, ["What the trials took is paid back after 13,933 steps."], []),
        ({"part_in_steps": 0.5}, ["41.2 -> 23.1 ms: 22% of the training time (3 min 37 s of this run) saved.\n"], []),
        (
            {"part_in_steps": 1.0, "total_steps": None},
            ["41.2 -> 23.1 ms: 44% of the training time (18.1 s of 1,000 steps) saved.\n"],
            [],
        ),
        ({"rows": (COMPILE,), "together": None, "part_in_steps": 1.0}, ["instead of"], [" saved."]),
        ({"rows": (replace(WORKERS, step_s=0.031),)}, [" 24.9 ms  -39.5%"], [" 31.0 ms"]),  # what is measured in pairs
        ({"rows": (COMPILE,), "together": None}, ["would take 8 min 28 s instead of 8 min 14 s"], []),
        (
            {"rows": (PAYING,), "together": None},
            ["    compiles for 28.0 s, 1 recompilation, paid back after 20,000 steps\n"],
            ["longer"],
        ),
        ({"rows": (COMPILE,)}, ["    nothing was compiled\n"], ["paid back after 20"]),
        (NO_GAIN, ["No change is shown to help.\n"], ["would take", "--show-diff"]),
        (UNCONFIRMED, ["gain not confirmed", "no verdict", "No change is shown to help."], []),
        ({"rows": (replace(PINNED, verdict=FAILED, reason="out of memory"),)}, ["failed: out of memory"], []),
        (
            {"is_interrupted": True, "control": CONTROL},
            ["=== Tried on train.py: 3 changes, 4 min 12 s, stopped early ==="],
            [],
        ),
        (
            LEFT,
            ["    not finished\n", "No change is shown to help so far.\nNot finished: num_workers=2, compile.\n"],
            [],
        ),
        (LEFT, ["To go on: training-profiler try --resume runs/20261121-142530\n"], []),
        (
            {"rows": (replace(WORKERS, verdict=NOT_SHOWN, effect=replace(WORKERS.effect, total=0.031)),)},
            ["    no gain shown; +3.1% in all blocks together\n"],
            [],
        ),
        ({"rows": (replace(WORKERS, effect=replace(WORKERS.effect, total=-0.39)),)}, [], ["in all blocks"]),
    ],
)
def test_the_table_and_what_follows_it_say_what_the_figures_do_not(changed, there, not_there):
    text = rendered(replace(RESULTS, **changed))
    assert [words for words in there if words not in text] == []
    assert [words for words in not_there if words in text] == []


FOREACH = replace(FUSED, name="foreach", family="foreach", verdict=NOT_SHOWN, effect=effect(-0.005))
UNSAVED = replace(WORKERS, name="no_checkpoints", family="no_checkpoints", is_ceiling=True)


@pytest.mark.parametrize(("row", "is_against"), [(WORKERS, True), (UNSAVED, False), (FUSED, False)])
def test_a_gain_beside_a_prediction_of_none_says_which_was_measured(row, is_against):
    finding = Finding("data-loading-bound", "it waits", {}, 1.0, "Workers would not help: all CPUs are busy")
    row = replace(row, name="one_batch", family="one_batch") if row.is_ceiling else row
    (found,) = with_trials([finding], replace(RESULTS, rows=(row,)))
    assert found.tried.endswith("-38.5), which was measured, unlike the prediction") == is_against


FOUR = replace(WORKERS, name="num_workers=4", effect=effect(-0.3))
KEPT = replace(WORKERS, name="persistent_workers", family="persistent_workers", effect=effect(-0.1))
ONE_BATCH = replace(UNSAVED, name="one_batch", family="one_batch")


@pytest.mark.parametrize(
    ("code", "rows", "text"),
    [
        ("data-loading-bound", (WORKERS, FUSED), "num_workers=2 -39.5% (-40.5 .. -38.5)"),
        ("optimizer-heavy", (WORKERS, FUSED), "fused -3.4% (-4.4 .. -2.4)"),
        # Of two numbers of workers the better one, and all changes that go together.
        (
            "data-loading-bound",
            (KEPT, FOUR, WORKERS),
            "num_workers=2 -39.5% (-40.5 .. -38.5), persistent_workers -10.0% (-11.0 .. -9.0)",
        ),
        ("optimizer-heavy", (FUSED, replace(FOREACH, verdict=FASTER)), "fused -3.4% (-4.4 .. -2.4)"),
        ("optimizer-heavy", (replace(FUSED, verdict=NOT_SHOWN), FOREACH), "no gain shown (fused, foreach)"),
        ("forward-dominates", (COMPILED,), "slower (compile)"),
        (
            "optimizer-heavy",
            (replace(FUSED, verdict=NOT_CONFIRMED), replace(FOREACH, verdict=FAILED, effect=None)),
            "gain not confirmed (fused); failed (foreach)",
        ),
        # A ceiling counts only where nothing else was tried.
        ("checkpointing-heavy", (UNSAVED,), "no_checkpoints -39.5% (-40.5 .. -38.5) (a ceiling)"),
        ("data-loading-bound", (ONE_BATCH, replace(WORKERS, verdict=NOT_SHOWN)), "no gain shown (num_workers=2)"),
        # What was not tried, or is not the fix.
        ("data-loading-bound", (PINNED,), ""),
        ("data-loading-bound", (FUSED,), ""),
        ("memory-growth", (WORKERS,), ""),
    ],
)
def test_a_finding_says_what_its_fix_has_brought(code, rows, text):
    finding = Finding(code, "it is slow", {}, 1.0, Fix("change it", (Change.DETACH,)))
    (found,) = with_trials([finding], replace(RESULTS, rows=rows))
    assert found.tried == text


def test_a_finding_without_a_fix_and_a_run_without_trials_stay_as_they_are():
    healthy = Finding("healthy", "no bottleneck", {}, 0.0, "")
    slow = Finding("optimizer-heavy", "it is slow", {}, 1.0, "change it")
    assert with_trials([healthy], RESULTS) == [healthy]
    assert with_trials([slow], None) == [slow]
    fix = Fix("change it", (Change.DETACH,))
    finding = Finding("optimizer-heavy", "it is slow", {}, 1.0, fix, tried="fused -3.4%")
    assert finding.advice == "change it. Losses: same bit for bit. Tried: fused -3.4%"
    assert replace(finding, fix="change it").advice == "change it. Tried: fused -3.4%"
