"""A list of runs as a table: one line each."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from training_profiler.base.units import ms_number
from training_profiler.reports.layout import WIDTH, Layout, column_width, shortened, table

HEADERS: Final = ("began", "run", "program", "state", "steps", "ms/step", "verdict")
NAME_WIDTH, PROGRAM_WIDTH = 15, 10  # a folder's name is its time: 20261121-142530
WIDER: Final = 10  # more of both on a terminal of more than 80 columns
DATE: Final = slice(len("2026-"), len("2026-11-21T14:25"))


class RunRow(NamedTuple):
    """A run as the list shows it."""

    began: str
    name: str  # the run's, or that of its folder
    program: str
    state: str
    steps: int | None
    step_s: float | None
    verdict: str


def render_runs(rows: Sequence[RunRow], layout: Layout) -> str:
    """Return the table; the verdict takes what is left of the width."""
    more = WIDER if layout.width >= WIDTH + 2 * WIDER else 0
    cells = [
        [
            row.began[DATE].replace("T", " "),
            shortened(row.name, NAME_WIDTH + more),
            shortened(row.program, PROGRAM_WIDTH + more),
            row.state,
            "" if row.steps is None else str(row.steps),
            "" if row.step_s is None else ms_number(row.step_s),
            row.verdict,
        ]
        for row in rows
    ]
    widths = [column_width(header, [row[at] for row in cells]) for at, header in enumerate(HEADERS[:-1])]
    room = max(0, layout.width - sum(widths))
    for cell in cells:
        cell[-1] = _fitting(cell[-1], room)
    return "\n".join(table(HEADERS, cells, left=(0, 1, 2, 3, 6))) + "\n"


def _fitting(verdict: str, room: int) -> str:
    """Return a verdict without its explanation where that does not fit."""
    if len(verdict) > room:
        verdict = re.split("[:,] ", verdict)[0]
    return verdict if len(verdict) <= room else f"{verdict[: max(0, room - 2)]}.."
