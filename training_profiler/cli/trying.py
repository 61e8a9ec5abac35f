"""What the commands that try changes share: their program, a time, and a line that says what is under way."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Final

from training_profiler.base.errors import ProfilerError
from training_profiler.base.text import encodable, one_line
from training_profiler.base.units import duration_text
from training_profiler.cli.common import say, time_in
from training_profiler.cli.run import resolve
from training_profiler.reports.layout import shortened
from training_profiler.trials.launcher import Program

TABLE: Final = "training_profiler.trials.treatments"
seconds: Final = time_in("a time; examples: 90s, 10m, 1h30m")  # reads a budget


def program_of(words: list[str]) -> Program:
    """Return the program that a command names.

    Raises:
        ProfilerError: there is none.
    """
    if not words:
        raise ProfilerError("the program is missing, as in: training-profiler try train.py --lr 1e-3")
    if words[0].endswith(".py") and not os.path.exists(words[0]):
        raise ProfilerError(f"{words[0]} does not exist")
    program, command, is_python = resolve(words)
    if command[0] != words[0] and not words[0].startswith("-") and not os.path.exists(words[0]):
        raise ProfilerError(f"{words[0]} is neither a file nor a command")
    if not program:
        raise ProfilerError("this Python does not know its own path; put it in front of the script")
    return Program([program, *command[1:]], is_python, shown_name(words))


def shown_name(words: Sequence[str]) -> str:
    """Return the name of a program in reports."""
    if "-m" in words[:-1] and not any(word.endswith(".py") for word in words):
        return words[words.index("-m") + 1]
    return os.path.basename(next((word for word in words if word.endswith(".py")), words[0]))  # also behind a launcher


class ProgressLine:
    """A line on stderr that says what is under way, where that is a terminal."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._is_terminal = sys.stderr.isatty()
        self._begin_s = time.monotonic()
        self._width = 0

    def show(self, part: float, doing: str) -> None:
        """Show what is under way, and how much time is left at most."""
        if not self._is_terminal:
            return
        left_s = max(0.0, self._budget_s - (time.monotonic() - self._begin_s))
        filled = round(10 * min(1.0, part))
        bar, left = f"[{'#' * filled}{'.' * (10 - filled)}] ", f", at most {duration_text(left_s)} left"
        room = shutil.get_terminal_size().columns - 1 - len(bar) - len(left)
        text = f"{bar}{shortened(encodable(one_line(doing), sys.stderr.encoding), max(10, room))}{left}"
        sys.stderr.write(f"\r{text:<{self._width}}")
        sys.stderr.flush()
        self._width = len(text)

    def note(self, text: str) -> None:
        """Print the lines of a text."""
        self.clear()
        for line in text.splitlines():
            say(line)

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            sys.stderr.write(f"\r{'':<{self._width}}\r")
            sys.stderr.flush()
            self._width = 0
