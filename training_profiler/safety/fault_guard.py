"""Runs the parts of the profiler so that an error in one disables that part and nothing else."""

import logging
import sys
from collections.abc import Callable
from typing import Final

from training_profiler.recording.foreign_errors import reraise_if_foreign
from training_profiler.safety.greenlets import NoThreadError
from training_profiler.safety.stream_room import takes_a_line

log: Final = logging.getLogger("training_profiler")

Guard = Callable[[str, Callable[[], None]], None]  # ``FaultGuard.run``: the name of a part, and its work


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
            if not takes_a_line(sys.stderr):  # logging would wait, and hold a lock that the program's end needs
                return
            # An error of the operating system needs no traceback; a mistake of ours does.
            is_ours = not isinstance(error, OSError)
            try:
                log.warning("%s switched off, the training goes on: %s", part, reason, exc_info=is_ours)
            except Exception:  # a user's log handler may fail as well
                return
