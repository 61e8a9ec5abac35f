"""The arguments of commands about one run."""

import argparse
from pathlib import Path
from typing import Final

NEWEST: Final = "the newest run"


def add_run(parser: argparse.ArgumentParser, default: str = NEWEST) -> None:
    """Add RUN, which ``choose_run`` takes; ``default`` says what it is where none is given."""
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN",
        help=f"a run folder, such as runs/20261121-142530, a folder of runs, or the name of a run (default: {default})",
    )


def add_attempt(parser: argparse.ArgumentParser, default: str = "the last") -> None:
    """Add the attempt of a restarted run."""
    parser.add_argument(
        "--attempt",
        type=_attempt_number,
        metavar="N",
        help=f"for restarted runs (torchrun --max-restarts): attempt number, counted from 0 (default: {default})",
    )


def _attempt_number(word: str) -> int:
    """Return a number of ``--attempt``."""
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r} is not an attempt number (0, 1, ...); example: 1")
    return int(word)
