"""The parts that measure beside the training: lines of code, the accelerator, the machine."""

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.device.device_time import DeviceTime
from training_profiler.loader_workers.collector import WorkerCollector
from training_profiler.recording.section import Clock
from training_profiler.sampling.compilations import Compilations
from training_profiler.sampling.garbage_watch import GarbageWatch
from training_profiler.sampling.line_sampler import LineSampler
from training_profiler.sampling.machine_sampler import MachineSampler
from training_profiler.settings.settings import Settings
from training_profiler.snapshot.program import ProgramFacts


class Samplers:
    """Line sampler, device time and machine sampler of one session.

    Args:
        lines: samples the training thread's stack.
        device: measures time on the accelerator.
        machine: samples processors, memory and accelerators.
        garbage: times garbage collections.
        workers: collects what the workers of data loaders do.
        settings: the settings at the start of the run.
        clock: the recorder's.
        begin_ns: when the run began, by ``clock``.
    """

    def __init__(
        self,
        lines: LineSampler,
        device: DeviceTime,
        machine: MachineSampler,
        garbage: GarbageWatch,
        workers: WorkerCollector,
        settings: Settings,
        clock: Clock,
        begin_ns: int,
    ) -> None:
        self.lines, self.device, self.machine, self.garbage, self.workers = lines, device, machine, garbage, workers
        self.compilations = Compilations()
        self._settings, self._clock = settings, clock
        self._begin_ns = begin_ns

    def start(self) -> None:
        """Start sampling."""
        self._apply(self._settings, self._begin_ns)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""
        self._apply(settings, self._clock())

    def _apply(self, settings: Settings, since_ns: int) -> None:
        self.lines.start(settings.sample_hz, since_ns)
        self.device.start(settings.timing)
        self.machine.start(settings.monitor_s, is_paced=not settings.asks_for_monitor)
        self.garbage.start(is_on=settings.monitor_s > 0)
        self.workers.start(is_on=settings.sample_hz > 0)
        self.compilations.start()

    def sample_this_thread(self) -> None:
        """Sample the calling thread from now on. Called on the training thread."""
        self.lines.sample_this_thread()
        self.device.sample_this_thread()
        self.machine.sample_this_thread()
        self.garbage.sample_this_thread()

    def poll(self, now_ns: int) -> None:
        """Check for an accelerator and for the cost of device timing, at the end of a step."""
        self.device.poll(now_ns)
        self.compilations.keep_listening()
        self.garbage.poll()

    def add_to(self, accumulator: Accumulator) -> None:
        """Add the device times and machine samples that belong to the last drain."""
        self.device.resolve()
        totals = accumulator.totals
        totals.machine.add_samples(self.machine.pop_samples(), totals.loop_begin_ns, accumulator.settled_ns())

    def close(self, ended_by: str | None) -> None:
        """End all threads."""
        self.lines.close()
        self.device.close()
        self.machine.close()
        self.garbage.close()
        self.workers.close()
        self.compilations.close()

    def after_fork_in_child(self) -> None:
        """Drop the threads: a forked child has none."""
        self.lines.after_fork_in_child()
        self.device.after_fork_in_child()
        self.machine.after_fork_in_child()
        self.garbage.after_fork_in_child()
        self.workers.after_fork_in_child()
        self.compilations.close()

    def with_observed(self, facts: ProgramFacts) -> ProgramFacts:
        """Return the facts of a program with what was observed beside it."""
        return facts._replace(compiled=self.compilations.facts())

    def notes(self) -> list[str]:
        """Return a sentence for each sampler: number of samples and cost."""
        costs = [cost for cost in (self.lines.cost(), self.machine.cost()) if cost]
        return [*costs, *self.garbage.notes(), *self.workers.notes(), *self.device.notes()]
