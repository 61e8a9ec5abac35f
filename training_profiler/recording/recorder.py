"""The recorder: takes sections, steps and epochs, and hands out batches of raw events."""

import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import update_wrapper
from time import perf_counter_ns
from typing import NamedTuple

from training_profiler.base.sections import SectionNames
from training_profiler.recording.context_type import tracing_test
from training_profiler.recording.event_codes import LOOP_BEGIN, STEP_END, time_only
from training_profiler.recording.implementation import Implementation, best_implementation
from training_profiler.recording.section import (
    FLUSH_AT_LEAST,
    FLUSH_AT_MOST,
    Clock,
    Section,
    SessionStartingSection,
    ThreadBuffer,
    make_section,
)

FLUSH_EVERY_NS = 2_000_000_000  # a thread without steps is drained about this often
NO_LIMIT = 1 << 62  # of a number of steps
MAX_MARKS = 2048  # steps kept singly before a drain or a flush is requested; bounds memory and journal lines


class TrainingProgress:
    """How far the training is. The recorder counts its steps while the session has nothing to do at their ends.

    ``thread_id`` is the recorder's number of the thread whose time is the run's. A trainer that knows the tokens of its
    batches counts them here. ``is_awaited`` is whether the training has not begun, and nothing is written before that:
    the switch alone holds for every program of a shell. ``uses_api`` is whether the program measures itself, and has a
    report of whatever it does.
    """

    def __init__(self, thread_id: int = 0, is_awaited: bool = False) -> None:
        self.thread_id, self.is_awaited, self.uses_api = thread_id, is_awaited, False
        self.steps = self._tokens = self._drained_tokens = 0

    def end_step(self) -> int:
        """Count a step; return how many have ended."""
        self.steps += 1
        return self.steps

    def stop_waiting(self, uses_api: bool = False) -> None:
        """Note that the program trains, or that it calls the API."""
        self.is_awaited, self.uses_api = False, self.uses_api or uses_api

    def count_tokens(self, tokens: int) -> None:
        """Count tokens that the training has read."""
        self._tokens += tokens

    @property
    def counts_tokens(self) -> bool:
        """Whether a trainer counts the tokens."""
        return self._tokens > 0

    def drain_tokens(self) -> int | None:
        """Return the tokens since the last call; None if none are ever counted."""
        before, self._drained_tokens = self._drained_tokens, self._tokens
        return self._drained_tokens - before if self._drained_tokens else None

    def move_to(self, thread_id: int) -> None:
        """Attribute the run's time to another thread from now on."""
        self.thread_id = thread_id


class ThreadEvents(NamedTuple):
    """The events of one thread as time, code, time, code, ... (see ThreadBuffer)."""

    thread_id: int
    name: str
    is_alive: bool
    events: list[int]


class Batch(NamedTuple):
    """Everything recorded up to ``until_ns`` since the batch before."""

    until_ns: int
    threads: list[ThreadEvents]
    marks: list[int]  # time, kind, time, kind, ... of the boundaries of steps and epochs, in time order


class Recorder:
    """Takes events from any thread without waiting; ``drain`` hands them out.

    A session sets ``has_session`` and two hooks: ``on_full`` is called when a buffer wants to be drained, and
    ``on_first_section`` when a section is entered before a session exists.
    """

    def __init__(
        self,
        clock: Clock = perf_counter_ns,
        names: SectionNames | None = None,
        implementation: Implementation | None = None,
    ) -> None:
        self.implementation = implementation or best_implementation()
        self.clock = clock
        self.names = names or SectionNames()
        self.marks = self.implementation.new_events()  # as in Batch; a tuple for each step would set off collections
        self.watermark_ns: int | None = None  # later events may still be rewritten and are not drained
        self.quiet_end_ns = 0  # of the last step that ended without the session
        self.be_quiet(None)
        self.has_session = True  # False: sections are not recorded yet
        self.on_full: Callable[[], None] = self.discard
        self.on_first_section: Callable[[], object] = bool  # which does nothing
        self.buffers: list[ThreadBuffer] = []
        self._local = _local_sections(self.buffers, self.implementation)
        self._lookup = None if self.implementation.lookup is None else self.implementation.lookup(self._find)
        self._marking_thread = 0
        self._last_drain_ns = clock()
        self.section: Callable[[str], Section] = self._section_function()

    def _section_function(self) -> Callable[[str], Section]:
        local = self._local
        is_tracing: Callable[[], bool] | None  # None while it is known that dynamo traces nothing

        def replace(test: Callable[[], bool] | None) -> None:
            nonlocal is_tracing
            is_tracing = test

        def ask_dynamo(asks: bool) -> None:
            replace(tracing_test(replace) if asks else None)

        is_tracing = tracing_test(replace)
        self._ask_dynamo = ask_dynamo

        def profile_section(name: str) -> Section:
            """Return the section ``name``: a context manager, and a decorator of functions.

            Sections can nest and recurse, and each thread has its own. Inside ``torch.compile`` they
            disappear. Decorated generators are timed while they run, decorated async functions from
            call to return.

            Args:
                name: the section's name in reports; the diagnosis knows the names in PROFILING.md.

            Raises:
                TypeError: it decorates a function without a name.
            """
            if is_tracing is not None and is_tracing():
                return nullcontext()  # type: ignore[return-value]
            try:
                return local.sections[name]
            except (KeyError, TypeError):
                return self._make(name)

        function = profile_section
        if self._lookup is not None:
            find = self._lookup.find

            # Still a function of Python, because dynamo follows it to the nullcontext, and never sees the lookup.
            def profile_section_natively(name: str) -> Section:
                return nullcontext() if is_tracing is not None and is_tracing() else find(name)  # type: ignore[return-value]

            function = update_wrapper(profile_section_natively, profile_section)
            del function.__wrapped__
        # By this name others find it again, such as pickle.
        function.__qualname__ = "profile_section"
        function.__module__ = "training_profiler"
        return function

    def ask_dynamo(self, asks: bool) -> None:
        """Let each section ask dynamo whether it traces the caller, as at first; or let none, which saves a call.

        Without asking, a section must not be traced: ask again before dynamo traces anything.
        """
        self._ask_dynamo(asks)

    def _find(self, name: str) -> Section:
        """Return the section of a name for the lookup in C, which does not find it on this thread."""
        sections = self._local.sections
        if self._lookup is not None:
            self._lookup.use(sections)
        try:
            return sections[name]
        except (KeyError, TypeError):
            return self._make(name)

    def _make(self, name: str) -> Section:
        if callable(name):
            shown = getattr(name, "__name__", "f")
            raise TypeError(
                f'profile_section was given the function {shown!r} and no name; example: @profile_section("{shown}")'
            )
        if not self.has_session:
            return SessionStartingSection(name, self.on_first_section, self.section)
        return self._new_section(name)

    def own_section(self, key: str) -> Section:
        """Return a section of the profiler's, which no name of the user's reaches. It has the recorder's own clock."""
        return make_section(key, self.names.id_of(key), self._local.buffer, self.clock, self._full, self.own_section)

    def time_only_section(self, name: str) -> Section:
        """Return a section that adds time to one of ours on this thread and does not count."""
        buffer, code = self._local.buffer, time_only(self.names.id_of(name))
        return make_section(name, code, buffer, self.clock_of(buffer), self._full, self.section)

    def _new_section(self, name: str) -> Section:
        """Return the section of a name that this thread uses for the first time, and cache it."""
        buffer = self._local.buffer
        code = self.names.id_of_users(name)
        section = make_section(name, code, buffer, self.clock_of(buffer), self._full, self.section)
        if self.names.is_kept(code) and len(buffer.sections) < 2 * self.names.limit:
            buffer.sections[name] = section
        return section

    def _full(self) -> None:
        self.on_full()

    def mark(self, kind: int, at_ns: int | None = None, final_ns: int | None = None) -> int:
        """Record the boundary of a step or an epoch; return its time in ns.

        Args:
            kind: which boundary.
            at_ns: when it was, which is not drained yet; now by default.
            final_ns: hold back what is later, for the caller drains up to there first; nothing by default.
        """
        if at_ns is None:
            self._marking_thread = self._local.buffer.thread_id
        mark_ns = self.clock() if at_ns is None else at_ns
        before_ns = self.marks[-2:-1]  # a slice, because another thread may drain meanwhile
        if before_ns and before_ns[0] > mark_ns:
            mark_ns = before_ns[0]
        self.marks.extend((mark_ns, kind))
        if self.watermark_ns is not None and kind != LOOP_BEGIN:  # earlier events are final
            self.watermark_ns = mark_ns if final_ns is None else min(mark_ns, final_ns)
        return mark_ns

    def be_quiet(self, count: TrainingProgress | None, before: int = 0, until_ns: int = 0) -> None:
        """Let the session's steps end by ``ends_quietly``: it has nothing to do at their end. None: no longer.

        Args:
            count: what counts them.
            before: the number of the first step for which that does not hold.
            until_ns: the first time for which it does not.
        """
        self.step_count, self._quiet_before, self._quiet_until_ns = count, before, until_ns

    def ends_quietly(self, at_ns: int) -> bool:
        """End a step at ``at_ns`` if the session has nothing to do then; return whether that was done."""
        count = self.step_count
        if count is None or at_ns >= self._quiet_until_ns or count.steps + 1 >= self._quiet_before:
            return False
        before_ns = self.marks[-2:-1]  # a slice, because another thread may drain meanwhile
        if before_ns and before_ns[0] > at_ns:
            return False
        self.marks.extend((at_ns, STEP_END))
        if self.watermark_ns is not None:
            self.watermark_ns = at_ns
        self.quiet_end_ns = at_ns
        count.end_step()
        return True

    def drain(self, is_beside: bool = False) -> Batch:
        """Hand out and remove everything recorded since the last drain.

        Times within a thread ascend. Events and marks of a batch end at the same moment; what other threads record
        meanwhile goes into the next batch. All events of the calling thread are included, even if its clock steps
        back. A drain ``is_beside`` the training leaves it to recording threads how often they drain themselves: only
        they can query their device.
        """
        until_ns = max([self.clock(), *self._local.buffer.events[-2:-1]])
        if self._marking_thread == self._local.buffer.thread_id:
            until_ns = max([until_ns, *self.marks[-2:-1]])
        if self.watermark_ns is not None:
            until_ns = max(min(until_ns, self.watermark_ns), self._last_drain_ns)
        elapsed_ns = until_ns - self._last_drain_ns
        self._last_drain_ns = until_ns
        threads = []
        for buffer in list(self.buffers):
            is_alive = buffer.owner() is not None
            with buffer.rewrite_lock:
                count = _count_until(buffer.events, until_ns)
                events = buffer.events[:count]
                del buffer.events[:count]
                is_alive |= bool(buffer.events)  # they come with a later batch
            if elapsed_ns > 0 and not is_beside:
                buffer.flush_at = min(FLUSH_AT_MOST, max(FLUSH_AT_LEAST, count * FLUSH_EVERY_NS // elapsed_ns))
            threads.append(ThreadEvents(buffer.thread_id, buffer.name, is_alive, events))
            if not is_alive:
                self.buffers.remove(buffer)
                if self._lookup is not None:
                    self._lookup.drop(buffer.sections)
        count = _count_until(self.marks, until_ns)
        marks = self.marks[:count]
        del self.marks[:count]
        return Batch(until_ns, threads, marks)

    def peek(self) -> Batch:
        """Return what is recorded, events above the watermark included, and remove nothing."""
        until_ns = max(self.clock(), self._last_drain_ns)
        threads = []
        for buffer in list(self.buffers):
            with buffer.rewrite_lock:
                events = buffer.events[:]
            threads.append(ThreadEvents(buffer.thread_id, buffer.name, True, events[: _count_until(events, until_ns)]))
        marks = self.marks[:]
        return Batch(until_ns, threads, marks[: _count_until(marks, until_ns)])

    def discard(self) -> None:
        """Remove everything recorded; ``on_full`` before a session exists."""
        for buffer in list(self.buffers):
            del buffer.events[:]
            buffer.loader_id = 0  # so that it is recorded again
        del self.marks[:]

    def wait_for_first_section(self, on_first: Callable[[], object]) -> None:
        """Record nothing until a session listens; ``on_first`` is called when a section is entered before that."""
        self.has_session = False
        self.on_first_section = on_first

    def listen(self, on_full: Callable[[], None]) -> None:
        """Record for a session from now on; ``on_full`` is called when a buffer should be drained."""
        self.discard()
        self.be_quiet(None)
        self.on_full = on_full
        self.has_session = True

    def stop_listening(self) -> None:
        """Discard all events from now on."""
        self.be_quiet(None)
        self.on_full = self.discard

    def after_fork_in_child(self) -> None:
        """Renew the locks: a thread that the child does not have may have drained during the fork."""
        for buffer in self.buffers:
            buffer.rewrite_lock = threading.RLock()

    def limit_names(self, most: int) -> None:
        """Give at most so many section names a row of their own."""
        self.names.use_limit(most)

    def move_watermark(self, to_ns: int | None) -> int | None:
        """Hold back events later than ``to_ns``, or none if it is None; return the watermark before."""
        before_ns, self.watermark_ns = self.watermark_ns, to_ns
        return before_ns

    def backlog(self) -> int:
        """Return how many integers the calling thread has recorded since the last drain."""
        return len(self._local.buffer.events)

    def is_overfull(self) -> bool:
        """Return whether that is more than a buffer should hold even while its newest events are pending."""
        return self.backlog() > 4 * FLUSH_AT_MOST

    def release(self, until_ns: int) -> None:
        """Let events up to ``until_ns`` be drained: they are final."""
        if self.watermark_ns is not None:
            self.watermark_ns = until_ns

    def is_blocked_at(self, drained_ns: int) -> bool:
        """Return whether all undrained events are above the watermark, and the calling thread has room for more."""
        return self.watermark_ns is not None and self.watermark_ns <= drained_ns and not self.is_overfull()

    def is_backed_up(self) -> bool:
        """Return whether there are enough marks, or events of the calling thread, for a drain."""
        return len(self.marks) > 2 * MAX_MARKS or self.backlog() > FLUSH_AT_MOST

    def buffer(self) -> ThreadBuffer:
        """Return the calling thread's buffer."""
        return self._local.buffer

    def clock_of(self, buffer: ThreadBuffer) -> Clock:
        """Return the clock of the events in ``buffer``."""
        return self.clock if buffer.clock is None else buffer.clock

    def use_clock(self, buffer: ThreadBuffer, clock: Clock | None) -> None:
        """Use ``clock`` for later events in ``buffer``; None for the recorder's own.

        It is read once per event, at the event, so it can do work that belongs there.
        """
        if clock is buffer.clock:
            return
        buffer.clock = clock
        for section in list(buffer.sections.values()):
            section.use_clock(self.clock_of(buffer))
        if buffer.on_clock_change is not None:
            buffer.on_clock_change(self.clock_of(buffer))

    def thread_id(self) -> int:
        """Return the ``ThreadEvents.thread_id`` of the calling thread."""
        return self._local.buffer.thread_id


class _Alive:
    """Lives as long as the thread whose local storage holds it."""

    __slots__ = ("__weakref__",)


class _LocalSections(threading.local):
    buffer: ThreadBuffer
    sections: dict[object, Section]


def _local_sections(buffers: list[ThreadBuffer], implementation: Implementation) -> _LocalSections:
    class Local(_LocalSections):
        """The calling thread's sections, made when the thread first uses one."""

        def __init__(self) -> None:
            self.alive = _Alive()
            self.buffer = ThreadBuffer(threading.current_thread().name, weakref.ref(self.alive), implementation)
            self.sections = self.buffer.sections
            buffers.append(self.buffer)

    return Local()


def _count_until(events: list[int], until_ns: int) -> int:
    """Return how many integers of ``events``, or of marks, are of those up to ``until_ns``."""
    count = len(events)  # always even: an event is appended in one piece
    while count and events[count - 2] > until_ns:
        count -= 2
    return count
