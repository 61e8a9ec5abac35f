"""Computes the device time of a span from the device events at both of its ends."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.device.device_lanes import NS_PER_MS, DeviceLanes
from training_profiler.device.event_clock import DeviceClock, DeviceEvent

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_AHEAD: Final = 64  # unreached pairs; streams run in order, so later pairs are not reached either
MOST_STRETCHES: Final = 100  # intervals without stamps, kept for open spans
LEFT_OUT: Final = "left out to keep the cost low"
UNSEEN: Final = "began or ended where nothing could be noted"
OTHER_DEVICE: Final = "began on another device"
OUT_OF_ORDER: Final = "ended on a stream that was ahead of the one it began on"
UNFINISHED: Final = "the device had not come to their end when the run ended"
SWITCHED_OFF: Final = "device time was switched off"

AddDeviceTime = Callable[[int, int], None]  # (id of the section, ns on the device)


class _Pair(NamedTuple):
    """A span whose device time is not yet known: its section, the host's times, and the events at its ends."""

    id: int
    begin_ns: int
    end_ns: int
    begin: DeviceEvent
    end: DeviceEvent


class SpanPairing:
    """Device times of the spans of the training thread since ``since_ns``: known, pending or unmeasurable.

    Spans of the section ``host_only`` are ignored. After a change of the timing, counts continue from ``before``.
    """

    def __init__(
        self,
        clock: DeviceClock,
        since_ns: int,
        is_sync: bool = False,
        host_only: int = 0,
        before: "SpanPairing | None" = None,
    ) -> None:
        self.lanes = DeviceLanes(clock)
        self.spans: int = 0 if before is None else before.spans  # with a known device time
        self.unmeasured: Counter[str] = Counter() if before is None else before.unmeasured  # reason -> spans
        self.recorded = 0  # events recorded so far
        self._clock = clock
        self._since_ns = since_ns
        self._host_only = host_only
        self.is_sync = is_sync  # the device was waited for at both ends, so host and device time are equal
        self._known: dict[int, DeviceEvent] = {}  # by the host's time of the event
        self._pending: deque[_Pair] = deque()
        self._done: list[tuple[int, int]] = []
        self._until_ns = since_ns  # end of the previous drain

    def add(self, ids: Ints, begin_ns: Ints, end_ns: Ints, open_ns: Ints, until_ns: int) -> None:
        """Add spans that have ended, in any order.

        Args:
            ids: their sections.
            begin_ns: the host's times of their begins.
            end_ns: and of their ends.
            open_ns: begins of the spans that are still open.
            until_ns: later spans come with a later call.
        """
        self._read_stamps()
        is_since = (begin_ns >= self._since_ns) & (ids != self._host_only)
        if self._clock.error is not None:
            self._leave_out(SWITCHED_OFF, int(is_since.sum()))
        elif not self._known and not self.is_sync:
            was_off = self._was_off(begin_ns, end_ns)
            self._leave_out(LEFT_OUT, int((is_since & was_off).sum()))
            self._leave_out(UNSEEN, int((is_since & ~was_off).sum()))
        else:
            known, was_off = self._known.get, self._was_off(begin_ns, end_ns)
            spans = (array[is_since].tolist() for array in (ids, begin_ns, end_ns, was_off))
            for id, begin, end, is_left_out in zip(*spans, strict=True):
                self._add_span(id, begin, end, (known(begin), known(end)), LEFT_OUT if is_left_out else UNSEEN)
        self._release_stamps(set(open_ns.tolist()), until_ns)

    def _read_stamps(self) -> None:
        stamps = self._clock.stamps
        count = len(stamps)  # the training thread may add stamps meanwhile
        for ns, stamp in stamps[:count]:
            self.recorded += stamp.event is not None
            stamp.hold()
            if self._known.setdefault(ns, stamp) is not stamp:  # two events at one time share the first
                self._clock.give_back(stamp)
        del stamps[:count]

    def _was_off(self, begin_ns: Ints, end_ns: Ints) -> Bools:
        """Return which spans began or ended while stamps were left out."""
        found = np.zeros(len(begin_ns), np.bool_)
        for off_ns, on_ns in self._clock.off_ns:
            for at_ns in (begin_ns, end_ns):
                found |= (off_ns <= at_ns) & (at_ns <= on_ns)
        return found

    def _add_span(
        self, id: int, begin_ns: int, end_ns: int, stamps: tuple[DeviceEvent | None, DeviceEvent | None], why_none: str
    ) -> None:
        begin, end = stamps
        if self.is_sync and begin is None and end is None:
            self._done.append((id, end_ns - begin_ns))
        elif (begin and begin.why_not) or (end and end.why_not):
            self._leave_out((begin and begin.why_not) or (end and end.why_not) or "")
        elif begin is None or end is None:
            self._leave_out(why_none)
        elif begin.device != end.device:
            self._leave_out(OTHER_DEVICE)
        else:
            begin.hold()
            end.hold()
            self._pending.append(_Pair(id, begin_ns, end_ns, begin, end))

    def _leave_out(self, reason: str, spans: int = 1) -> None:
        if spans:
            self.unmeasured[reason] += spans

    def _release_stamps(self, open_ns: set[int], until_ns: int) -> None:
        """Release the stamps that no later span needs.

        A stamp may arrive before its event, so it is kept until the drain after the next.
        """
        for ns in [ns for ns in self._known if ns <= self._until_ns and ns not in open_ns]:
            self._clock.give_back(self._known.pop(ns))
        oldest_ns = min([until_ns, *open_ns])
        self._clock.off_ns[:] = [stretch for stretch in self._clock.off_ns if stretch[1] >= oldest_ns][-MOST_STRETCHES:]
        self._until_ns = until_ns

    @property
    def are_all_resolved(self) -> bool:
        """Whether the device has reached all added spans."""
        return not self._pending

    def resolve(self, add: AddDeviceTime) -> None:
        """Add the device times of the spans that the device has reached. Never waits."""
        for id, ns in self._done:
            add(id, ns)
        self.spans += len(self._done)
        self._done.clear()
        ahead: list[_Pair] = []
        while self._pending and len(ahead) < MOST_AHEAD:
            pair = self._pending.popleft()
            if pair.end.has_been_reached() and pair.begin.has_been_reached():
                self._measure(pair, add)
            else:
                ahead.append(pair)
        self._pending.extendleft(reversed(ahead))

    def _measure(self, pair: "_Pair", add: AddDeviceTime) -> None:
        id, begin_ns, end_ns, begin, end = pair
        assert begin.event is not None
        # ms, resolution about 0.5 us (CUDA Runtime API, cudaEventElapsedTime)
        ns = round(begin.event.elapsed_time(end.event) * NS_PER_MS)
        if ns < 0:
            self._leave_out(OUT_OF_ORDER)
        else:
            add(id, ns)
            self.spans += 1
            self.lanes.add(id, begin_ns, end_ns, begin, ns)
        self._clock.give_back(begin)
        self._clock.give_back(end)

    def give_up(self, reason: str) -> None:
        """Count the pending spans as not measured."""
        self._leave_out(reason, len(self._pending))
        self._pending.clear()
        self._known.clear()
        self.lanes.close()
