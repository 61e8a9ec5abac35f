"""Spans on the device for the timeline of single steps, placed on the clock of the host."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from training_profiler.device.event_clock import DeviceClock, DeviceEvent

NS_PER_MS: Final = 1_000_000
DRIFT: Final = 50e-6  # of one clock against the other; quartz oscillators are specified to some 50 ppm
MOST_SPANS: Final = 400  # of one step
LANE: Final = "device "  # begin of the names of lanes


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


class _LaneSpan(NamedTuple):
    """A span on the device's own clock, and when the host recorded its two ends."""

    id: int
    begin_ns: int
    end_ns: int
    host_begin_ns: int
    host_end_ns: int

    @property
    def ahead_ns(self) -> int:
        """How far the device's clock is behind the host's, at least: nothing is reached before it is recorded."""
        return max(self.host_begin_ns - self.begin_ns, self.host_end_ns - self.end_ns)


class _Device:
    """The spans on one device. Its clock begins with the first event."""

    def __init__(self) -> None:
        self.spans: dict[int, list[_LaneSpan]] = {}  # by the number of the step
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
        at_ns = min(span.begin_ns for span in spans)
        shift_ns = max(span.ahead_ns for span in spans)
        if self._shift is not None:
            known_ns, known_at_ns = self._shift
            shift_ns = max(shift_ns, known_ns - round(DRIFT * abs(at_ns - known_at_ns)))
        self._shift = shift_ns, at_ns
        return [PlacedSpan(span.id, span.begin_ns + shift_ns, span.end_ns + shift_ns) for span in spans]

    def close(self) -> None:
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
            spans.append(_LaneSpan(id, at_ns, at_ns + ns, begin_ns, end_ns))

    def of_step(self, number: int) -> Mapping[str, list[PlacedSpan]]:
        """Return the spans of a step by device; nothing where none is known."""
        kind = self._clock.accelerator.kind
        lanes = {f"{LANE}{kind}:{index}": device.placed(number) for index, device in sorted(self._devices.items())}
        return {name: spans for name, spans in lanes.items() if spans}

    def close(self) -> None:
        """Free the events. The spans stay."""
        for device in self._devices.values():
            device.close()
