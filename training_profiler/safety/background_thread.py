"""The profiler's threads beside the training."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from training_profiler.safety.fault_guard import Guard
from training_profiler.safety.greenlets import NoThreadError, library_of_greenlets

OWN_THREADS: Final = "training_profiler "  # the names of the profiler's threads begin so


class StopLock(Protocol):
    """A closed lock on which a thread sleeps until it must end."""

    def acquire(self, blocking: bool, timeout: float, /) -> bool:
        """Sleep until ``release`` or for ``timeout`` seconds; return whether it was released."""

    def release(self) -> None:
        """Wake the thread.

        Raises:
            RuntimeError: it was released before.
        """


def closed_lock() -> StopLock:
    """Return a lock that can be waited for without running a condition's Python code."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def handed_over_ns(stop: StopLock | None) -> int:
    """Return how long the main thread waited for a thread that slept on ``stop`` to take over the GIL, in ns.

    It is 0 for a lock that hands over nothing.
    """
    return int(getattr(stop, "waited_ns", int)())


class BackgroundThread:
    """A daemon thread that takes no signals: Ctrl-C has to wake the training's thread.

    If ``work`` raises, ``guard`` disables ``part``. The thread does not exist in a forked child, so its owner drops it
    there.

    Args:
        name: follows ``OWN_THREADS`` in the name of the thread.
        work: called with this object; returns soon after ``wait_for_stop`` returns True.
        stop: the lock that it sleeps on, closed.
    """

    def __init__(
        self,
        name: str,
        work: Callable[["BackgroundThread"], None],
        guard: Guard,
        part: str,
        stop: StopLock | None = None,
    ) -> None:
        self.cpu_ns = 0  # as of the latest ``measure_cpu``
        self._work, self._guard, self._part = work, guard, part
        self._stop = stop or closed_lock()
        self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}{name}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            NoThreadError: a library has replaced threads.
            RuntimeError: no thread can be started: there are too many, or the interpreter is about to end.
        """
        if (library := library_of_greenlets()) is not None:
            raise NoThreadError(library)
        self._thread.start()

    def stop(self) -> None:
        """Have ``wait_for_stop`` return True once."""
        with suppress(RuntimeError):  # it was asked to before
            self._stop.release()

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for ``stop``, on the thread itself; return whether it was called."""
        self.measure_cpu()
        return self._stop.acquire(True, timeout_s)

    def measure_cpu(self) -> None:
        """Update ``cpu_ns``, on the thread itself."""
        self.cpu_ns = time.thread_time_ns()

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the thread to end; return whether it has. On the thread itself, never wait."""
        if self.is_current():
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Return whether the thread has started and not ended."""
        return self._thread.is_alive()

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._guard(self._part, lambda: self._work(self))
        finally:
            self.measure_cpu()
            if library_of_greenlets() is not None:  # since the thread began
                _keep_known(self._thread)


def _keep_known(thread: threading.Thread) -> None:
    """Let Python find the thread that ends, the caller's, by the number that the library of greenlets has given it.

    Otherwise it prints a ``KeyError`` of the thread.
    """
    active = getattr(threading, "_active", None)  # private: may be gone
    if isinstance(active, dict):
        active.pop(thread.ident, None)
        active[threading.get_ident()] = thread
