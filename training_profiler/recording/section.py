"""The section of one name on one thread: its enter and its exit are all that a measurement consists of."""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from typing import Any, TypeVar

from training_profiler.recording.context_type import SectionBase
from training_profiler.recording.event_codes import DISCARDED, LOADER
from training_profiler.recording.timed_function import timed
from training_profiler.recording.tracebacks import hide_our_frames

F = TypeVar("F", bound=Callable[..., Any])
Clock = Callable[[], int]
SectionLookup = Callable[[str], "Section"]  # returns the section of a name on the calling thread
Writers = Callable[[Clock], tuple[Any, Any, Any]]

FLUSH_AT_MOST = 2 * 2 * 4096  # integers; with fewer, fixed costs show; with more, caches miss (section_cost.py)
FLUSH_AT_LEAST = 2 * 2 * 16  # integers; a slow script is drained by time, not at every section
MAX_UNCHECKED_EXITS = 63  # then a section in a tight loop checks whether its buffer is full


_thread_ids = itertools.count(1)


class ThreadBuffer:
    """The event stream of one thread: time, code, time, code, ...

    ``events`` holds two integers an event: nanoseconds of the clock, and the code (see ``event_codes``). At length
    ``flush_at`` the buffer wants to be drained. ``sections`` holds the sections made on this thread.
    """

    __slots__ = (
        "clock",
        "events",
        "flush_at",
        "ident",
        "is_fetching",
        "loader_id",
        "name",
        "on_clock_change",
        "owner",
        "rewrite_lock",
        "sections",
        "thread_id",
    )

    def __init__(self, name: str, owner: "weakref.ref[object]") -> None:
        self.thread_id = next(_thread_ids)
        self.name = name
        self.owner = owner  # dead when the thread is; threading's idents are reused
        self.ident = threading.get_ident()
        self.events: list[int] = []
        self.loader_id = 0  # of the data loader that batches come from; 0 for none yet
        self.is_fetching = False  # in a fetch of profile_dataloader, in which patches count no loader
        self.flush_at = FLUSH_AT_LEAST
        self.sections: dict[object, Section] = {}
        self.clock: Clock | None = None  # None: the recorder's
        self.on_clock_change: Callable[[Clock], None] | None = None
        # Held while events are drained or rewritten; appending does not need it. Reentrant, because a signal handler
        # may drain in the middle of either.
        self.rewrite_lock = threading.RLock()

    def record_loader(self, loader_id: int, now_ns: int) -> None:
        """Record that the batches from here on come from this loader, if it is another one; 0 is ignored."""
        if loader_id and loader_id != self.loader_id:
            self.loader_id = loader_id
            self.events.extend((now_ns, LOADER | loader_id))


class Section(SectionBase):
    """A named region of code: a context manager and a decorator.

    It has no state, so one object serves recursion and any number of spans. What a ``with`` statement calls are
    attributes of the section, which it calls without a bound method.

    Args:
        name: of the section.
        lookup: returns the section of a name on the calling thread, for decorated functions.
        writers: returns, for a clock, the functions that write the events of an enter, of an exit, and of an exit
            that does not count.
    """

    __slots__ = ("__enter__", "__exit__", "_writers", "discard", "lookup", "name")
    __module__ = "training_profiler"

    def __init__(self, name: str, lookup: SectionLookup, writers: Writers | None = None, clock: Clock | None = None):
        self.name = name
        self.lookup = lookup
        self._writers = writers
        if clock is not None:
            self.use_clock(clock)

    def use_clock(self, clock: Clock) -> None:
        """Take the times of later events from ``clock``."""
        if self._writers is not None:
            self.__enter__, self.__exit__, self.discard = self._writers(clock)

    def _decorate(self, function: F) -> F:
        """Return ``function`` timed under this name.

        A generator function is timed while it runs, one span per resumption, without its consumer's time. An async
        function is timed from call to return, including its waits.
        """
        return timed(function, self.lookup, self.name)

    # All sections are one object while profiling is off, so they are equal while it is on.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Section)

    def __hash__(self) -> int:
        return hash(Section)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.lookup, (self.name,)


class SessionStartingSection(Section):
    """A section created before a session exists. Entering it, not creating it, starts the run.

    So importing a module with decorated functions starts nothing, in the program or in its workers. It may be kept on
    an object, and entered on any thread.
    """

    __slots__ = ("_begin",)
    __module__ = "training_profiler"
    __qualname__ = "Section"

    def __init__(self, name: str, begin: Callable[[], None], lookup: SectionLookup) -> None:
        super().__init__(name, lookup)
        self._begin = begin

    def _section(self) -> Section | None:
        section = self.lookup(self.name)
        return None if isinstance(section, SessionStartingSection) else section

    def __enter__(self) -> None:
        self._begin()
        section = self._section()
        if section is not None:
            section.__enter__()

    def __exit__(self, *exception: object) -> None:
        section = self._section()
        if section is not None:
            section.__exit__(*exception)

    def discard(self) -> None:
        """End the span without counting it."""
        section = self._section()
        if section is not None:
            section.discard()


SessionStartingSection.__name__ = Section.__name__  # in Python's messages


def event_writer(events: list[int], clock: Clock, code: int) -> Callable[[], None]:
    """Return a function that appends the clock's time and ``code``.

    A chain of C iterators does it in one call that no signal handler or other thread can interrupt. It needs no Python
    frame, which saves 15 % of a section's cost (benchmarks/section_cost.py).
    """
    return map(events.extend, zip(starmap(clock, repeat(())), repeat(code), strict=False)).__next__


def make_section(
    name: str, code: int, buffer: ThreadBuffer, clock: Clock, flush: Callable[[], None], lookup: SectionLookup
) -> Section:
    """Return the section that appends to ``buffer`` and calls ``flush`` when that is full."""
    return Section(name, lookup, lambda clock: _writers(code, buffer, clock, flush), clock)


def _writers(code: int, buffer: ThreadBuffer, clock: Clock, flush: Callable[[], None]) -> tuple[Any, Any, Any]:
    events = buffer.events
    enter = event_writer(events, clock, code)
    leave = event_writer(events, clock, -code)
    discard = event_writer(events, clock, -code - DISCARDED)

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
