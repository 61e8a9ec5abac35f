"""What records events: Python, or the same in C where that was built."""

import sys
import time
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any, Final, NamedTuple

from training_profiler.recording import python_recorder
from training_profiler.recording.event_codes import discarded_exit
from training_profiler.recording.python_recorder import Clock
from training_profiler.recording.tracebacks import hide_our_frames


class Implementation(NamedTuple):
    """What records the events of a thread. Both record the same."""

    name: str
    reason: str  # why it serves
    new_events: Callable[[], list[int]]  # integers without any, to be appended to
    event_writer: Callable[[list[int], Clock, int], Callable[[], None]]  # see python_recorder.py
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


def python_implementation(reason: str) -> Implementation:
    """Return the implementation in Python, which serves for this reason."""
    return Implementation("Python", reason, list, python_recorder.event_writer, python_recorder.section_writers)


_INTERFACE: Final = 15  # of native/native.h
# Python's own clock is this one on Linux. Elsewhere the one in C calls Python's.
_IS_MONOTONIC: Final = time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"


def native_module() -> ModuleType:
    """Return what was built from native/.

    Raises:
        ImportError: it was not built, or cannot be loaded.
    """
    # By this form of import, a missing module is another error than one that fails to load.
    import training_profiler.recording._native as _native

    if _native.INTERFACE != _INTERFACE:  # a source tree that has changed since
        raise ImportError("it was built from other sources; install the package again")
    return _native


def native_implementation() -> Implementation:
    """Return the implementation in C.

    Raises:
        ImportError: it was not built, or cannot be loaded.
    """
    native_module()
    import training_profiler.recording._native as _native

    def own_clock(clock: Clock) -> Clock | None:
        # A program may have put a clock of its own in this place, such as one that stands still in its tests.
        is_pythons = clock is time.perf_counter_ns and isinstance(clock, BuiltinFunctionType)
        return None if is_pythons and _IS_MONOTONIC else clock

    def event_writer(events: list[int], clock: Clock, code: int) -> Callable[[], None]:
        return _native.event_writer(events, own_clock(clock), code)

    def section_writers(code: int, buffer: Any, clock: Clock, flush: Callable[[], None]) -> tuple[Any, Any, Any]:
        codes = (code, -code, discarded_exit(code))
        return _native.section_writers(buffer, own_clock(clock), codes, flush, hide_our_frames)

    return Implementation(
        "C",
        "built when it was installed",
        _native.Events,
        event_writer,
        section_writers,
        _native.SectionLookup,
        _native.UsualCalls,
        getattr(_native, "Front", None),  # not on Windows
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
