"""The section of one name on one thread: the two calls that every measurement goes through."""

import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from itertools import repeat, starmap
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
Clock = Callable[[], int]
Sections = Callable[[str], "Section"]  # gives the section of a name on the calling thread

FLUSH_AT_MOST = 2 * 2 * 4096  # integers; benchmarks/section_cost.py: below, fixed costs show; above, caches miss
FLUSH_AT_LEAST = 2 * 2 * 16  # integers; a slow script is drained by time, and not at every section
MOST_UNCHECKED_EXITS = 63  # after which a section in a tight loop looks whether its buffer is full
INFERRED = 1 << 20  # added to the code of an event that a seam saw and the user did not write (instrument/)
TIME_ONLY = 1 << 21  # added to the code of a span that is time of its section, but no execution of it
SECTION_MASK = INFERRED - 1  # leaves the section's id of a positive code
DISCARDED = 1 << 24  # added to the code of an exit whose span shall not count, e.g. the fetch that ended a loader
LOADER = 1 << 26  # LOADER + k is no enter: from here on it is the batches of the data loader with serial k


_serials = itertools.count(1)


class ThreadBuffer:
    """The event stream of one thread: time, code, time, code, ...

    ``events`` holds two integers an event: nanoseconds of the clock, then the section's id for an
    enter and its negative for an exit (``LOADER`` and a loader's serial for neither); ``flush_at`` is the length
    that asks for a drain. ``sections`` are the sections made on this thread so far. ``clock`` tells the times of
    its events.
    """

    __slots__ = (
        "clock",
        "events",
        "flush_at",
        "is_fetching",
        "loader",
        "name",
        "on_clock",
        "owner",
        "rewriting",
        "sections",
        "serial",
    )

    def __init__(self, name: str, owner: "weakref.ref[object]") -> None:
        self.serial = next(_serials)
        self.name = name
        self.owner = owner  # dead when the thread is; thread idents are given out again, so they do not tell
        self.events: list[int] = []
        self.loader = 0  # serial of the data loader that batches come from, as noted last; 0 for none yet
        self.is_fetching = False  # inside of a fetch by hand, in which seams are to see no other loader
        self.flush_at = FLUSH_AT_LEAST
        self.sections: dict[object, Section] = {}
        self.clock: Clock | None = None  # None: the recorder's
        self.on_clock: Callable[[Clock], None] | None = None  # told of another clock: who else writes events here
        # Held while events are taken out, or changed after the fact; appending needs it not. Reentrant, for a
        # signal handler may drain in the middle of either.
        self.rewriting = threading.RLock()

    def comes_from(self, loader: int, now_ns: int) -> None:
        """Note that what follows is about batches of the loader with this serial, unless that is known; 0 is none."""
        if loader and loader != self.loader:
            self.loader = loader
            self.events.extend((now_ns, LOADER | loader))


class Section:
    """A named region of code: a context manager and a decorator, without state of its own.

    Being stateless makes one object enough for recursion and for any number of spans. ``make_section``
    gives each section a class of its own, for ``__enter__`` is looked up on the class.
    """

    __slots__ = ()
    name: str
    cancel: Callable[[], None]
    again: Sections
    use_clock: Callable[[Clock], None]  # have the events from now on bear the times of another clock

    def __enter__(self) -> object:
        raise NotImplementedError  # replaced in make_section

    def __exit__(self, *exception: object) -> None:
        raise NotImplementedError  # replaced in make_section

    def __call__(self, function: F) -> F:
        """Return ``function`` timed under this name.

        A generator function is timed while it runs, one span a resumption, not while its consumer does;
        an async function from call to return, its waits included.
        """
        if not callable(function):
            raise TypeError(
                f"profile_section({self.name!r}) decorates functions, not {function!r}; "
                f'example: @profile_section("forward_pass")'
            )
        return cast(F, _timed(function, self.again, self.name))


class UnbegunSection(Section):
    """A section of which nobody knows yet: the first to be entered begins the run.

    Not so the first to be made: a module full of decorated functions is no training, and neither is a
    worker that imports it.
    """

    __slots__ = ("_begin", "_make", "_section", "again", "name")

    def __init__(
        self, name: str, begin: Callable[[], None], make: Callable[[str], Section | None], again: Sections
    ) -> None:
        self.name = name
        self.again = again
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

    def cancel(self) -> None:
        """End the span without counting it."""
        if self._section is not None:
            self._section.cancel()


def event_writer(events: list[int], clock: Clock, code: int) -> Callable[[], None]:
    """Return a function that appends the clock's time and ``code``.

    A chain of C iterators does it in one call that neither a signal handler nor another thread can interrupt, and
    without a Python frame: 15 % of a section's cost (benchmarks/section_cost.py).
    """
    return map(events.extend, zip(starmap(clock, repeat(())), repeat(code), strict=False)).__next__


def make_section(
    name: str, code: int, buffer: ThreadBuffer, clock: Clock, flush: Callable[[], None], again: Sections
) -> Section:
    """Return the section that appends to ``buffer`` and calls ``flush`` when that is full."""
    body = {"__slots__": (), "name": name, "again": staticmethod(again)}
    kind = type("Section", (Section,), body | _calls(code, buffer, clock, flush))

    def use_clock(clock: Clock) -> None:
        for name, call in _calls(code, buffer, clock, flush).items():
            setattr(kind, name, call)

    kind.use_clock = staticmethod(use_clock)  # type: ignore[attr-defined]
    return cast(Section, kind())


def _calls(code: int, buffer: ThreadBuffer, clock: Clock, flush: Callable[[], None]) -> dict[str, Callable[..., None]]:
    """Return what a section's class has for what writes events."""
    events = buffer.events
    # A method-wrapper in a class does not bind, so it can be __enter__ itself.
    enter = event_writer(events, clock, code)
    leave = event_writer(events, clock, -code)
    cancel = event_writer(events, clock, -code - DISCARDED)

    def exits_before_check() -> Iterator[None]:
        unchecked = min(MOST_UNCHECKED_EXITS, buffer.flush_at // 256)
        # Such that the clock is not read once more to find out that these were all.
        times = starmap(clock, repeat((), unchecked))
        return map(events.extend, zip(times, repeat(-code), strict=False))

    shutdown = exits_before_check()

    def __exit__(self: Section, exc_type: object, exc: object, traceback: object) -> None:  # noqa: N807
        nonlocal shutdown
        for _ in shutdown:  # the loop's own step records the exit, at the cost of no call: another 8 %
            return
        leave()
        shutdown = exits_before_check()
        if len(events) > buffer.flush_at:
            flush()

    return {"__enter__": enter, "__exit__": __exit__, "cancel": cancel}


def _timed(function: Callable[..., Any], section: Sections, name: str) -> Callable[..., Any]:
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


def _timed_generator(function: Callable[..., Any], section: Sections, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator: Iterator[Any] = function(*args, **kwargs)
        return (yield from _TimedResumptions(generator, section, name))

    return timed


class _TimedResumptions:
    """A generator whose every resumption is one span; ``yield from`` forwards send, throw and close."""

    def __init__(self, generator: Any, section: Sections, name: str) -> None:
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


def _timed_async_generator(function: Callable[..., Any], section: Sections, name: str) -> Callable[..., Any]:
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
