"""Having the main thread do something between two of its instructions, from another thread."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

MOST_TRIED: Final = 8


class MainThreadInterrupt:
    """A real-time signal that nobody uses, with a handler while a window is open; nothing where there is none."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._number: int | None = None
        self._pid = 0
        self._sending = threading.Lock()  # a signal that comes when nobody takes it any more ends the process

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
        with self._sending:
            if self._number is not None and self._pid == os.getpid() and main is not None:
                signal.pthread_kill(main, self._number)

    def disarm(self) -> None:
        """Give the signal back; on the main thread."""
        if self._pid != os.getpid():  # in a forked child, where the lock may be held by a thread that is not there
            self._sending = threading.Lock()
        if threading.current_thread() is not threading.main_thread():
            return
        with self._sending:
            number, self._number = self._number, None
        if number is not None:
            _let_pending_be_handled()
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN)  # what is on its way goes nowhere
                signal.signal(number, signal.SIG_DFL)

    def _handle(self, signum: int, frame: Any) -> None:
        self._work()


def _let_pending_be_handled() -> None:
    """Give the interpreter the occasion, which it takes where a function begins."""
