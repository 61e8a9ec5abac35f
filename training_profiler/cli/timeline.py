"""Write a run's timeline for Perfetto, or its time by lines as stacks.

The chrome format has a process for each rank: its steps, its epochs, the sections of the recorded steps on the
lanes of their threads, each section's mean time in a step as a counter, and counters for the machine. Open it at
https://ui.perfetto.dev. Recorded are the first steps, slow ones and the last; training-profiler capture records
operators.

The formats speedscope and collapsed have the time of each section, divided among its running lines by their samples,
in microseconds. They are for https://www.speedscope.app and for programs that draw flame graphs.
"""

import argparse
from pathlib import Path

from training_profiler.base.errors import RunFolderError
from training_profiler.cli.common import add_attempt, add_run, write, write_file
from training_profiler.cli.report import chosen_run
from training_profiler.reports.exports import collapsed, speedscope, timeline_trace
from training_profiler.storage.run_folder import read_program
from training_profiler.storage.run_reader import read_run
from training_profiler.storage.timeline_reader import RankReader, read_series

CHROME, SPEEDSCOPE, COLLAPSED = FORMATS = ("chrome", "speedscope", "collapsed")
NAMES = {CHROME: "timeline.json", SPEEDSCOPE: "lines.speedscope.json", COLLAPSED: "lines.collapsed.txt"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    add_attempt(parser)
    parser.add_argument("--format", choices=FORMATS, default=CHROME, help="what to write (default: chrome)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write, - for standard output (default: in the run folder)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the file and return 0."""
    folder = chosen_run(arguments.run)
    read_run(folder, arguments.attempt, reader := RankReader())  # refuses what is not a run
    ranks = read_series(folder, arguments.attempt, reader)
    if arguments.format == CHROME:
        text = timeline_trace(ranks)
    elif not any(series.lines_ns for series in ranks):
        raise RunFolderError(f"{folder} has no samples of lines; is the setting sample_hz 0?")
    elif arguments.format == SPEEDSCOPE:
        text = speedscope(ranks, read_program(folder) or folder.name)
    else:
        text = collapsed(ranks)
    if str(arguments.output) == "-":
        write(text)
        return 0
    write_file(text, arguments.output, folder / NAMES[arguments.format])
    return 0
