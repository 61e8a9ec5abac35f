"""What records events: Python, or the same in C where that was built."""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from types import BuiltinFunctionType
from typing import Any, Final, NamedTuple

from training_profiler.recording.event_codes import discarded_exit
from training_profiler.recording.tracebacks import hide_our_frames

Clock = Callable[[], int]
MAX_UNCHECKED_EXITS = 63  # then a section in a tight loop checks whether its buffer is full


class Implementation(NamedTuple):
    """What records the events of a thread. Both record the same."""

    name: str
    reason: str  # why it serves
    new_events: Callable[[], list[int]]  # integers without any, to be appended to
    event_writer: Callable[[list[int], Clock, int], Callable[[], None]]  # see below
    section_writers: Callable[[int, Any, Clock, Callable[[], None]], tuple[Any, Any, Any]]
    lookup: Callable[[Callable[[str], Any]], Any] | None = None  # see SectionLookup in _native.pyi; None in Python
    # See UsualCalls and Front in _native.pyi; None in Python.
    usual_calls: Callable[[], Any] | None = None
    front: Callable[..., Any] | None = None
    new_stop: Callable[[], Any] | None = None  # see HandoverLock, for threads that sample; None in Python

    @property
    def is_native(self) -> bool:
        """Whether it is the one in C."""
        return self.lookup is not None

    def describe(self) -> str:
        """Return which one it is, and why."""
        return f"{self.name} ({self.reason})"


def event_writer(events: list[int], clock: Clock, code: int) -> Callable[[], None]:
    """Return a function that appends the clock's time and ``code``.

    A chain of C iterators does it in one call that no signal handler or other thread can interrupt. It needs no Python
    frame, which saves 15 % of a section's cost (benchmarks/section_cost.py).
    """
    return map(events.extend, zip(starmap(clock, repeat(())), repeat(code), strict=False)).__next__


def section_writers(code: int, buffer: Any, clock: Clock, flush: Callable[[], None]) -> tuple[Any, Any, Any]:
    """Return the functions that write an enter, an exit and an exit that does not count.

    An exit calls ``flush`` now and then, if ``buffer.events`` has more integers than ``buffer.flush_at``.
    """
    events = buffer.events
    enter = event_writer(events, clock, code)
    leave = event_writer(events, clock, -code)
    discard = event_writer(events, clock, discarded_exit(code))

    def exits_before_check() -> Iterator[None]:
        unchecked = min(MAX_UNCHECKED_EXITS, buffer.flush_at // 256)
        # The bound is on the clock's arguments, so the exhausted iterator does not read the clock once more.
        times = starmap(clock, repeat((), unchecked))
        return map(events.extend, zip(times, repeat(-code), strict=False))

    unchecked_exits = exits_before_check()

    def __exit__(exc_type: object = None, exc: object = None, traceback: object = None) -> None:  # noqa: N807
        nonlocal unchecked_exits
        for _ in unchecked_exits:  # the loop itself records the exit without a call, which saves another 8 %
            return
        try:
            leave()
            unchecked_exits = exits_before_check()
            if len(events) > buffer.flush_at:
                flush()
        except BaseException as error:  # Ctrl-C, or what a signal handler of the program raises
            hide_our_frames(error)
            raise

    return enter, __exit__, discard


def python_implementation(reason: str) -> Implementation:
    """Return the implementation in Python, which serves for this reason."""
    return Implementation("Python", reason, list, event_writer, section_writers)


_INTERFACE: Final = 20  # of native/native.h
# Python's own clock is this one on Linux. Elsewhere the one in C calls Python's.
_IS_MONOTONIC: Final = time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"


def native_implementation() -> Implementation:
    """Return the implementation in C.

    Raises:
        ImportError: it was not built, or cannot be loaded.
    """
    # By this form of import, a missing module is another error than one that fails to load.
    import training_profiler.recording._native as _native

    if _native.INTERFACE != _INTERFACE:  # a source tree that has changed since
        raise ImportError("it was built from other sources; install the package again")

    def own_clock(clock: Clock) -> Clock | None:
        # A program may have put a clock of its own in this place, such as one that stands still in its tests.
        is_pythons = clock is time.perf_counter_ns and isinstance(clock, BuiltinFunctionType)
        return None if is_pythons and _IS_MONOTONIC else clock

    def event_writer(events: list[int], clock: Clock, code: int) -> Callable[[], None]:
        return _native.event_writer(events, own_clock(clock), code, None, None)

    def section_writers(code: int, buffer: Any, clock: Clock, flush: Callable[[], None]) -> tuple[Any, Any, Any]:
        def flush_unseen() -> None:
            try:
                flush()
            except BaseException as error:
                hide_our_frames(error)
                raise

        enter, discard = (event_writer(buffer.events, clock, each) for each in (code, discarded_exit(code)))
        leave = _native.event_writer(buffer.events, own_clock(clock), -code, buffer, flush_unseen)
        return enter, leave, discard

    return Implementation(
        "C",
        "built when it was installed",
        _native.Events,
        event_writer,
        section_writers,
        _native.SectionLookup,
        getattr(_native, "UsualCalls", None),  # neither of the two on Windows
        getattr(_native, "Front", None),
        _native.HandoverLock,
    )


def best_implementation() -> Implementation:
    """Return the implementation in C where it can be loaded, otherwise the one in Python."""
    try:
        return native_implementation()
    except ModuleNotFoundError:
        is_free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
        why = "this Python has no global lock" if is_free_threaded else "no compiler, or no headers of Python"
        return python_implementation(f"the recorder in C was not built: {why}")
    except ImportError as error:  # such as a file of another machine
        return python_implementation(f"the recorder in C cannot be loaded: {error}")
