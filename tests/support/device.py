"""A fake accelerator: its streams run behind the host, on a clock of their own."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.support.recording import FakeClock, FakeRun
from training_profiler.base.backends import CUDA, Accelerator
from training_profiler.device import device_time
from training_profiler.device.device_time import DeviceTime
from training_profiler.model.snapshot import DeviceTimingStats, Snapshot

OFFSET_NS = 7_000_000_000_000  # difference between the clocks of device and host


class FakeDevice:
    """Devices of one kind. Work runs on the current stream of the current device and takes the given time."""

    def __init__(self, clock: FakeClock, count: int = 1) -> None:
        self.clock = clock
        self.count = count
        self.index = 0
        self.stream = 0
        self.is_initialized = True
        self.is_capturing = False
        self.is_stuck = False  # events are never reached
        self.breaks: Exception | None = None  # raised by every call of the driver
        self.events: list[FakeEvent] = []
        self.calls: list[str] = []
        self._idle_from_ns: dict[tuple[int, int], int] = {}

    @property
    def idle_from_ns(self) -> int:
        """The time at which the current stream becomes idle."""
        return max(self.clock.now_ns, self._idle_from_ns.get((self.index, self.stream), 0))

    def queue(self, seconds: float) -> None:
        """Queue work on the current stream without waiting."""
        self._idle_from_ns[self.index, self.stream] = self.idle_from_ns + round(seconds * 1e9)

    def make_event(self) -> "FakeEvent":
        self.call("make event")
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.call("synchronize")
        assert not self.is_capturing, "a capture would be broken"
        ends = [ns for (index, _), ns in self._idle_from_ns.items() if index == self.index]
        self.clock.now_ns = max([self.clock.now_ns, *ends])

    def call(self, name: str) -> None:
        self.calls.append(name)
        if self.breaks is not None:
            raise self.breaks

    def accelerator(self) -> Accelerator:
        return Accelerator(
            backend=CUDA,
            kind="cuda",
            name="NVIDIA Fake",
            make_event=self.make_event,
            current_index=lambda: self.index,
            is_capturing=lambda: self.is_capturing,
            synchronize=self.synchronize,
        )

    def torch(self, has_accelerator: bool = True) -> Any:
        """Return the part of torch that the profiler reads."""
        module = SimpleNamespace(
            is_initialized=lambda: self.is_initialized,
            device_count=lambda: self.count,
            current_device=lambda: self.index,
            get_device_name=lambda: "NVIDIA Fake",
            is_current_stream_capturing=lambda: self.is_capturing,
            synchronize=self.synchronize,
            Event=lambda enable_timing: self.make_event(),
        )
        torch = SimpleNamespace(cuda=module)
        if has_accelerator:
            torch.accelerator = SimpleNamespace(synchronize=self.synchronize)
            torch.Event = lambda device, enable_timing: self.make_event()
        return torch


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.at_ns: int | None = None
        self.index: int | None = None
        device.events.append(self)

    def record(self) -> None:
        self.device.call("record")
        assert not self.device.is_capturing, "it would be part of the graph"
        assert self.index in (None, self.device.index), "an event belongs to the device it was recorded on first"
        self.index, self.at_ns = self.device.index, self.device.idle_from_ns

    def query(self) -> bool:
        self.device.call("query")
        assert not self.device.is_capturing, "a capture would be broken"
        assert self.at_ns is not None
        return not self.device.is_stuck and self.at_ns <= self.device.clock.now_ns

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.query(), "not reached yet"
        assert end.query(), "not reached yet"
        assert self.at_ns is not None
        assert end.at_ns is not None
        return (OFFSET_NS + end.at_ns - (OFFSET_NS + self.at_ns)) / 1e6


class DeviceRun(FakeRun):
    """A run on a fake device, stamped as a session would."""

    def __init__(self, timing: str = "auto", count: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.device = FakeDevice(self.clock, count)
        self.disabled: dict[str, str] = {}
        self.paid_ns = 0
        self.found: Callable[[], Accelerator | None] = self.device.accelerator
        self.cpu_ns = 0  # of the calling thread
        self.time = DeviceTime(self.recorder, self.accumulator, self.guard, self.pay, cpu_clock=lambda: self.cpu_ns)
        self.time.start(timing)

    def guard(self, part: str, work: Callable[[], None]) -> None:
        if part not in self.disabled:
            try:
                work()
            except Exception as error:
                self.disabled[part] = str(error)

    def pay(self, ns: int) -> None:
        self.paid_ns += ns

    def poll(self) -> None:
        """Check for an accelerator and for the cost of stamping."""
        self.time.poll(self.clock())

    def work(self, name: str, device_s: float, host_s: float = 0.001) -> None:
        """Record one span of a section that queues device work."""
        with self.section(name):
            self.clock.advance(host_s)
            self.device.queue(device_s)

    def drain(self) -> None:
        super().drain()
        self.time.resolve()

    def of_interval(self) -> dict[str, Any]:
        return {"device": self.time.stats()}

    def snapshot(self, **options: Any) -> Snapshot:
        self.flush()
        return super().snapshot(device=self.time.stats(), **options)

    def finish(self) -> Snapshot:
        """Close the run like a session."""
        self.time.close()
        return self.snapshot()

    def stats(self) -> DeviceTimingStats:
        self.flush()
        found = self.time.stats()
        assert found is not None
        return found

    def device_s(self) -> dict[str, tuple[int, float]]:
        """Return (spans, device time) of each section with device time."""
        sections = self.snapshot().sections.values()
        return {s.name: (s.device_count, s.device_total_s) for s in sections if s.device_total_s is not None}


def device_run(monkeypatch: Any, *args: Any, is_begun: bool = True, **options: Any) -> DeviceRun:
    """Return a run that has found its fake device, or finds it at the next poll."""
    run = DeviceRun(*args, **options)
    monkeypatch.setattr(device_time.backends, "find_accelerator", lambda: run.found())
    if is_begun:
        run.poll()
        run.device.calls.clear()
    return run
