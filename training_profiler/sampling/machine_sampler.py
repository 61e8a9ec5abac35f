"""The system monitor: samples processors, memory and accelerators on a thread of its own."""

import mmap
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from training_profiler.base.units import NS_PER_S, time_text
from training_profiler.safety.fault_guard import MACHINE, BackgroundThread, Guard, Pace, unlimited
from training_profiler.sampling.gpu import COUNTED_S, COUNTERS, ENERGY, Gpus
from training_profiler.sampling.host import Container, Host, HostReading, find_container, read_usage
from training_profiler.sampling.run_queue import PageFaults, RunQueue

PAGES: Final = 32  # of one measurement of the cost: 0.2 ms where a page is slow, as in a virtual machine
ROUNDS: Final = 8  # of which the fastest counts: the others are disturbed


def page_cost_s(cpu_ns: Callable[[], int] = time.thread_time_ns) -> float:
    """Return the CPU time of a page of new memory: of the fault, and of giving it back later. Takes 2 ms."""
    zeros, costs_ns = bytes(PAGES * mmap.PAGESIZE), []
    for _ in range(ROUNDS):
        pages = mmap.mmap(-1, len(zeros))
        begin_ns = cpu_ns()
        pages[:] = zeros
        touched_ns = cpu_ns()
        pages[:] = zeros  # only writes
        written_ns = cpu_ns()
        pages.close()
        costs_ns.append(max(0, (touched_ns - begin_ns) - (written_ns - touched_ns)) + (cpu_ns() - written_ns))
    return min(costs_ns) / PAGES / NS_PER_S


PART: Final = "system monitor"
MOST_WAITING: Final = 36_000  # samples not yet drained, ten hours of them
FIRST_SAMPLES: Final = 30  # at any cost: rules about the machine need some in a short run, too
STUCK_S: Final = 10.0  # for a sample, which takes milliseconds
PATIENCE_S: Final = 1.0  # for the end of the thread, which takes one more sample
MANY_FAULTS: Final = 1000  # a second; fewer cost less than 1 %, so what one costs does not matter
LEAST_S: Final = 0.1  # between two readings of CPU time, which the kernel counts in hundredths of a second


@dataclass(frozen=True, slots=True)
class MachineSample:
    """Readings of one moment: values by quantity (``gpu0.allocated_bytes``), and constant facts."""

    at_ns: int
    values: dict[str, float]
    weights: dict[str, float] = field(default_factory=dict)  # duration in s of a value that is a mean over time
    facts: dict[str, float | str] = field(default_factory=dict)


class MachineSampler:
    """Samples the machine at a fixed interval. It initialises no device and resets no counter of the user."""

    def __init__(
        self,
        clock: Callable[[], int],
        guard: Guard,
        *,
        host: Callable[[], Any] = Host,
        gpus: Callable[[], Any] = Gpus,
        root: Path = Path("/"),
        local_ranks: int = 1,
        pace: Pace | None = None,
    ) -> None:
        self.samples = 0
        self._pace = pace or unlimited(MACHINE)
        self._clock = clock
        self._guard = guard
        self._make_host, self._make_gpus, self._root = host, gpus, root
        self._local_ranks = local_ranks
        self._run_queue, self._faults = RunQueue(root), PageFaults(root)
        self._every_s = 0.0
        self._is_paced = True
        self._waiting: list[MachineSample] = []
        self._thread: BackgroundThread | None = None
        self._ended_cpu_ns = 0  # of threads that have ended
        self._reader: MachineReader | None = None
        self._begun_ns = 0  # when the sample under way began
        self._missing: str | None = None  # a package

    @property
    def cpu_ns(self) -> int:
        """CPU time that sampling took so far, in ns."""
        return self._ended_cpu_ns + (0 if self._thread is None else self._thread.cpu_ns)

    def start(self, seconds: float, *, is_paced: bool = True) -> None:
        """Sample every ``seconds`` seconds from now on; 0 stops sampling. Never raises.

        Paced, it samples more seldom where it costs too much; a user who says how often gets that.
        """
        self._is_paced = is_paced
        if seconds == self._every_s and self._thread is not None:
            return
        self.close()
        self._every_s = seconds
        if seconds:
            self._guard(PART, self._start)

    def sample_this_thread(self) -> None:
        """Measure how long the calling thread waits for a CPU, and its page faults. Called on the training thread."""
        self._run_queue.use_thread(threading.get_native_id())
        self._faults.use_thread(threading.get_native_id())

    def pop_samples(self) -> list[MachineSample]:
        """Return the samples since the last call, in time order."""
        samples, self._waiting = self._waiting, []
        return samples

    def close(self) -> None:
        """End the thread after a last sample. Wait for it for at most ``PATIENCE_S``."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            thread.join(PATIENCE_S)
            self._ended_cpu_ns += thread.cpu_ns

    def after_fork_in_child(self) -> None:
        """Drop the thread: a forked child has none."""
        self._thread = None
        self._waiting = []
        self._run_queue, self._faults = RunQueue(self._root), PageFaults(self._root)

    def cost(self) -> str | None:
        """Return a sentence with the number of samples and their cost; None without samples."""
        if self._missing is not None:
            return f"{PART}: package {self._missing} is not installed; pip install {self._missing}"
        if not self.samples:
            return None
        text = f"{PART}: {self.samples} samples, {time_text(self.cpu_ns / NS_PER_S)} of CPU"
        without = self._reader and self._reader.gpus.without_counters
        stuck_s = (self._clock() - self._begun_ns) / NS_PER_S if self._begun_ns else 0.0
        if stuck_s >= STUCK_S:
            return f"{PART}: no figures for {time_text(stuck_s)}, a driver or disk does not respond"
        return f"{text}; no GPU counters: {without}" if without else text

    def _start(self) -> None:
        # Import on this thread: a fork during an import on another thread would leave a lock held.
        if self._reader is None:
            try:
                host = self._make_host()
            except ModuleNotFoundError as error:
                self._missing = error.name
                return
            gpus, container = self._make_gpus(), find_container(self._root)
            queue, ranks = self._run_queue, self._local_ranks
            self._reader = MachineReader(
                self._clock, host, gpus, container, run_queue=queue, local_ranks=ranks, faults=self._faults
            )
        every_s, reader = self._every_s, self._reader
        thread = BackgroundThread("machine", lambda thread: self._run(thread, every_s, reader), self._guard, PART)
        thread.start()
        self._thread = thread

    def _run(self, thread: BackgroundThread, every_s: float, reader: "MachineReader") -> None:
        is_over = False
        free = FIRST_SAMPLES if self._is_paced else sys.maxsize
        try:
            while True:
                self._begun_ns = self._clock()
                sample = reader.sample()
                self._begun_ns = 0
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append(sample)
                self.samples += 1
                if is_over:
                    return
                thread.measure_cpu()
                is_over = thread.wait_for_stop(self._pace.pause_s(every_s, self._ended_cpu_ns + thread.cpu_ns, free))
        finally:
            reader.gpus.close()


class MachineReader:
    """Samples host, container and accelerators. CPU use covers the time since the previous sample.

    ``local_ranks`` is the number of processes of this training on this machine. Without ``run_queue`` and ``faults``,
    the wait for a CPU and the page faults are unknown.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        host: Host,
        gpus: Gpus,
        container: Container,
        *,
        run_queue: RunQueue | None = None,
        local_ranks: int = 1,
        faults: PageFaults | None = None,
        page_cost_s: Callable[[], float] = page_cost_s,
    ) -> None:
        self.gpus = gpus
        self._run_queue, self._local_ranks = run_queue, local_ranks
        self._faults, self._measure_page, self._page_cost_s = faults, page_cost_s, 0.0
        self._sampled_at_ns: int | None = None  # the last sample
        self._waited_at_ns: int | None = None  # when the wait for a CPU was read last
        self._clock = clock
        self._host = host
        self._container = container
        self._before: dict[str, tuple[float, float]] = {}  # quantity -> (counter, time or total)
        cores, quota = host.usable_cores, container.cpu_quota
        self._cores = cores if quota is None else quota if cores is None else min(cores, quota)
        self._host_cores = host.cores

    def sample(self) -> MachineSample:
        """Return a sample of this moment."""
        cores = {"cores": self._cores, "host_cores": self._host_cores}
        sample = MachineSample(
            self._clock(), {}, facts={name: each for name, each in cores.items() if each is not None}
        )
        reading = self._host.read()
        if (local_ranks := max(self._local_ranks, 1 + reading.siblings)) > 1:
            sample.facts["local_ranks"] = local_ranks
        self._add_host(sample, reading)
        before_ns, self._sampled_at_ns = self._sampled_at_ns, sample.at_ns
        seconds = 0.0 if before_ns is None else (sample.at_ns - before_ns) / NS_PER_S
        self._add_wait(sample)
        self._add_faults(sample, seconds)
        self._add_container(sample, reading)
        profilers = sys.modules.get("torch.autograd.profiler")
        if profilers is not None:
            sample.values["recorded"] = float(bool(getattr(profilers, "_is_profiler_enabled", False)))
        for gpu in self.gpus.read():
            self._rate(sample, f"gpu{gpu.device}.counted_power_w", gpu.values.pop(ENERGY, None))
            counted_s = gpu.values.pop(COUNTED_S, 0.0)
            sample.values.update({f"gpu{gpu.device}.{name}": value for name, value in gpu.values.items()})
            sample.weights.update({f"gpu{gpu.device}.{name}": counted_s for name in COUNTERS if counted_s})
            sample.facts[f"gpu{gpu.device}.name"] = gpu.name
            if gpu.total_bytes is not None:
                sample.facts[f"gpu{gpu.device}.total_bytes"] = gpu.total_bytes
        return sample

    def _add_host(self, sample: MachineSample, reading: HostReading) -> None:
        self._rate(sample, "cpu_process", reading.tree_cpu_s)
        busy_s, all_s = reading.host_cpu_s  # CPU seconds, summed over all CPUs of the host
        least_s = (self._host_cores or 1) * LEAST_S
        self._rate(sample, "cpu_host", busy_s, all_s, least_s)
        allowed = len(self._host.allowed)
        if reading.allowed_cpu_s is not None:
            sample.facts["allowed_cores"] = allowed
            self._rate(sample, "cpu_allowed", *reading.allowed_cpu_s, allowed * LEAST_S)
        self._rate(sample, "cpu_steal", reading.stolen_s, all_s, least_s)
        sample.values["ram_own_bytes"] = float(reading.own_bytes)
        sample.values["ram_process_bytes"] = float(reading.tree_bytes)
        sample.values["ram_host_bytes"] = float(reading.host_total_bytes - reading.host_available_bytes)
        sample.facts["ram_host_total_bytes"] = reading.host_total_bytes

    def _add_wait(self, sample: MachineSample) -> None:
        wait = None if self._run_queue is None else self._run_queue.read()
        # On a busy machine it may be long since the sample began.
        before_ns, self._waited_at_ns = self._waited_at_ns, self._clock()
        seconds = 0.0 if before_ns is None else (self._waited_at_ns - before_ns) / NS_PER_S
        if wait is None or seconds <= 0:
            return
        sample.values["cpu_wait"] = min(1.0, wait.training_ns / NS_PER_S / seconds)
        sample.values["cpu_wait_own"] = min(1.0, wait.own_ns / NS_PER_S / seconds)
        sample.values["cpu_waiting"] = wait.all_ns / NS_PER_S / seconds
        sample.weights.update(cpu_wait=seconds, cpu_wait_own=seconds, cpu_waiting=seconds)

    def _add_faults(self, sample: MachineSample, seconds: float) -> None:
        faults = None if self._faults is None else self._faults.read()
        if faults is None or seconds <= 0:
            return
        rates = {
            "page_faults": faults.minor / seconds,
            "pages_read": faults.major / seconds,
            "cpu_kernel": faults.kernel_s / seconds,
        }
        sample.values.update(rates)
        sample.weights.update(dict.fromkeys(rates, seconds))
        if not self._page_cost_s and rates["page_faults"] >= MANY_FAULTS:
            self._page_cost_s = self._measure_page()
        if self._page_cost_s:
            sample.facts["page_cost_s"] = self._page_cost_s

    def _add_container(self, sample: MachineSample, reading: HostReading) -> None:
        usage, limit = read_usage(self._container), self._container.memory_limit_bytes
        self._rate(sample, "cpu_container", None if usage.cpu_ns is None else usage.cpu_ns / NS_PER_S)
        self._rate(sample, "memory_stall", usage.memory_stall_s)
        self._rate(sample, "disk_stall", usage.disk_stall_s)
        if usage.periods is not None:
            self._rate(sample, "cpu_throttled", *usage.periods, least=1)
        available = reading.host_available_bytes
        share = sample.values["ram_host_bytes"] / reading.host_total_bytes
        if usage.memory_bytes is not None:
            sample.values["ram_container_bytes"] = float(usage.memory_bytes)
            if limit is not None and limit < reading.host_total_bytes:
                sample.facts["ram_limit_bytes"] = limit
                available = min(available, max(0, limit - usage.memory_bytes))
                share = usage.memory_bytes / limit
        sample.values["ram_available_bytes"] = float(available)
        sample.values["ram_share"] = share

    def _rate(
        self,
        sample: MachineSample,
        quantity: str,
        counted: float | None,
        of: float | None = None,
        least: float = LEAST_S,
    ) -> None:
        """Add the rate of growth of ``counted`` by ``of``, by default seconds. The first reading has no rate."""
        if counted is None:
            return
        of = sample.at_ns / NS_PER_S if of is None else of
        before = self._before.get(quantity)
        if before is None:
            self._before[quantity] = counted, of
        elif of - before[1] >= least:
            sample.values[quantity] = max(0.0, counted - before[0]) / (of - before[1])
            sample.weights[quantity] = of - before[1]
            self._before[quantity] = counted, of
