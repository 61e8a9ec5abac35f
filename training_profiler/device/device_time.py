"""Device time of one session: starts when the training uses an accelerator, and limits its own cost."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from typing import Final, Protocol

from training_profiler.base.units import NS_PER_S
from training_profiler.device.device_lanes import HeldStep, PlacedSpan
from training_profiler.device.event_clock import DeviceClock
from training_profiler.device.span_pairing import SWITCHED_OFF, UNFINISHED, Ints, SpanPairing
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import Clock
from training_profiler.safety.fault_guard import Guard
from training_profiler.snapshot.snapshot import PROFILER, DeviceTimingStats
from training_profiler.tables import backends
from training_profiler.tables.backends import CUDA

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


class SpanTotals(Protocol):
    """The sums that device time is added to."""

    def send_spans(self, to: Callable[[Ints, Ints, Ints, Ints, int], None] | None) -> None:
        """Call ``to`` with all spans that count for averages from now on. None stops it."""

    def add_device_time(self, id: int, ns: int) -> None:
        """Add the device time of one span of section ``id``."""

    def held_steps(self) -> Sequence[HeldStep]:
        """Return the steps that may be written with their spans."""


class DeviceTime:
    """Records device events around the sections of the training thread and attributes device time to them.

    Sections of other threads have host time only: their work may be on any stream.
    """

    def __init__(
        self,
        recorder: Recorder,
        accumulator: SpanTotals,
        guard: Guard,
        spend: Callable[[int], None],
        cuda_connections: int | None = None,
        cpu_clock: Clock = time.thread_time_ns,
    ) -> None:
        self._recorder = recorder
        self._accumulator = accumulator
        self._guard = guard
        self._spend = spend  # called with the cost on the training thread, in ns
        # Of the calling thread. On a busy machine the wall time in which others ran would switch the stamps off.
        self._cpu_clock = cpu_clock
        self._cuda_connections = cuda_connections  # queues of work to a CUDA device; None: as many as it has
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
            self._guarded(self._raise)
        elif self._timing != "sync":
            self._clock.switch(self._cost_ns() <= FREE_NS + SHARE * (now_ns - self._since_ns), now_ns)

    def _raise(self) -> None:
        if self._clock is not None and self._clock.error is not None:
            raise self._clock.error

    def _cost_ns(self) -> int:
        assert self._clock is not None
        assert self._pairing is not None
        stamps = self._pairing.recorded + len(self._clock.stamps)
        return stamps * (self._stamp_ns + ON_DEVICE_NS) + self._resolve_ns

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
        if clock.error is not None:
            raise clock.error

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
        while not pairs.are_all_resolved and time.monotonic() < end_s and not clock.accelerator.is_capturing():
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
