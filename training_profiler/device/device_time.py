"""Device time of one session: starts when the training uses an accelerator, and limits its own cost."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.base import backends
from training_profiler.base.backends import CUDA
from training_profiler.base.units import NS_PER_S
from training_profiler.device.device_lanes import NS_PER_MS, DeviceClock, DeviceEvent, DeviceLanes, PlacedSpan
from training_profiler.model.snapshot import PROFILER, DeviceTimingStats
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import Clock
from training_profiler.safety.fault_guard import Guard

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
        self.pending: deque[_Pair] = deque()  # spans that the device has not reached
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
        elif why_not := (begin and begin.why_not) or (end and end.why_not):
            self._leave_out(why_not)
        elif begin is None or end is None:
            self._leave_out(why_none)
        elif begin.device != end.device:
            self._leave_out(OTHER_DEVICE)
        else:
            begin.hold()
            end.hold()
            self.pending.append(_Pair(id, begin_ns, end_ns, begin, end))

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

    def resolve(self, add: AddDeviceTime) -> None:
        """Add the device times of the spans that the device has reached. Never waits."""
        for id, ns in self._done:
            add(id, ns)
        self.spans += len(self._done)
        self._done.clear()
        ahead: list[_Pair] = []
        while self.pending and len(ahead) < MOST_AHEAD:
            pair = self.pending.popleft()
            if pair.end.has_been_reached() and pair.begin.has_been_reached():
                self._measure(pair, add)
            else:
                ahead.append(pair)
        self.pending.extendleft(reversed(ahead))

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
        self._leave_out(reason, len(self.pending))
        self.pending.clear()
        self._known.clear()
        self.lanes.close()


PART: Final = "device time"
SHARE: Final = 0.002  # of the run's time that it may cost the training, on its thread or on the device
FREE_NS: Final = NS_PER_S // 100  # additional cost, so that a short run has device times
TRIES_NS: Final = NS_PER_S // 50  # shortest time between two searches for an accelerator
CALIBRATION_STAMPS: Final = 16
# What an event with timing costs the device, which begins nothing before it has written the time: 2.0 to 3.9 us between
# matrix products on an H200 (one without timing 0 to 1.9 us).
ON_DEVICE_NS: Final = 3_000
WAIT_AT_END_S: Final = 1.0  # longest wait for the device at the end of the run
POLL_S: Final = 0.001
# An event in the only queue waits for all work before it, so that communication and computation may no longer overlap
# (https://github.com/pytorch/pytorch/issues/143890).
ONE_QUEUE: Final = (
    "device time is off: with CUDA_DEVICE_MAX_CONNECTIONS=1 timed events may keep communication and computation from "
    "overlapping; timing=events records them all the same"
)


class DeviceTime:
    """Records device events around the sections of the training thread and attributes device time to them.

    Sections of other threads have host time only: their work may be on any stream.

    Args:
        accumulator: sends spans by ``send_spans``, has ``held_steps``, and takes times by ``add_device_time``.
        spend: called with the cost on the training thread, in ns.
        cuda_connections: queues of work to a CUDA device; None: as many as it has.
        cpu_clock: of the calling thread. On a busy machine the wall time of others would switch the stamps off.
    """

    def __init__(
        self,
        recorder: Recorder,
        accumulator: Any,
        guard: Guard,
        spend: Callable[[int], None],
        cuda_connections: int | None = None,
        cpu_clock: Clock = time.thread_time_ns,
    ) -> None:
        self._recorder = recorder
        self._accumulator = accumulator
        self._guard = guard
        self._spend, self._cpu_clock, self._cuda_connections = spend, cpu_clock, cuda_connections
        self._is_serial = False  # events were left out because work of all streams goes through one queue
        self._timing = "host"
        self._buffer = recorder.buffer()  # the training thread's
        self._clock: DeviceClock | None = None
        self._pairing: SpanPairing | None = None
        self._device: backends.Accelerator | None = None
        self._begin_ns = recorder.clock()
        self._since_ns = 0
        self._next_try_ns = 0
        self._stamp_ns = 0  # cost of one stamp
        self._paid = 0  # stamps whose cost was reported
        self._resolve_ns = 0
        self._has_failed = False
        self._is_ending = False

    def start(self, timing: str) -> None:
        """Time sections by ``timing``, one of settings.TIMINGS, from now on."""
        if timing != self._timing and self._clock is not None:
            self._release()
        self._timing = timing

    def sample_this_thread(self) -> None:
        """Stamp the sections of the calling thread. Called on the training thread."""
        buffer = self._recorder.buffer()
        if buffer is not self._buffer:
            clock = self._buffer.clock
            if clock is not None:
                self._recorder.use_clock(self._buffer, None)
                self._recorder.use_clock(buffer, clock)
            self._buffer = buffer

    def poll(self, now_ns: int) -> None:
        """Start if an accelerator is in use by now. Pause stamping if it costs too much."""
        if self._clock is None:
            if self._timing != "host" and now_ns >= self._next_try_ns and not self._has_failed:
                self._next_try_ns = now_ns + max(TRIES_NS, (now_ns - self._begin_ns) // 100)
                self._guarded(self._begin)
        elif self._clock.error is not None:
            self._guarded(self._clock.raise_error)
        elif self._timing != "sync":
            recorded = 0 if self._pairing is None else self._pairing.recorded
            cost_ns = (recorded + len(self._clock.stamps)) * (self._stamp_ns + ON_DEVICE_NS) + self._resolve_ns
            self._clock.switch(cost_ns <= FREE_NS + SHARE * (now_ns - self._since_ns), now_ns)

    def _begin(self) -> None:
        accelerator = backends.find_accelerator()
        if accelerator is None or accelerator.is_capturing() or self._recorder.buffer() is not self._buffer:
            return
        if accelerator.kind == CUDA.kind and self._cuda_connections == 1 and self._timing == "auto":
            self._is_serial, self._timing = True, "host"
            return
        clock = DeviceClock(accelerator, self._recorder.clock)
        is_sync = self._timing == "sync"
        if not is_sync:
            self._calibrate(clock)
        self._since_ns = self._recorder.clock()
        own_id = self._recorder.names.id_of(PROFILER)
        self._pairing = SpanPairing(clock, self._since_ns, is_sync, own_id, before=self._pairing)
        self._device, self._clock, self._paid = accelerator, clock, 0
        self._accumulator.send_spans(self._add)
        self._recorder.use_clock(self._buffer, clock.waiting() if is_sync else clock.stamping())

    def _calibrate(self, clock: DeviceClock) -> None:
        read, host_clock = clock.stamping(), self._recorder.clock
        for _ in range(2):  # the first round creates the events
            costs_ns = []
            for _ in range(CALIBRATION_STAMPS):
                begin_ns = host_clock()
                read()
                costs_ns.append(host_clock() - begin_ns)
            # The median ignores a stamp during which another thread held the GIL for 5 ms.
            self._stamp_ns = median_low(costs_ns)
            for _, stamp in clock.stamps:
                clock.give_back(stamp)
            clock.stamps.clear()
        clock.raise_error()

    def _add(self, *spans: object) -> None:
        pairs = self._pairing
        if pairs is not None:
            begin_ns = self._cpu_clock()
            self._guarded(lambda: pairs.add(*spans))  # type: ignore[arg-type]
            self._resolve_ns += self._cpu_clock() - begin_ns

    def resolve(self) -> None:
        """Add the device times known by now. At the end of the run wait a moment for the rest."""
        clock, pairs = self._clock, self._pairing
        if clock is None or pairs is None:
            if not self._is_ending and self._recorder.buffer() is self._buffer:
                self.poll(self._recorder.clock())
            return
        self._spend((pairs.recorded - self._paid) * self._stamp_ns)
        self._paid = pairs.recorded
        begin_ns = self._cpu_clock()
        if self._is_ending:
            self._guarded(lambda: self._resolve_rest(clock, pairs))
        elif self._recorder.buffer() is self._buffer:
            # Another thread cannot know whether the training thread captures a graph, and a query would break the
            # capture.
            self._guarded(lambda: self._resolve_reached(clock, pairs))
        self._resolve_ns += self._cpu_clock() - begin_ns
        self.poll(self._recorder.clock())

    def _resolve_reached(self, clock: DeviceClock, pairs: SpanPairing) -> None:
        if not clock.accelerator.is_capturing():
            pairs.lanes.hold(self._accumulator.held_steps())
            pairs.resolve(self._accumulator.add_device_time)

    def _resolve_rest(self, clock: DeviceClock, pairs: SpanPairing) -> None:
        end_s = time.monotonic() + WAIT_AT_END_S
        self._resolve_reached(clock, pairs)
        while pairs.pending and time.monotonic() < end_s and not clock.accelerator.is_capturing():
            time.sleep(POLL_S)
            pairs.resolve(self._accumulator.add_device_time)
        pairs.give_up(UNFINISHED)
        self._release()

    def close(self) -> None:
        """Stop stamping. The next ``resolve`` is the last."""
        self._is_ending = True
        self._recorder.use_clock(self._buffer, None)

    def _release(self) -> None:
        """Stop, and free the events."""
        if self._pairing is not None:
            self._pairing.give_up(SWITCHED_OFF)
        if self._clock is not None:
            self._clock.close()
        self._recorder.use_clock(self._buffer, None)
        self._accumulator.send_spans(None)
        self._clock = None

    def after_fork_in_child(self) -> None:
        """Discard all state in a forked child without a call of the parent's driver.

        Freeing an event calls the driver. So the events are kept for ever.
        """
        if self._clock is not None:
            self._clock.keep_for_ever()
            self._recorder.use_clock(self._buffer, None)
        self._timing = "host"
        self._accumulator.send_spans(None)
        self._clock = self._pairing = None

    def stats(self) -> DeviceTimingStats | None:
        """Return the device, the timing and the number of spans; None without device time."""
        if self._pairing is None or self._device is None:
            return None
        timing = "sync" if self._pairing.is_sync else "events"
        return DeviceTimingStats(
            self._device.kind, self._device.name, timing, self._pairing.spans, dict(self._pairing.unmeasured)
        )

    def lanes_of(self, step: int) -> Mapping[str, Sequence[PlacedSpan]]:
        """Return the spans of a step on each device, on the host's clock; nothing where none is known."""
        return {} if self._pairing is None else self._pairing.lanes.of_step(step)

    def notes(self) -> list[str]:
        """Return a sentence if device time is missing or slows the training down."""
        if self._is_serial:
            return [ONE_QUEUE]
        if self._timing not in ("events", "sync") or self._has_failed:
            return []
        if self._pairing is None:
            return [f"device time was asked for (timing={self._timing}), but the training used no accelerator"]
        if self._pairing.is_sync:
            return ["timing=sync: the device was waited for at both ends of every section, which slows a training down"]
        return []

    def _guarded(self, work: Callable[[], None]) -> None:
        def attempt() -> None:
            try:
                work()
            except Exception:
                self._has_failed = True
                if self._clock is not None:  # after a device error torch warns four times for each freed event
                    self._clock.keep_for_ever()
                self._release()
                raise

        self._guard(PART, attempt)
