"""The training thread's event stream, of which the latest part can still be rewritten.

What a fetch or a forward pass was for often shows only at the next event: a batch whose forward pass has no
gradient was one of validation. The recorder hands out nothing later than ``hold``.
"""

from collections.abc import Callable

from training_profiler.recording.recorder import LOOP_BEGIN, Recorder
from training_profiler.recording.section import DISCARDED, FLUSH_AT_MOST, Clock, ThreadBuffer, event_writer

NS_PER_DRAIN = 1_000_000_000  # while an evaluation goes on and no step ends
MOST_HELD = 1 << 16  # integers of events kept back; beyond it the best guess has to do


class PendingEvents:
    """Appends to the calling thread's events, and changes what was appended before.

    Operations on the end of the list need no lock, for others take events only from its beginning.
    """

    __slots__ = ("_buffer", "_next_drain_ns", "_recorder", "clock", "events", "host_clock", "on_clock", "step_end_ns")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._buffer = recorder.buffer()
        self.events = self._buffer.events
        self.clock = recorder.clock_of(self._buffer)  # read once an event: it may do more than tell the time
        self.host_clock = recorder.clock
        self.on_clock: Callable[[], None] = lambda: None  # makes anew what ``writer`` returned
        self._buffer.on_clock = self._use_clock
        self.step_end_ns: Callable[[], int | None] = lambda: None  # where a step ends that is still to be marked
        self._next_drain_ns = self.host_clock() + NS_PER_DRAIN

    def _use_clock(self, clock: Clock) -> None:
        self.clock = clock
        self.on_clock()

    def thread_buffer(self) -> ThreadBuffer:
        """Return what the events are part of."""
        return self._buffer

    def writer(self, code: int) -> Callable[[], None]:
        """Return what does as ``note(code)`` without a Python frame, for what happens in every step."""
        return event_writer(self.events, self.clock, code)

    def note(self, code: int) -> int:
        """Append an event and return its time in ns."""
        now_ns = self.clock()
        self.events.extend((now_ns, code))
        return now_ns

    def note_span(self, begin_ns: int, code: int) -> None:
        """Append a span in which nothing else was noted, from ``begin_ns`` until now."""
        self.events.extend((begin_ns, code, self.clock(), -code))

    def ends_with(self, code: int) -> bool:
        """Return whether the last event is ``code``."""
        return bool(self.events) and self.events[-1] == code

    def take_back(self) -> None:
        """Remove the last event."""
        del self.events[-2:]

    def cancel(self, code: int) -> None:
        """End the span of ``code`` without counting it; its time falls to what encloses it."""
        if self.ends_with(code):
            self.take_back()
        else:
            self.note(-code - DISCARDED)

    def remove(self, at_ns: int, code: int) -> None:
        """Remove the enter ``code`` at ``at_ns``; where it was handed out already, cancel its span."""
        with self._buffer.rewriting:
            at = self._find(at_ns, (code,))
            if self._is_at(at, at_ns):
                del self.events[at : at + 2]
                return
        self.note(-code - DISCARDED)

    def insert_before(self, at_ns: int, firsts: tuple[int, ...], code: int) -> None:
        """Insert an event at ``at_ns``, right before the first of that time that is one of ``firsts``."""
        with self._buffer.rewriting:
            at = self._find(at_ns, firsts)
            self.events[at:at] = (at_ns, code)

    def insert_exit(self, at_ns: int, code: int) -> None:
        """Insert the exit of ``code`` at ``at_ns``, after what ended and before what began at that time."""
        with self._buffer.rewriting:
            at = self._index(at_ns + 1)
            # A clock may stand still for a moment, so that what comes next bears the same time.
            while self._is_at(at - 2, at_ns) and self.events[at - 1] > 0 and self.events[at - 1] != code:
                at -= 2
            self.events[at:at] = (at_ns, -code)

    def change(self, from_ns: int, codes: dict[int, int]) -> None:
        """Give events from ``from_ns`` on other codes."""
        with self._buffer.rewriting:
            for at in range(self._index(from_ns) + 1, len(self.events), 2):
                self.events[at] = codes.get(self.events[at], self.events[at])

    def recode_last(self, old: int, new: int) -> None:
        """Give the last event of code ``old`` the code ``new``; where it was handed out already, do nothing."""
        with self._buffer.rewriting:
            for at in range(len(self.events) - 1, 0, -2):
                if self.events[at] == old:
                    self.events[at] = new
                    return

    def remove_since(self, from_ns: int, first: int, codes: set[int]) -> None:
        """Remove the events of these codes that come after the event ``first`` at ``from_ns``."""
        with self._buffer.rewriting:
            at = self._find(from_ns, (first,))
            at += 2 if self._is_at(at, from_ns) else 0
            kept: list[int] = []
            for i in range(at, len(self.events), 2):
                if self.events[i + 1] not in codes:
                    kept += self.events[i : i + 2]
            self.events[at:] = kept

    def hold(self, until_ns: int) -> None:
        """Let the recorder hand out what is not later than ``until_ns``, and have it do so now and then.

        What follows the end of a step that is still to be marked stays here with it, unless that becomes too long.
        """
        step_end_ns = self.step_end_ns()
        if step_end_ns is not None and not self.is_too_long():
            until_ns = min(until_ns, step_end_ns)
        self._recorder.watermark_ns = until_ns
        if until_ns >= self._next_drain_ns or len(self.events) > FLUSH_AT_MOST:
            self._next_drain_ns = until_ns + NS_PER_DRAIN
            self._recorder.on_full()

    def begin_loop(self, at_ns: int) -> int:
        """Mark that the training loop began at ``at_ns``, or at what was handed out last, and return when."""
        return self._recorder.mark(LOOP_BEGIN, max(at_ns, self._recorder.watermark_ns or 0))

    def is_too_long(self) -> bool:
        """Return whether more is held back than may be."""
        return len(self.events) > MOST_HELD

    def _index(self, at_ns: int) -> int:
        """Return the index of the first event that is not before ``at_ns``."""
        at = len(self.events)
        while at and self.events[at - 2] >= at_ns:
            at -= 2
        return at

    def _find(self, at_ns: int, codes: tuple[int, ...]) -> int:
        """Return the index of the first event at ``at_ns`` of these codes; of the first that is later without any."""
        at = self._index(at_ns)
        while self._is_at(at, at_ns) and self.events[at + 1] not in codes:
            at += 2
        return at

    def _is_at(self, at: int, at_ns: int) -> bool:
        return 0 <= at < len(self.events) and self.events[at] == at_ns
