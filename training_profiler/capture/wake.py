"""Having the main thread do something between two of its instructions, from another thread."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

MOST_TRIED: Final = 8


class Wake:
    """A real-time signal that nobody uses, with a handler while a window is open; nothing where there is none."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._number: int | None = None
        self._pid = 0

    def arm(self) -> None:
        """Take a signal; on the main thread."""
        last = getattr(signal, "SIGRTMAX", None)
        if last is None:  # not on macOS and Windows: limits are then only looked at where steps end
            return
        for number in range(int(last), int(last) - MOST_TRIED, -1):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
                self._number, self._pid = number, os.getpid()
                return

    def ring(self) -> None:
        """Have the main thread do the work as soon as it can; from any thread."""
        main = threading.main_thread().ident
        if self._number is not None and self._pid == os.getpid() and main is not None:
            signal.pthread_kill(main, self._number)

    def disarm(self) -> None:
        """Give the signal back; on the main thread."""
        if self._number is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(self._number) == self._handle:
                # One that was sent already, and comes now, ends the process where nobody takes it.
                signal.signal(self._number, signal.SIG_IGN)
                signal.signal(self._number, signal.SIG_DFL)
            self._number = None

    def _handle(self, signum: int, frame: Any) -> None:
        self._work()
