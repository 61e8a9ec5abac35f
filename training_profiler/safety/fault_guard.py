"""Runs the parts of the profiler so that an error in one disables that part and nothing else."""

import logging
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from training_profiler.base.text import PREFIX
from training_profiler.recording.foreign_errors import reraise_if_foreign
from training_profiler.safety.greenlets import NoThreadError
from training_profiler.safety.stream_room import takes_a_line

log: Final = logging.getLogger("training_profiler")
_NAME: Final = re.compile(r"%\(name\)|\{name\b|\$\{?name\b")  # in a format

Guard = Callable[[str, Callable[[], None]], None]  # ``FaultGuard.run``: the name of a part, and its work


def warn(sentence: str, has_traceback: bool) -> None:
    """Log a warning while a training runs. It begins with our name, unless all handlers print that of the logger."""
    if takes_a_line(sys.stderr):  # else logging would wait, and hold a lock that the program's end needs
        with suppress(Exception):  # a user's log handler may fail as well
            log.warning("%s%s", "" if _is_named() else PREFIX, sentence, exc_info=has_traceback)


def _is_named() -> bool:
    """Return whether all handlers that get our warnings print the name of the logger."""
    handlers: list[logging.Handler] = []
    logger: logging.Logger | None = log
    while logger is not None:
        handlers += [each for each in logger.handlers if not isinstance(each, logging.NullHandler)]
        logger = logger.parent if logger.propagate else None
    formats = [str(getattr(handler.formatter, "_fmt", "")) for handler in handlers]
    return bool(formats) and all(_NAME.search(each) for each in formats)


class FaultGuard:
    """``disabled`` holds the reason for each part that failed."""

    def __init__(self) -> None:
        self.disabled: dict[str, str] = {}

    def run(self, part: str, work: Callable[[], None]) -> None:
        """Do ``work``, unless ``part`` failed before; if it fails now, log that once and disable the part.

        A part that starts no thread beside greenlets is disabled, and not logged.

        Raises:
            Exception: raised by a signal handler of the program while ``work`` ran.
        """
        if part in self.disabled:
            return
        try:
            work()
        except Exception as error:
            reraise_if_foreign(error)
            reason = f"{type(error).__name__}: {error}"
            self.disabled[part] = reason
            if isinstance(error, NoThreadError):  # no error, and the report says it
                return
            # An error of the operating system needs no traceback; a mistake of ours does.
            warn(f"{part} switched off, the training goes on: {reason}", not isinstance(error, OSError))
