"""What looks at the training from beside it: started, stopped and emptied together."""

from collections.abc import Callable

from training_profiler.device.device_time import DeviceTime
from training_profiler.monitor.lines import LineSampler
from training_profiler.monitor.machine import MachineMonitor
from training_profiler.record.section import Clock
from training_profiler.settings import Settings
from training_profiler.statistics.accumulator import Accumulator
from training_profiler.statistics.totals import Totals


class Observers:
    """The line sampler of one session, its clock of the accelerator, and its machine monitor."""

    def __init__(self, clock: Clock, guard: Callable[[str, Callable[[], None]], None], device: DeviceTime) -> None:
        self.lines = LineSampler(clock, guard)
        self.device = device
        self.machine = MachineMonitor(clock, guard)

    def run(self, settings: Settings, since_ns: int) -> None:
        """Start with these settings, or go on with them."""
        self.lines.run_at(settings.sample_hz, since_ns)
        self.device.run(settings.timing)
        self.machine.run_every(settings.monitor_s)

    def watch_this_thread(self) -> None:
        """Look at the calling thread: it trains."""
        self.lines.watch_this_thread()
        self.device.watch_this_thread()

    def look(self, now_ns: int) -> None:
        """Do what is to be done now and then at the end of a step."""
        self.device.look(now_ns)

    def add_to(self, accumulator: Accumulator) -> None:
        """Hand over what was seen beside the events of the batch that was just added."""
        self.device.book()
        accumulator.totals.machine.look(self.machine.take())

    def stop(self) -> None:
        """End all threads."""
        self.lines.stop()
        self.device.stop()
        self.machine.stop()

    def abandon(self) -> None:
        """Forget the threads: in a forked child there are none."""
        self.lines.abandon()
        self.device.abandon()
        self.machine.abandon()

    def costs(self, run: Totals) -> list[str]:
        """Return a sentence for each on what it saw of the run, and what that cost."""
        costs = [cost for cost in (self.lines.cost(run.wall_ns), self.machine.cost(run.wall_ns)) if cost]
        return [*costs, *self.device.notes()]
