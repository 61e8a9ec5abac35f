"""Imports numpy so that the threads of its linear algebra take no signals: those are for the program's threads.

A program that blocks SIGTERM on its only thread gets it when it unblocks it, or never. With another thread that
takes signals, the signal arrives at once.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Of an error in the code of the thread itself: blocked, it would end the process without a word of faulthandler.
OF_THE_THREAD: Final = tuple(
    number
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")
    if (number := getattr(signal, name, None)) is not None
)


@contextmanager
def new_threads_without_signals() -> Iterator[None]:
    """Block signals on this thread, and so on threads that it starts meanwhile; then restore what was blocked."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - set(OF_THE_THREAD))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


with new_threads_without_signals():
    import numpy  # noqa: F401
