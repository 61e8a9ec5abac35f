"""List the runs in a folder, one line each: when, name, program, state, steps, step time, verdict.

A run is running, ended or killed; unknown, if it has no end and its process cannot be checked from here. The step time
of a run without a final summary is that of its last interval.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import encodable, printable_data
from training_profiler.reports.run_table import RunRow, render_runs
from training_profiler.settings.settings import read_settings
from training_profiler.sinks.console import stream_layout
from training_profiler.storage.run_list import ListedRun, list_runs

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
    """Print the list and return 0.

    Raises:
        RunFolderError: the folder does not exist, or holds no runs.
    """
    folder = arguments.folder or Path(read_settings().dir)
    if not folder.is_dir():
        raise RunFolderError(f"{folder} {'is a file' if folder.exists() else 'does not exist'}; give a folder of runs")
    runs = list_runs(folder)
    if not runs:
        what = "is a run folder itself" if list(folder.glob("rank*.jsonl")) else "holds no run folder"
        raise RunFolderError(f"{folder} {what}; give the folder around folders such as 20261121-142530")
    if arguments.sort:
        key = _KEYS[arguments.sort]
        known = sorted((each for each in runs if key(each) is not None), key=key)
        runs = known + [each for each in runs if key(each) is None]
    if arguments.reverse:
        runs.reverse()
    if arguments.json:
        text = json.dumps(printable_data([asdict(each) for each in runs]), indent=1, allow_nan=False) + "\n"
    else:
        text = render_runs([_row(each) for each in runs], stream_layout(sys.stdout, "table"))
    sys.stdout.write(encodable(text, sys.stdout.encoding))
    sys.stdout.flush()
    return 0


def _row(listed: ListedRun) -> RunRow:
    name = listed.name or Path(listed.folder).name
    verdict = listed.verdict or listed.problem or ""
    if listed.ended_by:
        verdict = f"{listed.ended_by}: {verdict}"
    return RunRow(listed.began or "", name, listed.program or "", listed.state, listed.steps, listed.step_s, verdict)
