"""The screens of the guide: what a report says of recorded runs. ``REWRITE_GOLDEN=1 make test TESTS=tests/golden``.

The runs are in screens/, without the spans of their steps.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from training_profiler.diagnosis import diagnose
from training_profiler.model.snapshot import HistoryChange
from training_profiler.reports.console import Origin, render_final
from training_profiler.reports.layout import Layout
from training_profiler.storage.run_folder import program_in, read_meta, typed_program
from training_profiler.storage.run_reader import read_run

RUNS = Path(__file__).parent / "screens"
SCREENS = Path(__file__).parents[2] / "docs" / "_samples" / "screens"
NAMES = sorted(folder.name for folder in RUNS.iterdir())


SLOWER = HistoryChange(0.123, 0.08, 0.161, 4, "data_loading", 0.0091, "changes that are not committed")


def screen_of(name: str, width: int = 80, history: HistoryChange | None = None, **most: int) -> str:
    """Return the report of a recorded run, as a terminal of UTF-8 without color shows it."""
    snapshot, command = replace(read_run(RUNS / name), history=history), read_meta(RUNS / name)["command"]
    origin = Origin(program_in(command), f"runs/{name}", typed_program(command))
    layout = Layout(width, is_unicode=True)
    return render_final(snapshot, diagnose(snapshot), layout, origin=origin, **most).lstrip("\n")


def answer_in(text: str) -> list[str]:
    return text[text.index(" VERDICT") :].splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_a_screen_is_that_of_the_guide(name: str) -> None:
    text = screen_of(name).replace(str(read_run(RUNS / name).run_folder), f"runs/{name}")
    assert_golden(SCREENS / f"{name}.txt", text)
    assert_golden(SCREENS / f"{name}-answer.txt", "\n".join(answer_in(text)) + "\n")


@pytest.mark.parametrize("history", [None, SLOWER])
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", NAMES)
def test_a_screen_fits(name: str, width: int, history: HistoryChange | None) -> None:
    lines = screen_of(name, width, history).splitlines()
    assert ("12% slower a step than your last 4 runs" in " ".join(" ".join(lines).split())) is (history is not None)
    # A title that is searched for, commands, the path of the run, and a long argument.
    unbroken = re.compile(rf"===|.*training-profiler |.*{RUNS}| +\S+=True\)$")
    assert not [line for line in lines if len(line) > width and not unbroken.match(line)]
    if width >= 80:
        assert len(lines) <= 60
        assert len(answer_in("\n".join(lines))) < 24


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_a_notebook_has_a_short_report_with_the_same_blocks_and_verdict(name: str) -> None:
    full, text = (screen_of(name, most_lines=most) for most in (60, 40))
    blocks = "Detailed Breakdown:", "Time Distribution:", "Performance Insights:"
    assert sorted(blocks, key=text.index) == list(blocks)
    assert len(text.splitlines()) <= 40
    assert answer_in(text)[:2] == answer_in(full)[:2]
