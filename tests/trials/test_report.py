"""The table of a session, and what the findings of a run say of their fixes."""

from dataclasses import replace

import pytest

from tests.trials.test_results import COMPILED, CONTROL, FUSED, PINNED, RESULTS, WORKERS, effect
from training_profiler.findings.finding import Finding
from training_profiler.findings.losses import Change
from training_profiler.reports.layout import Layout
from training_profiler.trials.report import render_results, with_trials
from training_profiler.trials.results import FAILED, FASTER, NO_VERDICT, NOT_CONFIRMED, NOT_SHOWN, NOT_TRIED, Row


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
    assert "    slower; 38.0 s longer to start\n" in text


def test_no_line_is_wider_than_the_terminal():
    for width in (80, 100):
        assert max(map(len, rendered(RESULTS, width).splitlines())) <= width


def test_the_largest_gain_is_first_and_all_together_last():
    text = rendered(RESULTS)
    order = ["num_workers=2", "-3.4%", "+6.8%", "not tried", "all together"]
    assert sorted(order, key=text.index) == order


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


def test_a_change_of_the_numerics_is_named_as_such():
    autocast = replace(FUSED, name="autocast", label="autocast(bfloat16)", changes_numerics=True)
    assert "    changes the numerics\n" in rendered(replace(RESULTS, rows=(autocast,)))
    ceiling = rendered(replace(RESULTS, rows=(replace(autocast, is_ceiling=True),)))
    assert "a ceiling: no edit has this" in ceiling
    assert "changes the numerics" not in ceiling


def test_a_part_of_all_together_that_is_not_confirmed_alone_is_named():
    text = rendered(replace(RESULTS, rows=(WORKERS, replace(FUSED, verdict=NOT_CONFIRMED))))
    assert "    with fused, not confirmed alone\nThis run" in text
    assert "not confirmed alone" not in rendered(RESULTS)


def test_the_answer_is_in_the_minutes_of_the_run():
    text = rendered(RESULTS, 200)
    assert "This run of 12,000 steps would take 4 min 37 s instead of 8 min 14 s, with num_workers=2 and fused." in text
    assert "The edit: training-profiler try --show-diff runs/20261121-142530" in text


def test_the_answer_is_for_a_thousand_steps_where_the_length_is_unknown():
    text = rendered(replace(RESULTS, total_steps=None), 200)
    assert "1,000 steps would take 23.1 s instead of 41.2 s" in text
    assert "What the trials took is paid back after 13,933 steps." in text


def test_what_compiling_takes_is_part_of_the_answer():
    compiled = replace(FUSED, name="compile", label="model.compile()", warmup_s=30.0)
    text = rendered(replace(RESULTS, rows=(compiled,), together=None), 200)
    assert "would take 8 min 28 s instead of 8 min 14 s" in text


def test_nothing_is_promised_without_a_gain():
    text = rendered(replace(RESULTS, rows=(COMPILED, PINNED), together=None, together_names=()))
    assert "No change is shown to help.\n" in text
    assert "would take" not in text
    assert "--show-diff" not in text


def test_a_gain_that_fresh_trials_do_not_show_is_named_as_such():
    rows = (replace(WORKERS, verdict=NOT_CONFIRMED), replace(FUSED, verdict=NO_VERDICT))
    text = rendered(replace(RESULTS, rows=rows, together=None))
    assert "gain not confirmed" in text
    assert "no verdict" in text
    assert "No change is shown to help." in text


def test_a_failed_change_is_a_row_with_its_reason():
    failed = replace(PINNED, verdict=FAILED, reason="out of memory")
    assert "failed: out of memory" in rendered(replace(RESULTS, rows=(failed,)))


def test_a_session_that_was_stopped_says_so():
    text = rendered(replace(RESULTS, is_interrupted=True, control=CONTROL))
    assert text.startswith("=== Tried on train.py: 3 changes, 4 min 12 s, stopped early ===")


def test_a_change_without_a_last_word_is_not_finished():
    rows = (replace(WORKERS, verdict=NOT_SHOWN), replace(PINNED, name="compile", label="compile"))
    text = rendered(replace(RESULTS, rows=rows, together=None, left=("num_workers=2", "compile")))
    assert "    not finished\n" in text
    assert "No change is shown to help so far.\nNot finished: num_workers=2, compile.\n" in text
    assert "To go on: training-profiler try --resume runs/20261121-142530\n" in text


def test_what_few_very_slow_blocks_do_to_the_time_of_all_is_said():
    slow = replace(WORKERS, verdict=NOT_SHOWN, effect=replace(WORKERS.effect, total=0.031))
    assert "    no gain shown; +3.1% in all blocks together\n" in rendered(replace(RESULTS, rows=(slow,)))
    same = replace(WORKERS, effect=replace(WORKERS.effect, total=-0.39))
    assert "in all blocks" not in rendered(replace(RESULTS, rows=(same,)))


FOREACH = replace(FUSED, name="foreach", family="foreach", verdict=NOT_SHOWN, effect=effect(-0.005))
UNSAVED = replace(WORKERS, name="no_checkpoints", family="no_checkpoints", is_ceiling=True)


def tried(code, *rows):
    finding = Finding(code, "it is slow", {}, 1.0, "change it", changes=(Change.DETACH,))
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
    finding = Finding(
        "optimizer-heavy", "it is slow", {}, 1.0, "change it", changes=(Change.DETACH,), tried="fused -3.4%"
    )
    assert finding.advice == "change it. Losses: same bit for bit. Tried: fused -3.4%"
    assert replace(finding, changes=()).advice == "change it. Tried: fused -3.4%"
