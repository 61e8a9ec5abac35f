"""Parts of a run below its pipeline: the recorder, and the samplers beside the training."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.device.device_time import DeviceTime
from training_profiler.recording.implementation import best_implementation, python_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.safety.fault_guard import LINES, MACHINE, WORKERS, Guard, Pace
from training_profiler.sampling.compilations import Compilations
from training_profiler.sampling.garbage_watch import GarbageWatch
from training_profiler.sampling.line_sampler import LineSampler, StartupSampler
from training_profiler.sampling.loader_workers import Awaited, WorkerCollector
from training_profiler.sampling.lock_watch import lock_watch
from training_profiler.sampling.machine_sampler import MachineSampler
from training_profiler.settings.settings import NATIVE, Settings


def new_recorder(settings: Settings) -> Recorder:
    """Return a recorder of the kind that ``settings`` allow and this installation has."""
    if settings.may_be_native:
        return Recorder(implementation=best_implementation())
    return Recorder(implementation=python_implementation(f"{NATIVE} refuses the recorder in C"))


class Component(Protocol):
    """A part of a session, which calls it in the order of its parts."""

    def start(self) -> None:
        """Start working at the start of the run."""

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""

    def close(self, ended_by: str | None) -> None:
        """Stop working and hand over what is left; ``ended_by`` is the signal or exception that ends the run."""

    def after_fork_in_child(self) -> None:
        """Discard all state without output: the run belongs to the parent process."""


class Samplers:
    """The parts that measure beside the training: lines of code, the accelerator, the machine.

    ``startup`` has sampled lines since the import of torch; ``awaited`` returns the loader and the iterator that the
    training waits for; ``spend`` is called with time that the training has lost, in ns.
    """

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder,
        accumulator: Accumulator,
        guard: Guard,
        pace: Callable[[str], Pace],
        *,
        begin_ns: int,
        startup: StartupSampler | None,
        awaited: Awaited,
        spend: Callable[[int], None],
    ) -> None:
        clock, launch, new_stop = recorder.clock, settings.launch, recorder.implementation.new_stop
        self._settings, self._clock, self._begin_ns = settings, clock, begin_ns
        watch = partial(lock_watch, launch.openmp_sleeps)
        self.lines = LineSampler(clock, guard, startup=startup, watch=watch, pace=pace(LINES), new_stop=new_stop)
        self.device = DeviceTime(recorder, accumulator, guard, spend, launch.cuda_connections)
        self.machine = MachineSampler(clock, guard, local_ranks=launch.local_world_size or 1, pace=pace(MACHINE))
        self.garbage = GarbageWatch(guard)
        self.workers = WorkerCollector(guard, awaited, pace=pace(WORKERS))
        self.compilations = Compilations()

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
        for sampler in (self.lines, self.device, self.machine, self.garbage):
            sampler.sample_this_thread()

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
        for sampler in (self.lines, self.device, self.machine, self.garbage, self.workers, self.compilations):
            sampler.close()

    def after_fork_in_child(self) -> None:
        """Drop the threads: a forked child has none."""
        for sampler in (self.lines, self.device, self.machine, self.garbage, self.workers):
            sampler.after_fork_in_child()
        self.compilations.close()

    def notes(self) -> list[str]:
        """Return a sentence for each sampler: number of samples and cost."""
        costs = [cost for cost in (self.lines.cost(), self.machine.cost()) if cost]
        return [*costs, *self.garbage.notes(), *self.workers.notes(), *self.device.notes()]
