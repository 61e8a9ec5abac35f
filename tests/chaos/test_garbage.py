"""A Ctrl-C during a garbage collection is delivered, although the collection is timed."""

import _thread
import functools
import gc
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.garbage_watch import GarbageWatch

pytestmark = pytest.mark.chaos
TRIES = 3000


class Interrupted(Exception):
    """Raised by the handler, as ``KeyboardInterrupt`` is."""


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the list of exceptions that could not be raised."""
    lost: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda arguments: lost.append(arguments.exc_value))
    before = signal.signal(signal.SIGUSR1, _interrupt)
    gc.disable()
    yield lost
    gc.enable()
    signal.signal(signal.SIGUSR1, before)


def _interrupt(signum: int, frame: object) -> None:
    raise Interrupted


def raised() -> int:
    """Return how many of the signals that are sent during collections arrive as exceptions."""
    arrived = 0
    for _ in range(TRIES):
        try:
            gc.collect(0)
            for _ in range(100):  # a handler runs between two instructions
                pass
        except Interrupted:
            arrived += 1
    return arrived


def interrupting(phase: str) -> Callable[..., Any]:
    """Return a callback without Python code that sends the signal at the begin or the end of each collection."""
    # Other functions that send a signal run its handler at once.
    send = functools.partial(next, map(_thread.interrupt_main, itertools.repeat(signal.SIGUSR1)))
    return functools.partial(getattr, type("Phases", (), {phase: property(send)})())


@pytest.mark.parametrize("phase", ["start", "stop"])
def test_a_signal_during_the_callback_is_raised_in_the_program(unraisable: list[Any], phase: str) -> None:
    watch, sender = GarbageWatch(FaultGuard().run), interrupting(phase)
    gc.callbacks.append(sender)  # so the signal is pending when the callback of the watch runs
    watch.start(is_on=True)
    try:
        arrived = raised()
    finally:
        watch.close()
        gc.callbacks.remove(sender)
    assert (arrived, unraisable) == (TRIES, [])
    assert len(watch.pop()) == TRIES


def test_signals_at_any_moment_of_collections_are_raised(unraisable: list[Any]) -> None:
    watch = GarbageWatch(FaultGuard().run)
    before = signal.signal(signal.SIGALRM, _interrupt)
    watch.start(is_on=True)
    arrived = 0
    try:
        for number in range(TRIES):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + number % 50 * 1e-6)
                for _ in range(10**6):
                    gc.collect(0)
            except Interrupted:
                arrived += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        watch.close()
    assert (arrived, unraisable) == (TRIES, [])
