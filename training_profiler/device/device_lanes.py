"""The clock of sections on an accelerator: each reading also records a device event.

Spans of single steps are placed on the clock of the host.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from training_profiler.base.backends import Accelerator
from training_profiler.model.series import DEVICE_LANE
from training_profiler.recording.section import Clock
from training_profiler.recording.untraced import skip_with_callees

POOL_SIZE: Final = 4096  # events of one device, more than the limit on cost allows to use
POOL_EMPTY: Final = "the pool of events was empty"
CAPTURED: Final = "a graph was captured"
NS_PER_MS: Final = 1_000_000
DRIFT: Final = 50e-6  # of one clock against the other; quartz oscillators are specified to some 50 ppm
MOST_SPANS: Final = 400  # of one step


class DeviceEvent:
    """A moment on the accelerator, or the reason why it could not be recorded."""

    __slots__ = ("device", "event", "is_reached", "users", "why_not")

    def __init__(self, device: int, event: Any, why_not: str = "") -> None:
        self.device = device
        self.event = event
        self.why_not = why_not
        self.is_reached = False  # by the device at the last query
        self.users = 0  # number of spans that still need its event

    def has_been_reached(self) -> bool:
        """Return whether the device has reached the event. Queries the device without waiting."""
        if not self.is_reached and self.event is not None:
            self.is_reached = self.event.query()
        return self.is_reached

    def hold(self) -> None:
        """Prevent reuse of the event until ``release``."""
        self.users += 1

    def release(self) -> bool:
        """Undo one ``hold``. Return whether the event is free."""
        self.users -= 1
        if self.users > 0:
            return False
        self.users, self.is_reached = 0, False
        return True


_POOL_EMPTY: Final = DeviceEvent(-1, None, POOL_EMPTY)
_CAPTURED: Final = DeviceEvent(-1, None, CAPTURED)


class DeviceClock:
    """Stamps the events of the training thread: ``stamps`` has (host time in ns, stamp), in the order of reading."""

    def __init__(self, accelerator: Accelerator, host_clock: Clock, pool_size: int = POOL_SIZE) -> None:
        self.accelerator = accelerator
        self.stamps: list[tuple[int, DeviceEvent]] = []
        self.is_on = True  # False: only the host's clock is read
        self.off_ns: list[tuple[int, int]] = []  # intervals in which it was off
        self.error: Exception | None = None  # an error of the driver, which is not called again
        self._host_clock = host_clock
        self._pool_size = pool_size
        self._free: dict[int, list[DeviceEvent]] = {}  # device -> stamps for reuse
        self.made: dict[int, list[DeviceEvent]] = {}  # device -> all its stamps

    def stamping(self) -> Clock:
        """Return a clock that records an event and then returns the host's time."""
        return self._reading(self._record)

    def waiting(self) -> Clock:
        """Return a clock that waits for all work of the device and then returns the host's time."""
        is_capturing, synchronize = self.accelerator.is_capturing, self.accelerator.synchronize

        def wait() -> DeviceEvent | None:
            if is_capturing():  # waiting would break the capture
                return _CAPTURED
            synchronize()
            return None

        return self._reading(wait)

    def _reading(self, note: Callable[[], DeviceEvent | None]) -> Clock:
        clock, stamps = self._host_clock, self.stamps

        def read() -> int:
            if not self.is_on:
                return clock()
            try:
                stamp = note()
            except Exception as error:
                self.is_on, self.error = False, error
                return clock()
            now_ns = clock()
            if stamp is not None:
                stamps.append((now_ns, stamp))
            return now_ns

        for function in (read, note, self._make, self.accelerator.make_event):
            code = getattr(function, "__code__", None)
            if code is not None:
                skip_with_callees(code)
        return read

    def _record(self) -> DeviceEvent:
        if self.accelerator.is_capturing():
            return _CAPTURED
        device = self.accelerator.current_index()
        free = self._free.get(device)
        stamp = free.pop() if free else self._make(device)
        if stamp.event is not None:
            stamp.event.record()
        return stamp

    def _make(self, device: int) -> DeviceEvent:
        """Return a new stamp. An event belongs to the device that records it first."""
        made = self.made.setdefault(device, [])
        if len(made) >= self._pool_size:
            return _POOL_EMPTY
        stamp = DeviceEvent(device, self.accelerator.make_event())
        made.append(stamp)
        return stamp

    def switch(self, is_on: bool, now_ns: int) -> None:
        """Switch stamping on or off."""
        if self.is_on and not is_on:
            self.off_ns.append((now_ns, sys.maxsize))
        elif is_on and not self.is_on:
            self.off_ns[-1:] = [(from_ns, now_ns) for from_ns, _ in self.off_ns[-1:]]
        self.is_on = is_on

    def raise_error(self) -> None:
        """Raise the error of the driver, if there was one."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Free all events that no span holds."""
        self.is_on = False
        self.stamps.clear()
        self._free.clear()
        self.made.clear()

    def keep_for_ever(self) -> None:
        """Stop stamping and never free the existing events: freeing one calls the driver."""
        self.is_on = False
        ctypes = sys.modules.get("ctypes")  # torch has imported it
        if ctypes is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.made))
        self.made = {}

    def give_back(self, stamp: DeviceEvent) -> None:
        """Release the stamp, and reuse its event if no span needs it."""
        if stamp.event is not None and stamp.release():
            self._free.setdefault(stamp.device, []).append(stamp)


class HeldStep(NamedTuple):
    """A step that may be written with its spans, on the host's clock."""

    number: int
    begin_ns: int
    end_ns: int


class PlacedSpan(NamedTuple):
    """A span on the device, on the host's clock."""

    id: int
    begin_ns: int
    end_ns: int


class _Device:
    """The spans on one device. Its clock begins with the first event."""

    def __init__(self) -> None:
        # By the number of the step: spans on the device's clock, and how far that is behind the host's, at least.
        self.spans: dict[int, list[tuple[PlacedSpan, int]]] = {}
        self._event: DeviceEvent | None = None  # read last
        self._event_ns = 0  # its time
        self._shift: tuple[int, int] | None = None  # to the host's clock, and the time of the step that showed it

    def read(self, event: DeviceEvent, clock: DeviceClock) -> int:
        """Return the time of an event.

        It is that since the event before, because a time of hours has no resolution of microseconds.
        """
        event.hold()
        if self._event is not None and self._event.event is not None:
            self._event_ns += round(self._event.event.elapsed_time(event.event) * NS_PER_MS)
            clock.give_back(self._event)
        self._event = event
        return self._event_ns

    def placed(self, number: int) -> list[PlacedSpan]:
        """Return the spans of a step, moved by the least that these spans and earlier steps allow."""
        spans = self.spans.get(number)
        if not spans:
            return []
        at_ns = min(span.begin_ns for span, _ in spans)
        shift_ns = max(behind_ns for _, behind_ns in spans)
        if self._shift is not None:
            known_ns, known_at_ns = self._shift
            shift_ns = max(shift_ns, known_ns - round(DRIFT * abs(at_ns - known_at_ns)))
        self._shift = shift_ns, at_ns
        return [PlacedSpan(span.id, span.begin_ns + shift_ns, span.end_ns + shift_ns) for span, _ in spans]

    def forget_event(self) -> None:
        """Free the event."""
        self._event = None


class DeviceLanes:
    """The spans of some steps on each device, as early as they can have been.

    Nothing reaches the device before the host recorded it. So all spans of a step are moved together until none is too
    early; if the device was idle once, they are where they were.
    """

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._devices: dict[int, _Device] = {}
        self._held: Sequence[HeldStep] = ()

    def hold(self, steps: Sequence[HeldStep]) -> None:
        """Keep the spans of these steps alone from now on."""
        self._held = steps
        numbers = {step.number for step in steps}
        for device in self._devices.values():
            for number in device.spans.keys() - numbers:
                del device.spans[number]

    def add(self, id: int, begin_ns: int, end_ns: int, begin: DeviceEvent, ns: int) -> None:
        """Add a span that took ``ns`` from the event ``begin`` on, if its step is held."""
        number = next((step.number for step in self._held if step.begin_ns <= begin_ns and end_ns <= step.end_ns), None)
        if number is None:
            return
        device = self._devices.setdefault(begin.device, _Device())
        spans = device.spans.setdefault(number, [])
        if len(spans) < MOST_SPANS:
            at_ns = device.read(begin, self._clock)
            behind_ns = max(begin_ns - at_ns, end_ns - at_ns - ns)  # nothing is reached before it is recorded
            spans.append((PlacedSpan(id, at_ns, at_ns + ns), behind_ns))

    def of_step(self, number: int) -> Mapping[str, list[PlacedSpan]]:
        """Return the spans of a step by device; nothing where none is known."""
        kind = self._clock.accelerator.kind
        lanes = {
            f"{DEVICE_LANE}{kind}:{index}": device.placed(number) for index, device in sorted(self._devices.items())
        }
        return {name: spans for name, spans in lanes.items() if spans}

    def close(self) -> None:
        """Free the events. The spans stay."""
        for device in self._devices.values():
            device.forget_event()
