"""List the runs in a folder, one line each: when, name, program, state, steps, step time, verdict.

A run is running, ended or killed; unknown, if it has no end and its process cannot be checked from here. The step time
of a run without a final summary is that of its last interval.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable_data
from training_profiler.base.units import ms_number
from training_profiler.cli.common import DATE, layout_of_stdout, runs_folder, write
from training_profiler.reports.layout import WIDTH, Layout, column_width, fitting, shortened, table
from training_profiler.storage.run_reader import ListedRun, list_runs, no_runs

HEADERS: Final = ("began", "run", "program", "state", "steps", "ms/step", "verdict")
NAME_WIDTH, PROGRAM_WIDTH = 15, 10  # a folder's name is its time: 20261121-142530
MIN_VERDICT: Final = 12
WIDER: Final = 10  # more of both on a terminal of more than 80 columns
_KEYS: Final[dict[str, Callable[[ListedRun], Any]]] = {
    "began": lambda run: run.began,
    "name": lambda run: run.name or Path(run.folder).name,
    "program": lambda run: run.program,
    "state": lambda run: run.state,
    "steps": lambda run: run.steps,
    "step": lambda run: run.step_s,
    "verdict": lambda run: run.verdict,
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="FOLDER", help="a folder of runs (default: the folder set by dir, runs)"
    )
    parser.add_argument(
        "--sort", choices=tuple(_KEYS), help="order by this column, ascending (default: the newest run first)"
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the list and return 0."""
    folder = arguments.folder or runs_folder()
    runs = list_runs(folder)
    if not runs:
        if any(folder.glob("rank*.jsonl")):
            raise RunFolderError(f"{folder} is a run folder itself; give the folder around it")
        raise no_runs(folder)
    if arguments.sort:
        key = _KEYS[arguments.sort]
        known = sorted((each for each in runs if key(each) is not None), key=key)
        runs = known + [each for each in runs if key(each) is None]
    if arguments.reverse:
        runs.reverse()
    if arguments.json:
        text = json.dumps(printable_data([asdict(each) for each in runs]), indent=1, allow_nan=False) + "\n"
    else:
        text = render_runs(runs, layout_of_stdout())
    write(text)
    return 0


def render_runs(runs: Sequence[ListedRun], layout: Layout) -> str:
    """Return the table; the verdict takes what is left of the width."""
    more = WIDER if layout.width >= WIDTH + 2 * WIDER else 0
    cells = [
        [
            (run.began or "")[DATE].replace("T", " "),
            shortened(run.name or Path(run.folder).name, NAME_WIDTH + more),
            shortened(run.program or "", PROGRAM_WIDTH + more),
            run.state,
            "" if run.steps is None else str(run.steps),
            "" if run.step_s is None else ms_number(run.step_s),
            run.verdict or run.problem or run.ended_by or "",
        ]
        for run in runs
    ]
    kept = [*fitting(HEADERS[:-1], [row[:-1] for row in cells], layout.width - MIN_VERDICT - 2, (2, 0, 4, 5)), -1]
    widths = [column_width(HEADERS[at], [row[at] for row in cells]) for at in kept[:-1]]
    room = max(0, layout.width - sum(widths))
    for row in cells:
        if len(row[-1]) > room:  # without its explanation
            row[-1] = re.split("[:,] ", row[-1])[0]
        row[-1] = row[-1] if len(row[-1]) <= room else f"{row[-1][: max(0, room - 2)]}.."
    left = [at for at, column in enumerate(kept) if HEADERS[column] not in ("steps", "ms/step")]
    return "\n".join(table([HEADERS[at] for at in kept], [[row[at] for at in kept] for row in cells], left)) + "\n"
