"""Device time of one session: begins when the training has begun to use an accelerator, and keeps its own cost low."""

import sys
import time
from collections.abc import Callable
from statistics import median_low
from typing import Final, Protocol

from training_profiler.device import backends
from training_profiler.device.event_clock import DeviceClock, DeviceEvent
from training_profiler.device.span_pairing import SWITCHED_OFF, UNFINISHED, Ints, SpanPairing
from training_profiler.recording.recorder import Recorder
from training_profiler.safety.fault_guard import Guard
from training_profiler.snapshot.snapshot import PROFILER, DeviceTimingStats
from training_profiler.units import NS_PER_S

PART: Final = "device time"
SHARE: Final = 0.002  # of the run's time that it may take from the training thread
FREE_NS: Final = NS_PER_S // 100  # and what it may take beside that, so that a short run has figures
TRIES_NS: Final = NS_PER_S // 50  # at most this often is it looked for an accelerator; then a hundredth of the run
CALIBRATION_STAMPS: Final = 16
WAIT_AT_END_S: Final = 1.0  # at most, for the device to come to the end of what it was given
POLL_S: Final = 0.001


class SpanTotals(Protocol):
    """The sums that device time is added to."""

    def send_spans(self, to: Callable[[Ints, Ints, Ints, Ints, int], None] | None) -> None:
        """Call ``to`` with the spans that count for averages from now on; None: with none."""

    def add_device_time(self, id: int, ns: int) -> None:
        """Add the device time of one span of section ``id``."""


class DeviceTime:
    """Stamps the sections of the training thread, and books what the device took for them.

    Those of other threads bear host time alone: what they queue may be on any stream, beside the training's.
    """

    def __init__(
        self,
        recorder: Recorder,
        accumulator: SpanTotals,
        guard: Guard,
        spend: Callable[[int], None],
    ) -> None:
        self._recorder = recorder
        self._accumulator = accumulator
        self._guard = guard
        self._spend = spend  # takes what the training thread paid, in ns
        self._timing = "host"
        self._buffer = recorder.buffer()  # the training thread's
        self._clock: DeviceClock | None = None
        self._pairing: SpanPairing | None = None
        self._device: backends.Accelerator | None = None
        self._begin_ns = recorder.clock()
        self._since_ns = 0
        self._next_try_ns = 0
        self._stamp_ns = 0  # what one stamp takes
        self._paid = 0  # stamps whose cost was told
        self._booking_ns = 0
        self._has_failed = False
        self._is_ending = False
        recorder.host_only |= {PROFILER}

    def start(self, timing: str) -> None:
        """Time sections by ``timing``, one of settings.TIMINGS, from now on."""
        if timing != self._timing and self._clock is not None:
            self._let_go()
        self._timing = timing

    def sample_this_thread(self) -> None:
        """Stamp the sections of the calling thread: it trains."""
        buffer = self._recorder.buffer()
        if buffer is not self._buffer:
            clock = self._buffer.clock
            if clock is not None:
                self._recorder.use_clock(self._buffer, None)
                self._recorder.use_clock(buffer, clock)
            self._buffer = buffer

    def look(self, now_ns: int) -> None:
        """Begin where an accelerator is in use by now; see to it that stamping costs no more than it may."""
        if self._clock is None:
            if self._timing != "host" and now_ns >= self._next_try_ns and not self._has_failed:
                self._next_try_ns = now_ns + max(TRIES_NS, (now_ns - self._begin_ns) // 100)
                self._guarded(self._begin)
        elif self._clock.error is not None:
            self._guarded(self._raise)
        elif self._timing != "sync":
            self._clock.turn(self._cost_ns() <= FREE_NS + SHARE * (now_ns - self._since_ns), now_ns)

    def _raise(self) -> None:
        if self._clock is not None and self._clock.error is not None:
            raise self._clock.error

    def _cost_ns(self) -> int:
        assert self._clock is not None
        assert self._pairing is not None
        return (self._pairing.taken + len(self._clock.stamps)) * self._stamp_ns + self._booking_ns

    def _begin(self) -> None:
        found = backends.find_accelerator()
        if found is None or found.is_capturing() or self._recorder.buffer() is not self._buffer:
            return
        clock = DeviceClock(found, self._recorder.clock)
        is_sync = self._timing == "sync"
        if not is_sync:
            self._calibrate(clock)
        self._since_ns = self._recorder.clock()
        own_id = self._recorder.names.id_of(PROFILER)
        before, self._pairing = self._pairing, SpanPairing(clock, self._since_ns, is_sync, own_id)
        if before is not None:  # with another timing
            self._pairing.spans, self._pairing.unmeasured = before.spans, before.unmeasured
        self._device, self._clock, self._paid = found, clock, 0
        self._accumulator.send_spans(self._add)
        self._recorder.use_clock(self._buffer, clock.waiting() if is_sync else clock.stamping())

    def _calibrate(self, clock: DeviceClock) -> None:
        read, host_clock = clock.stamping(), self._recorder.clock
        for _ in range(2):  # events are made the first time
            took_ns = []
            for _ in range(CALIBRATION_STAMPS):
                begin_ns = host_clock()
                read()
                took_ns.append(host_clock() - begin_ns)
            # No mean: one in which another thread got Python's lock for 5 ms would have all steps left out.
            self._stamp_ns = median_low(took_ns)
            for _, stamp in clock.stamps:
                clock.give_back(stamp)
            clock.stamps.clear()
        if clock.error is not None:
            raise clock.error

    def _add(self, *spans: object) -> None:
        pairs = self._pairing
        if pairs is not None:
            begin_ns = self._recorder.clock()
            self._guarded(lambda: pairs.add(*spans))  # type: ignore[arg-type]
            self._booking_ns += self._recorder.clock() - begin_ns

    def book(self) -> None:
        """Book what the device has passed by now; at the end of the run wait a moment for the rest."""
        clock, pairs = self._clock, self._pairing
        if clock is None or pairs is None:
            if not self._is_ending:
                self.look(self._recorder.clock())
            return
        self._spend((pairs.taken - self._paid) * self._stamp_ns)
        self._paid = pairs.taken
        begin_ns = self._recorder.clock()
        if self._is_ending:
            self._guarded(lambda: self._book_last(clock, pairs))
        elif self._recorder.buffer() is self._buffer:
            # Elsewhere it cannot be known whether the training thread captures a graph, which asking for an event
            # would break.
            self._guarded(lambda: self._book_reached(clock, pairs))
        now_ns = self._recorder.clock()
        self._booking_ns += now_ns - begin_ns
        self.look(now_ns)

    def _book_reached(self, clock: DeviceClock, pairs: SpanPairing) -> None:
        if not clock.accelerator.is_capturing():
            pairs.resolve(self._accumulator.add_device_time)

    def _book_last(self, clock: DeviceClock, pairs: SpanPairing) -> None:
        end_s = time.monotonic() + WAIT_AT_END_S
        self._book_reached(clock, pairs)
        while not pairs.are_all_resolved and time.monotonic() < end_s and not clock.accelerator.is_capturing():
            time.sleep(POLL_S)
            pairs.resolve(self._accumulator.add_device_time)
        pairs.give_up(UNFINISHED)
        self._let_go()

    def close(self) -> None:
        """Stamp no more; the next ``book`` is the last."""
        self._is_ending = True
        self._recorder.use_clock(self._buffer, None)

    def _let_go(self) -> None:
        """End, and free the events."""
        if self._pairing is not None:
            self._pairing.give_up(SWITCHED_OFF)
        if self._clock is not None:
            self._clock.close()
        self._recorder.use_clock(self._buffer, None)
        self._accumulator.send_spans(None)
        self._clock = None

    def after_fork_in_child(self) -> None:
        """Forget it all in a forked child, without a call of the driver, which is the parent's.

        An event that is freed calls it. So these never are.
        """
        if self._clock is not None:
            self._clock.is_on = False
            self._recorder.use_clock(self._buffer, None)
            _never_free(self._clock.made)
        self._timing = "host"
        self._accumulator.send_spans(None)
        self._clock = self._pairing = None

    def stats(self) -> DeviceTimingStats | None:
        """Return where device time was measured, and of how many spans; None where it was not."""
        if self._pairing is None or self._device is None:
            return None
        timing = "sync" if self._pairing.is_sync else "events"
        return DeviceTimingStats(
            self._device.kind, self._device.name, timing, self._pairing.spans, dict(self._pairing.unmeasured)
        )

    def notes(self) -> list[str]:
        """Return a sentence for what a reader would not expect."""
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
                if self._clock is not None:  # after an error of the device torch warns four times an event freed
                    self._clock.made = _never_free(self._clock.made)
                self._let_go()
                raise

        self._guard(PART, attempt)


def _never_free(made: dict[int, list[DeviceEvent]]) -> dict[int, list[DeviceEvent]]:
    """Give the stamps a reference that nobody will give back; return none."""
    ctypes = sys.modules.get("ctypes")  # torch has imported it
    if ctypes is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return {}
