"""The machine monitor: looks once in a while at processors, memory and accelerators, from a thread of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from training_profiler.recording.section import Clock
from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard
from training_profiler.sampling.cgroup import Container, find_container, read_usage
from training_profiler.sampling.gpu import Gpus
from training_profiler.sampling.host import Host, HostReading
from training_profiler.units import NS_PER_S

PART: Final = "machine monitor"
MOST_WAITING: Final = 36_000  # looks that nobody has taken yet: ten hours of them
PATIENCE_S: Final = 1.0  # for the thread to end, which takes it a look
LEAST_S: Final = 0.1  # between two readings of CPU time, which the kernel counts in hundredths of a second


@dataclass(frozen=True, slots=True)
class MachineSample:
    """What was seen at one moment: values by quantity (``gpu0.allocated_bytes``), and what stays as it is."""

    at_ns: int
    values: dict[str, float]
    weights: dict[str, float] = field(default_factory=dict)  # s that a value stands for, where it is a mean over time
    facts: dict[str, float | str] = field(default_factory=dict)


class MachineSampler:
    """Looks at the machine every so many seconds. No device is initialised, no figure of the user's is reset."""

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        host: Callable[[], Any] = Host,
        gpus: Callable[[], Any] = Gpus,
        root: Path = Path("/"),
    ) -> None:
        self.looks = 0
        self._clock = clock
        self._guard = guard
        self._make_host, self._make_gpus, self._root = host, gpus, root
        self._every_s = 0.0
        self._waiting: list[MachineSample] = []
        self._thread: BackgroundThread | None = None
        self._ended_cpu_ns = 0  # of threads that have ended
        self._eyes: MachineReader | None = None
        self._missing: str | None = None  # a package

    @property
    def cpu_ns(self) -> int:
        """CPU time that sampling took so far, in ns."""
        return self._ended_cpu_ns + (0 if self._thread is None else self._thread.cpu_ns)

    def start(self, seconds: float) -> None:
        """Look every so many seconds from now on; 0 for not at all. Never raises."""
        if seconds == self._every_s and self._thread is not None:
            return
        self.close()
        self._every_s = seconds
        if seconds:
            self._guard(PART, self._start)

    def take(self) -> list[MachineSample]:
        """Return the looks not handed out before, in time order."""
        looks, self._waiting = self._waiting, []
        return looks

    def close(self) -> None:
        """End the thread after a last look; waits for it, but not for long."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            thread.join(PATIENCE_S)
            self._ended_cpu_ns += thread.cpu_ns

    def after_fork_in_child(self) -> None:
        """Drop the thread: a forked child has none."""
        self._thread = None
        self._waiting = []

    def cost(self, run_ns: int) -> str | None:
        """Return a sentence on how often it looked in a run of ``run_ns``, and what that cost; None if it never did."""
        if self._missing is not None:
            return f"{PART}: package {self._missing} is not installed; pip install {self._missing}"
        if not self.looks:
            return None
        share = f" ({self.cpu_ns / run_ns:.3%} of the run)" if run_ns else ""
        return f"{PART}: {self.looks} looks, {self.cpu_ns / NS_PER_S:.3f}s of CPU{share}"

    def _start(self) -> None:
        # What is imported for it is imported here: a fork while another thread imports would leave a lock held.
        if self._eyes is None:
            try:
                host = self._make_host()
            except ModuleNotFoundError as error:
                self._missing = error.name
                return
            self._eyes = MachineReader(self._clock, host, self._make_gpus(), find_container(self._root))
        every_s, eyes = self._every_s, self._eyes
        thread = BackgroundThread("machine", lambda thread: self._run(thread, every_s, eyes), self._guard, PART)
        thread.start()
        self._thread = thread

    def _run(self, thread: BackgroundThread, every_s: float, eyes: "MachineReader") -> None:
        is_over = False
        try:
            while True:
                look = eyes.look()
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append(look)
                self.looks += 1
                if is_over:
                    return
                is_over = thread.wait_for_stop(every_s)
        finally:
            eyes.gpus.close()


class MachineReader:
    """Makes one look of what host, container and accelerators tell; CPU use is what was used since the look before."""

    def __init__(self, clock: Clock, host: Host, gpus: Gpus, container: Container) -> None:
        self.gpus = gpus
        self._clock = clock
        self._host = host
        self._container = container
        self._before: dict[str, tuple[float, float]] = {}  # quantity -> (counted in all, the time or all that it is of)
        cores, quota = host.cores(), container.cpu_quota
        self._cores = cores if quota is None else quota if cores is None else min(cores, quota)
        self._host_cores = host.host_cores()

    def look(self) -> MachineSample:
        """Return what is to be seen now."""
        look = MachineSample(self._clock(), {})
        if self._cores is not None:
            look.facts["cores"] = self._cores
        if self._host_cores is not None:
            look.facts["host_cores"] = self._host_cores
        seen = self._host.read()
        self._look_at_host(look, seen)
        self._look_at_container(look, seen)
        for gpu in self.gpus.read():
            look.values.update({f"gpu{gpu.device}.{name}": value for name, value in gpu.values.items()})
            look.facts[f"gpu{gpu.device}.name"] = gpu.name
            if gpu.total_bytes is not None:
                look.facts[f"gpu{gpu.device}.total_bytes"] = gpu.total_bytes
        return look

    def _look_at_host(self, look: MachineSample, seen: HostReading) -> None:
        now_s = look.at_ns / NS_PER_S
        if seen.tree_cpu_s is not None:
            self._rate(look, "cpu_process", seen.tree_cpu_s, now_s)
        busy_s, all_s = seen.host_cpu_s
        # Counted in seconds of all CPUs together, of which there are as many as the host has.
        self._rate(look, "cpu_host", busy_s, all_s, (self._host_cores or 1) * LEAST_S)
        look.values["ram_own_bytes"] = float(seen.own_bytes)
        look.values["ram_process_bytes"] = float(seen.tree_bytes)
        look.values["ram_host_bytes"] = float(seen.host_total_bytes - seen.host_available_bytes)
        look.facts["ram_host_total_bytes"] = seen.host_total_bytes

    def _look_at_container(self, look: MachineSample, seen: HostReading) -> None:
        usage, limit = read_usage(self._container), self._container.memory_limit_bytes
        if usage.cpu_ns is not None:
            self._rate(look, "cpu_container", usage.cpu_ns / NS_PER_S, look.at_ns / NS_PER_S)
        available = seen.host_available_bytes
        share = look.values["ram_host_bytes"] / seen.host_total_bytes
        if usage.memory_bytes is not None:
            look.values["ram_container_bytes"] = float(usage.memory_bytes)
            if limit is not None and limit < seen.host_total_bytes:
                look.facts["ram_limit_bytes"] = limit
                available = min(available, max(0, limit - usage.memory_bytes))
                share = usage.memory_bytes / limit
        look.values["ram_available_bytes"] = float(available)
        look.values["ram_share"] = share

    def _rate(self, look: MachineSample, quantity: str, counted: float, of: float, least: float = LEAST_S) -> None:
        """Add how fast ``counted`` has grown since it was last read; the first reading of all tells nothing."""
        before = self._before.get(quantity)
        if before is None:
            self._before[quantity] = counted, of
        elif of - before[1] >= least:
            look.values[quantity] = max(0.0, counted - before[0]) / (of - before[1])
            look.weights[quantity] = of - before[1]
            self._before[quantity] = counted, of
