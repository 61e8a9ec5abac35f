"""The section of one name on one thread: its enter and its exit are all that a measurement consists of."""

import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from itertools import repeat, starmap
from typing import Any, TypeVar, cast

from training_profiler.recording.event_codes import DISCARDED, LOADER

F = TypeVar("F", bound=Callable[..., Any])
Clock = Callable[[], int]
SectionLookup = Callable[[str], "Section"]  # returns the section of a name on the calling thread

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


class Section:
    """A named region of code: a context manager and a decorator.

    It has no state, so one object serves recursion and any number of spans. ``make_section`` gives each section a
    class of its own, because ``__enter__`` is looked up on the class.
    """

    __slots__ = ()
    name: str
    discard: Callable[[], None]  # ends the span without counting it
    lookup: SectionLookup
    use_clock: Callable[[Clock], None]  # takes the times of later events from another clock

    def __enter__(self) -> object:
        raise NotImplementedError  # replaced in make_section

    def __exit__(self, *exception: object) -> None:
        raise NotImplementedError  # replaced in make_section

    def __call__(self, function: F) -> F:
        """Return ``function`` timed under this name.

        A generator function is timed while it runs, one span per resumption, without its consumer's time. An async
        function is timed from call to return, including its waits.
        """
        if not callable(function):
            raise TypeError(
                f"profile_section({self.name!r}) decorates functions, not {function!r}; "
                f'example: @profile_section("forward_pass")'
            )
        return cast(F, _timed(function, self.lookup, self.name))


class SessionStartingSection(Section):
    """A section created before a session exists. Entering it, not creating it, starts the run.

    So importing a module with decorated functions starts nothing, in the program or in its workers.
    """

    __slots__ = ("_begin", "_make", "_section", "lookup", "name")

    def __init__(
        self, name: str, begin: Callable[[], None], make: Callable[[str], Section | None], lookup: SectionLookup
    ) -> None:
        self.name = name
        self.lookup = lookup
        self._begin = begin
        self._make = make
        self._section: Section | None = None

    def __enter__(self) -> object:
        self._begin()
        self._section = self._make(self.name)
        return None if self._section is None else self._section.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self._section is not None:
            self._section.__exit__(*exception)

    def discard(self) -> None:
        """End the span without counting it."""
        if self._section is not None:
            self._section.discard()


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
    body = {"__slots__": (), "name": name, "lookup": staticmethod(lookup)}
    kind = type("Section", (Section,), body | _calls(code, buffer, clock, flush))

    def use_clock(clock: Clock) -> None:
        for name, call in _calls(code, buffer, clock, flush).items():
            setattr(kind, name, call)

    kind.use_clock = staticmethod(use_clock)  # type: ignore[attr-defined]
    return cast(Section, kind())


def _calls(code: int, buffer: ThreadBuffer, clock: Clock, flush: Callable[[], None]) -> dict[str, Callable[..., None]]:
    """Return the methods of a section's class that write events."""
    events = buffer.events
    # A method-wrapper in a class does not bind, so it can be __enter__ itself.
    enter = event_writer(events, clock, code)
    leave = event_writer(events, clock, -code)
    discard = event_writer(events, clock, -code - DISCARDED)

    def exits_before_check() -> Iterator[None]:
        unchecked = min(MAX_UNCHECKED_EXITS, buffer.flush_at // 256)
        # The bound is on the clock's arguments, so the exhausted iterator does not read the clock once more.
        times = starmap(clock, repeat((), unchecked))
        return map(events.extend, zip(times, repeat(-code), strict=False))

    unchecked_exits = exits_before_check()

    def __exit__(self: Section, exc_type: object, exc: object, traceback: object) -> None:  # noqa: N807
        nonlocal unchecked_exits
        for _ in unchecked_exits:  # the loop itself records the exit without a call, which saves another 8 %
            return
        leave()
        unchecked_exits = exits_before_check()
        if len(events) > buffer.flush_at:
            flush()

    return {"__enter__": enter, "__exit__": __exit__, "discard": discard}


def _timed(function: Callable[..., Any], section: SectionLookup, name: str) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(function):
        return _timed_async_generator(function, section, name)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
            with section(name):
                return await cast(Awaitable[Any], function(*args, **kwargs))

        return timed_coroutine
    if inspect.isgeneratorfunction(function):
        return _timed_generator(function, section, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with section(name):
            return function(*args, **kwargs)

    return timed


def _timed_generator(function: Callable[..., Any], section: SectionLookup, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator: Iterator[Any] = function(*args, **kwargs)
        return (yield from _TimedResumptions(generator, section, name))

    return timed


class _TimedResumptions:
    """A generator of which each resumption is one span; ``yield from`` forwards send, throw and close."""

    def __init__(self, generator: Any, section: SectionLookup, name: str) -> None:
        self._generator = generator
        self._section = section
        self._name = name

    def __iter__(self) -> "_TimedResumptions":
        return self

    def __next__(self) -> Any:
        with self._section(self._name):
            return next(self._generator)

    def send(self, value: Any) -> Any:
        with self._section(self._name):
            return self._generator.send(value)

    def throw(self, *exception: Any) -> Any:
        with self._section(self._name):
            return self._generator.throw(*exception)

    def close(self) -> None:
        self._generator.close()


def _timed_async_generator(function: Callable[..., Any], section: SectionLookup, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        resumption = generator.asend(None)
        try:
            while True:
                with section(name):
                    try:
                        value = await resumption
                    except StopAsyncIteration:
                        return
                try:
                    resumption = generator.asend((yield value))
                except Exception as error:  # thrown in by athrow
                    resumption = generator.athrow(error)
        finally:
            await generator.aclose()

    return timed
