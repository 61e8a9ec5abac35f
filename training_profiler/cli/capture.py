"""Record a few steps of a running training with torch.profiler, for `training-profiler trace`.

The training checks for requests once a second, at the end of a step, and writes a file such as
RUN/captures/step100-103-rank0.pt.trace.json.gz.
"""

import argparse
from pathlib import Path

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable_lines
from training_profiler.cli.common import add_run, runs_folder, whole_number, write
from training_profiler.storage.run_reader import choose_run, is_still_running, journals_of_running
from training_profiler.torch_capture.request import FOLDER, MOST_STEPS, write_request


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    parser.add_argument(
        "--steps",
        type=whole_number(f"a number of steps from 1 to {MOST_STEPS}; example: 4", 1, MOST_STEPS),
        metavar="N",
        help="steps to record (default: 4, or the length= setting of the run)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--rank",
        type=whole_number("a rank (0, 1, ...); example: 1"),
        default=0,
        metavar="R",
        help="rank that records (default: 0)",
    )
    which.add_argument("--all", action="store_true", help="record on all ranks, one file per rank")


def run(arguments: argparse.Namespace) -> int:
    """Write the request, print what will follow, and return 0."""
    folder = choose_run(arguments.run, runs_folder())
    ranks = None if arguments.all else (arguments.rank,)
    is_known = _check_runs(folder, ranks)
    try:
        write_request(folder, arguments.steps, ranks)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written ({error.strerror}), so no capture was requested") from None
    who = "every rank" if ranks is None else f"rank {ranks[0]}"
    steps = f"{arguments.steps} steps" if arguments.steps else "a few steps"
    unsure = "" if is_known else "\nCannot check whether the training still runs (it is on another machine)."
    traces = folder / FOLDER
    then = (
        "The training prints when the trace is written; then"  # rank 0 prints
        if ranks == (0,)
        else f"The {'traces go' if ranks is None else 'trace goes'} to {traces}; when written"
    )
    text = printable_lines(
        f"Requested: {who} records {steps}, starting within about a second, unless another torch profiler is active "
        f"or the run's capture windows are used up.{unsure}\n"
        f"{then}: training-profiler trace {traces}\n"
    )
    write(text)
    return 0


def _check_runs(folder: Path, ranks: tuple[int, ...] | None) -> bool:
    """Return whether one of the ranks is known to run; False if that is unknown."""
    journals = journals_of_running(folder, "capture")
    of_ranks = [journal for journal in journals if ranks is None or journal.rank in ranks]
    if not of_ranks:
        known = ", ".join(str(rank) for rank in sorted({each.rank for each in journals if each.rank is not None}))
        raise RunFolderError(f"{folder} has no rank {(ranks or (0,))[0]}; it has {known}")
    states = [is_still_running(journal) for journal in of_ranks]
    if not any(state is not False for state in states):
        raise RunFolderError(f"the training of {folder} is no longer running, so there is nothing to record")
    return any(states)
