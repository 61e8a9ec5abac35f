"""The section of one name on one thread: its enter and its exit are all that a measurement consists of."""

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from training_profiler.recording.context_type import SectionBase
from training_profiler.recording.event_codes import LOADER
from training_profiler.recording.implementation import Clock as Clock
from training_profiler.recording.implementation import Implementation
from training_profiler.recording.timed_function import timed

F = TypeVar("F", bound=Callable[..., Any])
SectionLookup = Callable[[str], "Section"]  # returns the section of a name on the calling thread
Writers = Callable[[Clock], tuple[Any, Any, Any]]

FLUSH_AT_MOST = 2 * 2 * 8_192  # integers; with fewer, fixed costs of a drain show, with more, its memory
FLUSH_AT_LEAST = 2 * 2 * 16  # integers; a slow script is drained by time, not at every section

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
        "implementation",
        "is_fetching",
        "loader_id",
        "name",
        "on_clock_change",
        "owner",
        "rewrite_lock",
        "sections",
        "thread_id",
    )

    def __init__(self, name: str, owner: "weakref.ref[object]", implementation: Implementation) -> None:
        self.thread_id = next(_thread_ids)
        self.name = name
        self.owner = owner  # dead when the thread is; threading's idents are reused
        self.ident = threading.get_ident()
        self.implementation = implementation
        self.events = implementation.new_events()
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

    def __init__(self, name: str, begin: Callable[[], object], lookup: SectionLookup) -> None:
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


def make_section(
    name: str, code: int, buffer: ThreadBuffer, clock: Clock, flush: Callable[[], None], lookup: SectionLookup
) -> Section:
    """Return the section that appends to ``buffer`` and calls ``flush`` when that is full."""
    section_writers = buffer.implementation.section_writers
    return Section(name, lookup, lambda clock: section_writers(code, buffer, clock, flush), clock)
