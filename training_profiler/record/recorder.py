"""The recorder: sections, steps, epochs and phases go in, batches of raw events come out."""

import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter_ns
from typing import NamedTuple

from training_profiler.record.compiling import tracing_test
from training_profiler.record.names import SectionNames
from training_profiler.record.section import (
    FLUSH_AT_LEAST,
    FLUSH_AT_MOST,
    Clock,
    Section,
    ThreadBuffer,
    make_section,
)

STEP_END, EPOCH_BEGIN, EPOCH_END = range(3)  # kinds of marks
FLUSH_EVERY_NS = 2_000_000_000  # a thread without steps is drained about this often
MAX_MARKS = 4096  # marks kept before a drain is asked for: bounds the memory of steps without sections


class ThreadEvents(NamedTuple):
    """What one thread recorded: ``events`` as time, code, time, code, ... (see ThreadBuffer)."""

    serial: int
    name: str
    is_alive: bool
    events: list[int]


class Batch(NamedTuple):
    """Everything recorded up to ``until_ns`` and not handed out before."""

    until_ns: int
    threads: list[ThreadEvents]
    marks: list[tuple[int, int]]  # (kind, ns), in time order


class Recorder:
    """Takes events from any thread without waiting; hands them out by ``drain``.

    This is the interface behind which another recorder, e.g. a compiled one, could stand: ``section``,
    ``mark``, ``drain``, ``discard``, ``thread_serial``, and two hooks that a session sets: ``on_full``
    (a buffer wants draining) and ``on_first`` (a thread uses a name for the first time).
    """

    def __init__(self, clock: Clock = perf_counter_ns, names: SectionNames | None = None) -> None:
        self.clock = clock
        self.names = names or SectionNames()
        self.marks: list[tuple[int, int]] = []
        self.on_full: Callable[[], None] = self.discard
        self.on_first: Callable[[], None] = _nothing
        self.buffers: list[ThreadBuffer] = []
        self._local = _local_sections(self.buffers)
        self._last_drain_ns = clock()
        self.section: Callable[[str], Section] = self._section_function()

    def _section_function(self) -> Callable[[str], Section]:
        local = self._local
        is_tracing: Callable[[], bool]

        def settle(test: Callable[[], bool]) -> None:
            nonlocal is_tracing
            is_tracing = test

        is_tracing = tracing_test(settle)

        def profile_section(name: str) -> Section:
            """Return the section ``name``: a context manager, and a decorator of functions.

            Sections nest, recurse and run on many threads; each thread's are its own. Inside of
            ``torch.compile`` they vanish. Decorated generators are timed while they run, decorated
            async functions from call to return.

            Args:
                name: what reports call it; the names of PROFILING.md mean something to the diagnosis.

            Raises:
                TypeError: it decorates a function and the name was forgotten.
            """
            if is_tracing():
                return nullcontext()  # type: ignore[return-value]
            try:
                return local.sections[name]
            except (KeyError, TypeError):
                return self._make(name, local.buffer)

        return profile_section

    def _make(self, name: object, buffer: ThreadBuffer) -> Section:
        if callable(name):
            shown = getattr(name, "__name__", "f")
            raise TypeError(
                f'profile_section was given the function {shown!r} and no name; example: @profile_section("{shown}")'
            )
        self.on_first()  # also where a process that must stay silent learns it
        code = self.names.id_of(name)
        kept_name = self.names.names[code]
        section = make_section(kept_name, code, buffer, self.clock, self._full, self.section)
        if self.names.is_kept(name) and len(buffer.sections) < 2 * self.names.limit:
            buffer.sections[name] = section
        return section

    def _full(self) -> None:
        self.on_full()

    def mark(self, kind: int) -> int:
        """Record a step's or an epoch's boundary and return its time in ns."""
        now_ns = self.clock()
        self.marks.append((kind, now_ns))
        return now_ns

    def drain(self) -> Batch:
        """Hand out what was recorded since the last drain and forget it.

        Times within a thread ascend; a thread that records meanwhile loses nothing, what it adds
        is part of the next batch.
        """
        until_ns = self.clock()
        elapsed_ns = until_ns - self._last_drain_ns
        self._last_drain_ns = until_ns
        threads = []
        for buffer in list(self.buffers):
            is_alive = buffer.owner() is not None
            count = len(buffer.events)  # even at any moment: an event is appended in one piece
            events = buffer.events[:count]
            del buffer.events[:count]
            if elapsed_ns > 0:
                buffer.flush_at = min(FLUSH_AT_MOST, max(FLUSH_AT_LEAST, count * FLUSH_EVERY_NS // elapsed_ns))
            threads.append(ThreadEvents(buffer.serial, buffer.name, is_alive, events))
            if not is_alive:
                self.buffers.remove(buffer)
        count = len(self.marks)
        marks = self.marks[:count]
        del self.marks[:count]
        return Batch(until_ns, threads, marks)

    def discard(self) -> None:
        """Forget what was recorded; what ``on_full`` does while no session listens."""
        for buffer in list(self.buffers):
            del buffer.events[:]
        del self.marks[:]

    def thread_serial(self) -> int:
        """Return the number that ``ThreadEvents.serial`` gives the calling thread."""
        return self._local.buffer.serial


class _Alive:
    """Lives as long as the thread whose local storage holds it."""

    __slots__ = ("__weakref__",)


class _LocalSections(threading.local):
    buffer: ThreadBuffer
    sections: dict[object, Section]


def _local_sections(buffers: list[ThreadBuffer]) -> _LocalSections:
    class Local(_LocalSections):
        """The calling thread's sections; made when a thread first asks."""

        def __init__(self) -> None:
            self.alive = _Alive()
            self.buffer = ThreadBuffer(threading.current_thread().name, weakref.ref(self.alive))
            self.sections = self.buffer.sections
            buffers.append(self.buffer)

    return Local()


def _nothing() -> None:
    pass
