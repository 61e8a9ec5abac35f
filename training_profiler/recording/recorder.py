"""The recorder: sections, steps, epochs and phases go in, batches of raw events come out."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter_ns
from typing import NamedTuple

from training_profiler.recording.dynamo import tracing_test
from training_profiler.recording.section import (
    FLUSH_AT_LEAST,
    FLUSH_AT_MOST,
    INFERRED,
    LOADER,
    SECTION_MASK,
    Clock,
    Section,
    ThreadBuffer,
    UnbegunSection,
    make_section,
)
from training_profiler.recording.section_names import SectionNames


def inside_now(
    buffer: ThreadBuffer, names: Mapping[int, str], before: Sequence[str] = ()
) -> tuple[tuple[str, ...], int | None]:
    """Return the sections that the thread of ``buffer`` is in, the outermost first, and when it entered the last.

    The thread is not waited for; at the very moment of a drain a section may be missing. None is unknown.

    Args:
        buffer: of the thread.
        names: of sections, by their number.
        before: those that it was in at the last drain.
    """
    events = buffer.events[:]
    stack: list[tuple[str, int | None, bool]] = [(name, None, False) for name in before]
    for at_ns, code in zip(events[::2], events[1::2], strict=False):
        number = abs(code)
        if number & LOADER:
            continue
        name = names.get(number & SECTION_MASK, "")
        if code > 0:
            stack.append((name, at_ns, bool(number & INFERRED)))
            continue
        for row in range(len(stack) - 1, -1, -1):
            if stack[row][0] == name:
                del stack[row]
                break
    by_hand = next((row for row, (_, _, is_inferred) in enumerate(stack) if not is_inferred), len(stack))
    kept = [section for row, section in enumerate(stack) if row <= by_hand or not section[2]]  # seams yield to the user
    return tuple(name for name, _, _ in kept), kept[-1][1] if kept else None


STEP_END, EPOCH_BEGIN, EPOCH_END, LOOP_BEGIN = range(4)  # kinds of marks
FLUSH_EVERY_NS = 2_000_000_000  # a thread without steps is drained about this often
MAX_MARKS = 2048  # steps kept one by one before a drain, or a flush, is asked for: bounds memory and journal lines


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
    ``mark``, ``drain``, ``discard``, ``backlog``, ``thread_serial``, ``buffer``, ``use_clock``, two hooks,
    ``on_full`` (a buffer wants draining) and ``on_first`` (a section is entered and nobody listens yet), and
    ``is_listened_to``, which a session sets.
    """

    def __init__(self, clock: Clock = perf_counter_ns, names: SectionNames | None = None) -> None:
        self.clock = clock
        self.names = names or SectionNames()
        self.marks: list[tuple[int, int]] = []
        # Later events may still be rewritten (loop_detection/pending_events.py) and are not drained.
        self.watermark_ns: int | None = None
        self.host_only: frozenset[str] = frozenset()  # names of sections that always bear this clock's times
        self.is_listened_to = True  # False: nobody does yet, and sections are entered without being recorded
        self.on_full: Callable[[], None] = self.discard
        self.on_first: Callable[[], None] = _nothing
        self.buffers: list[ThreadBuffer] = []
        self._local = _local_sections(self.buffers)
        self._marking_thread = 0
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
                return self._make(name)

        return profile_section

    def _make(self, name: str) -> Section:
        if callable(name):
            shown = getattr(name, "__name__", "f")
            raise TypeError(
                f'profile_section was given the function {shown!r} and no name; example: @profile_section("{shown}")'
            )
        if not self.is_listened_to:
            return UnbegunSection(name, self.on_first, self._begun_section, self.section)
        return self._kept_section(name)

    def _begun_section(self, name: str) -> Section | None:
        return self._kept_section(name) if self.is_listened_to else None

    def _kept_section(self, name: str) -> Section:
        """Return the section of a name that this thread uses for the first time."""
        buffer = self._local.buffer
        code = self.names.id_of(name)
        kept_name = self.names.names[code]
        clock = self.clock if kept_name in self.host_only else self.clock_of(buffer)
        section = make_section(kept_name, code, buffer, clock, self._full, self.section)
        if self.names.is_kept(name) and len(buffer.sections) < 2 * self.names.limit:
            buffer.sections[name] = section
        return section

    def _full(self) -> None:
        self.on_full()

    def mark(self, kind: int, at_ns: int | None = None) -> int:
        """Record a step's or an epoch's boundary, now or at a time not drained yet, and return its time in ns."""
        if at_ns is None:
            self._marking_thread = self._local.buffer.serial
        mark_ns = self.clock() if at_ns is None else at_ns
        for _, before_ns in self.marks[-1:]:  # a slice, for another thread may drain meanwhile
            mark_ns = max(mark_ns, before_ns)
        self.marks.append((kind, mark_ns))
        if self.watermark_ns is not None and kind != LOOP_BEGIN:  # somebody knows for sure what came before
            self.watermark_ns = mark_ns
        return mark_ns

    def drain(self) -> Batch:
        """Hand out what was recorded since the last drain and forget it.

        Times within a thread ascend; what threads record meanwhile is part of the next batch, so that
        events and marks of a batch end at one moment. All of the calling thread's own are part of this
        one, even by a clock that steps back.
        """
        until_ns = max([self.clock(), *self._local.buffer.events[-2:-1]])
        if self._marking_thread == self._local.buffer.serial:
            until_ns = max([until_ns, *(ns for _, ns in self.marks[-1:])])
        if self.watermark_ns is not None:
            until_ns = max(min(until_ns, self.watermark_ns), self._last_drain_ns)
        elapsed_ns = until_ns - self._last_drain_ns
        self._last_drain_ns = until_ns
        threads = []
        for buffer in list(self.buffers):
            is_alive = buffer.owner() is not None
            with buffer.rewriting:
                count = _count_until(buffer.events, until_ns)
                events = buffer.events[:count]
                del buffer.events[:count]
                is_alive |= bool(buffer.events)  # held back until the next time
            if elapsed_ns > 0:
                buffer.flush_at = min(FLUSH_AT_MOST, max(FLUSH_AT_LEAST, count * FLUSH_EVERY_NS // elapsed_ns))
            threads.append(ThreadEvents(buffer.serial, buffer.name, is_alive, events))
            if not is_alive:
                self.buffers.remove(buffer)
        count = len(self.marks)
        while count and self.marks[count - 1][1] > until_ns:
            count -= 1
        marks = self.marks[:count]
        del self.marks[:count]
        return Batch(until_ns, threads, marks)

    def discard(self) -> None:
        """Forget what was recorded; what ``on_full`` does while no session listens."""
        for buffer in list(self.buffers):
            del buffer.events[:]
            buffer.loader = 0  # it is to be noted anew
        del self.marks[:]

    def wait_for_first_section(self, on_first: Callable[[], None]) -> None:
        """Record nothing until a session listens; ``on_first`` is called when a section is entered before that."""
        self.is_listened_to = False
        self.on_first = on_first

    def listen(self, on_full: Callable[[], None]) -> None:
        """Record for a session from now on; ``on_full`` is called when a buffer should be drained."""
        self.discard()
        self.on_full = on_full
        self.is_listened_to = True

    def stop_listening(self) -> None:
        """Discard what is recorded from now on."""
        self.on_full = self.discard

    def limit_names(self, most: int) -> None:
        """Give at most so many section names a row of their own."""
        self.names.limit = most

    def move_watermark(self, to_ns: int | None) -> int | None:
        """Hold back what is later than ``to_ns``, or nothing if that is None; return the watermark before."""
        before_ns, self.watermark_ns = self.watermark_ns, to_ns
        return before_ns

    def backlog(self) -> int:
        """Return how many integers the calling thread has recorded since the last drain."""
        return len(self._local.buffer.events)

    def settle(self, until_ns: int) -> None:
        """Let go what is held back up to ``until_ns``: somebody knows for sure what it was."""
        if self.watermark_ns is not None:
            self.watermark_ns = until_ns

    def is_blocked_at(self, drained_ns: int) -> bool:
        """Return whether all that is not drained is held back, and can be for a while."""
        return self.watermark_ns is not None and self.watermark_ns <= drained_ns and self.backlog() <= 4 * FLUSH_AT_MOST

    def is_backed_up(self) -> bool:
        """Return whether the calling thread has marked or recorded enough to be drained."""
        return len(self.marks) > MAX_MARKS or self.backlog() > FLUSH_AT_MOST

    def keep_host_time(self, name: str) -> None:
        """Time the section ``name`` by the recorder's own clock on all threads."""
        self.host_only |= {name}

    def buffer(self) -> ThreadBuffer:
        """Return the calling thread's buffer."""
        return self._local.buffer

    def clock_of(self, buffer: ThreadBuffer) -> Clock:
        """Return the clock that tells the times of the events in ``buffer``."""
        return self.clock if buffer.clock is None else buffer.clock

    def use_clock(self, buffer: ThreadBuffer, clock: Clock | None) -> None:
        """Have ``clock`` tell the times of what is recorded in ``buffer`` from now on; None: the recorder's own.

        It is read once an event, right where that happens, so it can do there what belongs to the event.
        """
        buffer.clock = clock
        for section in list(buffer.sections.values()):
            if section.name not in self.host_only:
                section.use_clock(self.clock_of(buffer))
        if buffer.on_clock is not None:
            buffer.on_clock(self.clock_of(buffer))

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


def _count_until(events: list[int], until_ns: int) -> int:
    """Return how many integers of ``events`` stand for events up to ``until_ns``."""
    count = len(events)  # even at any moment: an event is appended in one piece
    while count and events[count - 2] > until_ns:
        count -= 2
    return count


def _nothing() -> None:
    pass
