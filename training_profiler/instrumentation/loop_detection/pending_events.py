"""The training thread's event stream. Its latest part can still be rewritten.

The purpose of a fetch or a forward pass often shows only at the next event: a batch whose forward pass has no gradient
was a validation batch. The recorder hands out nothing later than its watermark, which ``release`` moves.
"""

import functools
from collections.abc import Callable, Container, Iterator

from training_profiler.base import sections
from training_profiler.base.sections import SectionNames
from training_profiler.recording.event_codes import INFERRED, LOADER, LOOP_BEGIN, discarded_exit, time_only
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import FLUSH_AT_MOST, Clock

NS_PER_DRAIN = 1_000_000_000  # in an evaluation, in which no step ends
MAX_PENDING = 1 << 16  # integers; with more, the best guess has to do


class SectionCodes:
    """Codes of the enters that patches record; an exit has the negative code."""

    def __init__(self, names: SectionNames) -> None:
        self.of = code = functools.cache(lambda name: names.id_of(name) | INFERRED)
        self.data_loading = code(sections.DATA_LOADING)
        self.first_fetch = code(sections.FIRST_FETCH)
        self.worker_start = code(sections.WORKER_START)
        self.data_transfer = code(sections.DATA_TRANSFER)
        self.forward = code(sections.FORWARD_PASS)
        self.no_grad = code(sections.FORWARD_WITHOUT_GRAD)
        self.rollout = code(sections.ROLLOUT)
        self.backward = code(sections.BACKWARD_PASS)
        self.optimizer = code(sections.OPTIMIZER_STEP)
        self.replay = code(sections.GRAPH_REPLAY)
        self.metrics = code(sections.METRICS_COMPUTATION)
        self.averaging = code(sections.EMA_UPDATE)
        self.checkpoint = code(sections.CHECKPOINTING)
        self.synchronization = code(sections.SYNCHRONIZATION)
        self.validation = code(sections.VALIDATION_EPOCH)
        self.codes_in_evaluation = {
            sign * change(self.no_grad): sign * change(self.forward) for sign in (1, -1) for change in (int, time_only)
        }


def either(code: int) -> tuple[int, int]:
    """Return the codes of a span's enter: of one that counts, and of one that only adds time."""
    return code, time_only(code)


class PendingEvents:
    """Appends to the calling thread's events, and changes events appended before.

    Operations on the end of the list need no lock, because other threads remove events only from its beginning.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.buffer = recorder.buffer()
        self.events = self.buffer.events
        self.clock = recorder.clock_of(self.buffer)  # read once per event: it may do more than return the time
        self.host_clock = recorder.clock
        self.buffer.on_clock_change = self._use_clock
        self._on_clock_change: Callable[[], None] = lambda: None
        self.step_end_ns: Callable[[], int | None] = lambda: None  # end of a step that is not marked yet
        self._next_drain_ns = self.host_clock() + NS_PER_DRAIN

    def _use_clock(self, clock: Clock) -> None:
        self.clock = clock
        self._on_clock_change()

    def follow_clock(self, do: Callable[[], None]) -> None:
        """Call ``do`` now, and whenever the clock is another one."""
        self._on_clock_change = do
        do()

    def writer(self, code: int) -> Callable[[], None]:
        """Return a fast equivalent of ``record(code)`` with the clock of now, by which C records."""
        return self.buffer.implementation.event_writer(self.events, self.clock, code)

    def record(self, code: int) -> int:
        """Append an event and return its time in ns."""
        now_ns = self.clock()
        self.events.extend((now_ns, code))
        return now_ns

    def ends_with(self, code: int) -> bool:
        """Return whether the last event is ``code``."""
        return bool(self.events) and self.events[-1] == code

    def remove_last(self, code: int) -> bool:
        """Remove the last event if it is ``code``; return whether it was."""
        if self.ends_with(code):
            del self.events[-2:]
            return True
        return False

    def discard_span(self, code: int) -> None:
        """End the span of ``code`` without counting it; its time goes to the enclosing section."""
        if not self.remove_last(code):
            self.record(discarded_exit(code))

    def remove(self, at_ns: int, code: int) -> None:
        """Remove the enter ``code`` at ``at_ns``. If it was drained already, end its span without counting it."""
        with self.buffer.rewrite_lock:
            at = self._find(at_ns, (code,))
            if self._is_at(at, at_ns):
                del self.events[at : at + 2]
                return
        self.record(discarded_exit(code))

    def insert_before(self, at_ns: int, firsts: tuple[int, ...], code: int) -> None:
        """Insert an event at ``at_ns``, right before the first event of that time that is one of ``firsts``."""
        with self.buffer.rewrite_lock:
            at = self._find(at_ns, firsts)
            self.events[at:at] = (at_ns, code)

    def insert_exit(self, at_ns: int, code: int) -> None:
        """Insert the exit of ``code`` at ``at_ns``, after the exits and before the enters of that time."""
        with self.buffer.rewrite_lock:
            at = self._index(at_ns + 1)
            # A coarse clock may give the next enter the same time.
            while self._is_at(at - 2, at_ns) and self.events[at - 1] > 0 and self.events[at - 1] != code:
                at -= 2
            self.events[at:at] = (at_ns, -code)

    def recode(self, from_ns: int, codes: dict[int, int]) -> None:
        """Replace the codes of all events since ``from_ns`` by this table."""
        with self.buffer.rewrite_lock:
            for at in range(self._index(from_ns) + 1, len(self.events), 2):
                self.events[at : at + 1] = (codes.get(self.events[at], self.events[at]),)

    def recode_last(self, old: int, new: int) -> None:
        """Give the last event of code ``old`` the code ``new``; do nothing if it was drained already."""
        with self.buffer.rewrite_lock:
            for at in range(len(self.events) - 1, 0, -2):
                if self.events[at] == old:
                    self.events[at : at + 1] = (new,)
                    return

    def remove_since(self, from_ns: int, first: int, codes: set[int]) -> None:
        """Remove events of these codes that come after the event ``first`` at ``from_ns``."""
        with self.buffer.rewrite_lock:
            at = self._find(from_ns, (first,))
            at += 2 if self._is_at(at, from_ns) else 0
            later = (self.events[i : i + 2] for i in range(at, len(self.events), 2))
            self.events[at:] = [value for event in later if event[1] not in codes for value in event]

    def latest_first(self) -> Iterator[tuple[int, int]]:
        """Return (ns, code) of all events, the latest first."""
        events = self.events
        return ((events[at - 1], events[at]) for at in range(len(events) - 1, 0, -2))

    def spans_since(self, from_ns: int, code: int, begins: Container[int] | None = None) -> tuple[int, int]:
        """Return the number and the time in ns of the spans of ``code`` since ``from_ns``, which do not overlap.

        With ``begins``, only spans that begin at these times.
        """
        count, spent_ns, begin_ns = 0, 0, 0
        with self.buffer.rewrite_lock:
            for at in range(self._index(from_ns), len(self.events), 2):
                at_ns, found = self.events[at : at + 2]
                if found == code and (begins is None or at_ns in begins):
                    begin_ns = at_ns
                elif found == -code and begin_ns:
                    count, spent_ns, begin_ns = count + 1, spent_ns + at_ns - begin_ns, 0
        return count, spent_ns

    def first_after(self, last: int, codes: Container[int]) -> int:
        """Return the time of the first event of these codes after the last event ``last``, or of that; 0 without it."""
        found_ns = 0
        for at_ns, code in self.latest_first():
            if code == last:
                return found_ns or at_ns
            found_ns = at_ns if code in codes else found_ns
        return 0

    def first_since(self, from_ns: int, codes: Container[int]) -> int:
        """Return the time of the first event of these codes since ``from_ns``; 0 without any."""
        found = range(self._index(from_ns), len(self.events), 2)
        return next((self.events[at] for at in found if self.events[at + 1] in codes), 0)

    def with_spans_before(self, at_ns: int, first: int, codes: tuple[int, ...]) -> int:
        """Return when the nested spans of these codes began, outermost first, that end right before ``first``.

        ``first`` is an event at ``at_ns``, or one that would be recorded then. Without the spans, return ``at_ns``.
        """
        with self.buffer.rewrite_lock:
            events, at = self.events, self._find(at_ns, (first,))
            at -= 2 * (at > 1 and events[at - 1] > LOADER)  # the loader of what follows
            if list(events[max(0, at - 2 * len(codes)) + 1 : at : 2]) != [-code for code in reversed(codes)]:
                return at_ns
            return next((events[i - 1] for i in range(at - 1, 0, -2) if events[i] == codes[0]), at_ns)

    def around(self, begin_ns: int, end_ns: int, codes: Container[int]) -> tuple[int, int]:
        """Return when the span of these codes began that is open at ``begin_ns``, and when the one at ``end_ns`` ended.

        Calls that are one forward pass are one span, so a call may begin and end within it.
        """
        ended_ns = end_ns
        for at_ns, code in self.latest_first():
            if at_ns >= end_ns:
                ended_ns = at_ns if -code in codes else ended_ns
            elif code in codes and at_ns <= begin_ns:
                return at_ns, ended_ns
        return begin_ns, ended_ns

    def release(self, until_ns: int) -> None:
        """Let the recorder hand out events up to ``until_ns``, and request a drain now and then.

        Events after the end of an unmarked step are not released with it, unless there are too many.
        """
        step_end_ns = self.step_end_ns()
        if step_end_ns is not None and len(self.events) <= MAX_PENDING:
            until_ns = min(until_ns, step_end_ns)
        self._recorder.watermark_ns = until_ns
        if until_ns >= self._next_drain_ns or len(self.events) > FLUSH_AT_MOST:
            self._next_drain_ns = until_ns + NS_PER_DRAIN
            self._recorder.on_full()

    def is_held_back(self, from_ns: int) -> bool:
        """Return whether no event since ``from_ns`` was handed out."""
        watermark_ns = self._recorder.watermark_ns
        return watermark_ns is not None and watermark_ns <= from_ns

    def begin_loop(self, at_ns: int) -> int:
        """Mark that the training loop began at ``at_ns``, or at the watermark if that is later; return the time."""
        return self._recorder.mark(LOOP_BEGIN, max(at_ns, self._recorder.watermark_ns or 0))

    def _index(self, at_ns: int) -> int:
        """Return the index of the first event that is not before ``at_ns``."""
        at = len(self.events)
        while at and self.events[at - 2] >= at_ns:
            at -= 2
        return at

    def _find(self, at_ns: int, codes: tuple[int, ...]) -> int:
        """Return the index of the first event of these codes at ``at_ns``, or else of the first later event."""
        at = self._index(at_ns)
        while self._is_at(at, at_ns) and self.events[at + 1] not in codes:
            at += 2
        return at

    def _is_at(self, at: int, at_ns: int) -> bool:
        return 0 <= at < len(self.events) and self.events[at] == at_ns
