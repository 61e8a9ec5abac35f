"""Print the final summary of a run from the files in its folder, even of one that was killed.

Journals of ranks that ran on several machines may be copied together before, into RUN or into folders in it.
"""

import argparse
import json
import sys
from pathlib import Path

from training_profiler.diagnosis import diagnose
from training_profiler.reports.console import render_final
from training_profiler.reports.report_json import as_data
from training_profiler.settings import FORMATS
from training_profiler.storage.run_reader import read_run


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/20261121-142530")
    parser.add_argument(
        "--attempt",
        type=_attempt,
        metavar="N",
        help="of a training that its launcher started anew: which attempt, counted from 0; the last by default",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of text")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="layout of the text")
    parser.add_argument("--checklist", action="store_true", help="end the text with the quick checklist")


def _attempt(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r} is no number of an attempt, which are counted from 0; example: 1")
    return int(word)


def run(arguments: argparse.Namespace) -> int:
    """Print the report and return 0.

    Raises:
        RunFolderError: the folder cannot be read as a run, or it has no such attempt.
    """
    snapshot = read_run(arguments.run, arguments.attempt)
    findings = diagnose(snapshot)
    if arguments.json:
        text = json.dumps(as_data(snapshot, findings), indent=1, allow_nan=False) + "\n"
    else:
        text = render_final(snapshot, findings, arguments.format, arguments.checklist).lstrip("\n")
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0
