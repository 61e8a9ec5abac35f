"""Print the final summary of a run from the files in its folder, even of one that was killed."""

import argparse
import json
import sys
from pathlib import Path

from training_profiler.diagnosis import diagnose
from training_profiler.reports.console import render_final
from training_profiler.reports.contract import as_data
from training_profiler.runs.reader import read_run
from training_profiler.settings import FORMATS


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/20261121-142530")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of text")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="layout of the text")
    parser.add_argument("--checklist", action="store_true", help="end the text with the quick checklist")


def run(arguments: argparse.Namespace) -> int:
    """Print the report and return 0.

    Raises:
        RunFolderError: the folder cannot be read as a run.
    """
    snapshot = read_run(arguments.run)
    insights = diagnose(snapshot)
    if arguments.json:
        text = json.dumps(as_data(snapshot, insights), indent=1, allow_nan=False) + "\n"
    else:
        text = render_final(snapshot, insights, arguments.format, arguments.checklist).lstrip("\n")
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0
