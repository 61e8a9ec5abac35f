"""The ways a process ends or divides: interpreter exit, SIGTERM, fork."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import FrameType


class Exits:
    """Calls ``finish`` once at the end of the process that armed it, whichever way that comes.

    SIGTERM is only taken where its default action stands and on the main thread; the process then
    ends by SIGTERM as it would have without us. SIGKILL cannot be seen by anyone.
    """

    def __init__(self, finish: Callable[[str | None], bool]) -> None:
        self._finish = finish
        self._pid = os.getpid()
        self._is_armed = False
        self._has_signal = False
        self._finalizer: Finalize | None = None

    def arm(self) -> None:
        """Start watching for the end."""
        if not self._is_armed:
            atexit.register(self._at_exit)
            if multiprocessing.parent_process() is not None:  # such a child may end without atexit
                self._finalizer = Finalize(None, self._at_exit, exitpriority=0)
            self._is_armed = True
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._at_sigterm)
            self._has_signal = True

    def disarm(self) -> None:
        """Stop watching; what others have installed since stays."""
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()
            self._finalizer = None
        self._is_armed = False
        if self._has_signal and threading.current_thread() is threading.main_thread():
            # == and not `is`: each access makes a new bound method.
            if signal.getsignal(signal.SIGTERM) == self._at_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._has_signal = False

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._finish(_uncaught())

    def _at_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid or self._finish("SIGTERM"):
            self.die()

    def die(self) -> None:
        """End the process by SIGTERM, as it would have ended without us."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _uncaught() -> str | None:
    """Return the name of the exception that ends the program, None where it ends of itself."""
    # The interpreter leaves it here after printing the traceback, before atexit.
    kind = getattr(sys, "last_type", None)
    return None if kind is None else str(kind.__name__)


def is_worker() -> bool:
    """Return whether this process was started to serve another, by multiprocessing."""
    if multiprocessing.parent_process() is not None or is_being_spawned():
        return True
    return is_loader_worker()


def is_loader_worker() -> bool:
    """Return whether this process fetches batches for a DataLoader of another."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def is_being_spawned() -> bool:
    """Return whether this is a child of multiprocessing that is still importing its parent's main module."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))  # private: may be gone


def at_fork(in_child: Callable[[], None]) -> None:
    """Call ``in_child`` in every process forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
