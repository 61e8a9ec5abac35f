"""What looks at the training from beside it: started, stopped and emptied together."""

from collections.abc import Callable

from training_profiler.monitor.lines import LineSampler
from training_profiler.record.section import Clock
from training_profiler.settings import Settings
from training_profiler.statistics.accumulator import Accumulator
from training_profiler.statistics.totals import Totals


class Observers:
    """The line sampler of one session."""

    def __init__(self, clock: Clock, guard: Callable[[str, Callable[[], None]], None]) -> None:
        self.lines = LineSampler(clock, guard)

    def run(self, settings: Settings, since_ns: int) -> None:
        """Start with these settings, or go on with them."""
        self.lines.run_at(settings.sample_hz, since_ns)

    def watch_this_thread(self) -> None:
        """Look at the calling thread: it trains."""
        self.lines.watch_this_thread()

    def add_to(self, accumulator: Accumulator) -> None:
        """Hand over what was seen beside the events of the batch that was just added."""

    def stop(self) -> None:
        """End all threads."""
        self.lines.stop()

    def abandon(self) -> None:
        """Forget the threads: in a forked child there are none."""
        self.lines.abandon()

    def costs(self, run: Totals) -> list[str]:
        """Return a sentence for each on what it saw of the run, and what that cost."""
        cost = self.lines.cost(run.wall_ns)
        return [cost] if cost else []
