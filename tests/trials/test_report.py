"""The table of a session, and what the findings of a run say of their fixes."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
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

GOLDEN = Path(__file__).parents[1] / "golden" / "reports" / "trials.txt"


def rendered(results, width=80):
    return render_results(results, "runs/20261121-142530", Layout(width=width))


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


SAME_REASON = [
    Row(f"num_workers={count}", "num_workers", f"DataLoader(num_workers={count})", NOT_TRIED, "only 2 CPUs")
    for count in (4, 8, 16)
]
IS_SET = replace(SAME_REASON[0], name="num_workers=1", reason="is set already")
SESSIONS = {
    "changes, and all together": {},
    "changes of a kind that were not tried for the same reason are one row": {
        "rows": (WORKERS, SAME_REASON[0], PINNED, *SAME_REASON[1:], IS_SET)
    },
    "undecided": {"rows": (BESIDE_OTHERS,)},
    "other numerics": {"rows": (AUTOCAST,)},
    "a ceiling": {"rows": (replace(AUTOCAST, is_ceiling=True),)},
    "a part of them is not confirmed alone": {"rows": (WORKERS, replace(FUSED, verdict=NOT_CONFIRMED))},
    "the length of the run is unknown": {"total_steps": None},
    "half of the run is steps": {"part_in_steps": 0.5},
    "all of a run of unknown length is steps": {"part_in_steps": 1.0, "total_steps": None},
    "compiling takes longer than it saves": {"rows": (COMPILE,), "together": None, "part_in_steps": 1.0},
    "what is measured in pairs is shown": {"rows": (replace(WORKERS, step_s=0.031),)},
    "compiling pays": {"rows": (PAYING,), "together": None},
    "nothing was compiled": {"rows": (COMPILE,)},
    "no gain": NO_GAIN,
    "no gain is confirmed": UNCONFIRMED,
    "failed": {"rows": (replace(PINNED, verdict=FAILED, reason="out of memory"),)},
    "stopped early": {"is_interrupted": True, "control": CONTROL},
    "not finished": LEFT,
    "slower in all blocks together": {
        "rows": (replace(WORKERS, verdict=NOT_SHOWN, effect=replace(WORKERS.effect, total=0.031)),)
    },
    "as fast in all blocks together": {"rows": (replace(WORKERS, effect=replace(WORKERS.effect, total=-0.39)),)},
}


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


NOT_CONFIRMED_ONE = replace(FUSED, verdict=NOT_CONFIRMED), replace(FOREACH, verdict=FAILED, effect=None)
FINDINGS = {
    "the fix that helped": ("data-loading-bound", (WORKERS, FUSED)),
    "another finding's": ("optimizer-heavy", (WORKERS, FUSED)),
    "of two numbers of workers the better one, and all changes that go together": (
        "data-loading-bound",
        (KEPT, FOUR, WORKERS),
    ),
    "the better of two that exclude each other": ("optimizer-heavy", (FUSED, replace(FOREACH, verdict=FASTER))),
    "no gain": ("optimizer-heavy", (replace(FUSED, verdict=NOT_SHOWN), FOREACH)),
    "slower": ("forward-dominates", (COMPILED,)),
    "not confirmed, and failed": ("optimizer-heavy", NOT_CONFIRMED_ONE),
    "only a ceiling": ("checkpointing-heavy", (UNSAVED,)),
    "a ceiling counts only where nothing else was tried": (
        "data-loading-bound",
        (ONE_BATCH, replace(WORKERS, verdict=NOT_SHOWN)),
    ),
    "not tried": ("data-loading-bound", (PINNED,)),
    "not its fix": ("data-loading-bound", (FUSED,)),
    "no change is": ("memory-growth", (WORKERS,)),
}


def tried(code, rows):
    finding = Finding(code, "it is slow", {}, 1.0, Fix("change it", (Change.DETACH,)))
    (found,) = with_trials([finding], replace(RESULTS, rows=rows))
    return found.tried


def test_tables_and_findings_say_it_to_the_letter():
    tables = {name: rendered(replace(RESULTS, **changed)) for name, changed in SESSIONS.items()}
    findings = {name: f"{code}: {tried(code, rows)}\n" for name, (code, rows) in FINDINGS.items()}
    assert_golden(GOLDEN, "".join(f"##### {name}\n{text}" for name, text in (tables | findings).items()))
    for width in (80, 100):
        assert max(map(len, rendered(RESULTS, width).splitlines())) <= width


def test_a_finding_without_a_fix_and_a_run_without_trials_stay_as_they_are():
    healthy = Finding("healthy", "no bottleneck", {}, 0.0, "")
    slow = Finding("optimizer-heavy", "it is slow", {}, 1.0, "change it")
    assert with_trials([healthy], RESULTS) == [healthy]
    assert with_trials([slow], None) == [slow]
    fix = Fix("change it", (Change.DETACH,))
    finding = Finding("optimizer-heavy", "it is slow", {}, 1.0, fix, tried="fused -3.4%")
    assert finding.advice == "change it. Losses: same bit for bit. Tried: fused -3.4%"
    assert replace(finding, fix="change it").advice == "change it. Tried: fused -3.4%"
