"""Have a training that runs record a few steps with torch.profiler, for `training-profiler trace`.

The training looks for this once a second, at the end of a step, and writes a file such as
RUN/captures/step100-103-rank0.pt.trace.json.gz.
"""

import argparse
import sys
from pathlib import Path

from training_profiler.errors import RunFolderError
from training_profiler.storage.journal_discovery import JournalFile, find_journals
from training_profiler.storage.journal_tail import read_end
from training_profiler.storage.launch import is_running
from training_profiler.torch_capture.request import FOLDER, MOST_STEPS, write_request
from training_profiler.units import NS_PER_S


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="its run folder, such as runs/20261121-142530")
    parser.add_argument(
        "--steps", type=_steps, metavar="N", help="steps to record; by default 4, or its length= setting"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=_rank, default=0, metavar="R", help="the rank that records; 0 by default")
    which.add_argument("--all", action="store_true", help="all ranks record, each a file of its own")


def _steps(word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of steps from 1 to {MOST_STEPS}; example: 4")
    return int(word)


def _rank(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r} is no number of a rank, which are counted from 0; example: 1")
    return int(word)


def run(arguments: argparse.Namespace) -> int:
    """Drop the request, say what will happen, and return 0.

    Raises:
        RunFolderError: there is no such run, it has ended, or nothing can be written into its folder.
    """
    folder: Path = arguments.run
    ranks = None if arguments.all else (arguments.rank,)
    is_known = _check_runs(folder, ranks)
    try:
        write_request(folder, arguments.steps, ranks)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written ({error.strerror}), so nothing can be asked for") from None
    who = "every rank" if ranks is None else f"rank {ranks[0]}"
    steps = f"{arguments.steps} steps" if arguments.steps else "a few steps"
    unsure = "" if is_known else "\nWhether it still runs cannot be seen from here (another machine)."
    where = folder / FOLDER
    told = (
        "The training says when the trace is written; then"  # rank 0 prints
        if ranks == (0,)
        else f"The {'traces are' if ranks is None else 'trace is'} then in {where}; when all is written"
    )
    sys.stdout.write(
        f"Asked for: {who} records {steps}, from the end of a step within about a second on, unless a profiler of the "
        f"program's own is at work or its windows are used up.{unsure}\n"
        f"{told}: training-profiler trace {where}\n"
    )
    sys.stdout.flush()
    return 0


def _check_runs(folder: Path, ranks: tuple[int, ...] | None) -> bool:
    """Return whether it can be seen that one of the ranks still runs.

    Raises:
        RunFolderError: none does, or this is no run folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is no folder; example: training-profiler capture runs/20261121-142530")
    found = [one for one in find_journals(folder) if not one.problem]
    if not found:
        raise RunFolderError(f"{folder} holds no journal (rank0.jsonl), so it is no run folder")
    own = folder.resolve()
    if all(one.path.resolve().parent != own for one in found):  # a training looks for it in its own folder alone
        run = max(one.path.parent for one in found)
        raise RunFolderError(f"{folder} is not the folder of a run, but one around it; give that itself, e.g. {run}")
    of_ranks = [one for one in found if ranks is None or one.rank in ranks]
    if not of_ranks:
        known = ", ".join(str(rank) for rank in sorted({one.rank for one in found if one.rank is not None}))
        raise RunFolderError(f"{folder} has no rank {(ranks or (0,))[0]}; it has {known}")
    states = [_is_running(one) for one in of_ranks]
    if not any(state is not False for state in states):
        raise RunFolderError(f"the training of {folder} does not run any more, so there is nothing to record")
    return any(states)


def _is_running(journal: JournalFile) -> bool | None:
    begin = journal.begin or {}
    try:
        if read_end(journal.path, "end", lambda record: record).has_end:
            return False
    except OSError:
        return None
    return is_running(begin.get("host"), begin.get("pid"), journal.wall_ns / NS_PER_S)
