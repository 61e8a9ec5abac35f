"""The functions that write an event, in Python. native/ has the same in C."""

from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from typing import Any

from training_profiler.recording.event_codes import discarded_exit
from training_profiler.recording.tracebacks import hide_our_frames

Clock = Callable[[], int]
MAX_UNCHECKED_EXITS = 63  # then a section in a tight loop checks whether its buffer is full


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
