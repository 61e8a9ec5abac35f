"""Runs a function on the main thread, between two of its instructions, on request of another thread."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

MOST_TRIED: Final = 8


class MainThreadInterrupt:
    """An unused real-time signal with a handler while a window is open. Does nothing where signals are missing."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._number: int | None = None
        self._pid = 0
        self._sending = threading.Lock()  # a signal without a handler would end the process

    def arm(self) -> None:
        """Install the handler. Call it on the main thread."""
        last = getattr(signal, "SIGRTMAX", None)
        if last is None:  # macOS and Windows: limits are only checked at ends of steps
            return
        for number in range(int(last), int(last) - MOST_TRIED, -1):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
                self._number, self._pid = number, os.getpid()
                return

    def ring(self) -> None:
        """Ask the main thread to do the work soon. Call it from any thread."""
        main = threading.main_thread().ident
        with self._sending:
            if self._number is not None and self._pid == os.getpid() and main is not None:
                signal.pthread_kill(main, self._number)

    def disarm(self) -> None:
        """Remove the handler. Call it on the main thread."""
        if self._pid != os.getpid():  # a thread that the forked child does not have may hold the lock
            self._sending = threading.Lock()
        if threading.current_thread() is not threading.main_thread():
            return
        with self._sending:
            number, self._number = self._number, None
        if number is not None:
            _let_pending_be_handled()
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN)  # ignore a pending signal
                signal.signal(number, signal.SIG_DFL)

    def _handle(self, signum: int, frame: Any) -> None:
        self._work()


def _let_pending_be_handled() -> None:
    """Let the interpreter run pending handlers, which it does when a function begins."""
