"""The clock: ``torch.utils.benchmark``, which waits for an accelerator where there is one."""

from collections.abc import Callable
from typing import Final, Protocol

import torch
from torch.utils.benchmark import Measurement, Timer

from training_profiler.component_benchmark.result import Timing

ENOUGH: Final = 5  # measurements, below which quartiles say nothing
MOST_TIME: Final = 5.0  # times min_run_time_s that waiting for enough of them may take


class Stopwatch(Protocol):
    """Says how long something takes."""

    def __call__(self, what: str, run: Callable[[], object]) -> Timing:
        """Return how long one ``run`` takes; ``what`` names it for whoever watches."""


class TorchStopwatch:
    """Runs as often as fits in a time, in blocks long enough for the clock."""

    def __init__(
        self, threads: int | None, min_run_time_s: float, says: Callable[[str], None] = lambda what: None
    ) -> None:
        self.threads = threads or torch.get_num_threads()
        self._min_run_time_s, self._says = min_run_time_s, says

    def __call__(self, what: str, run: Callable[[], object]) -> Timing:
        """Return the median over blocks of runs, and the distance of their quartiles."""
        self._says(what)
        timer = Timer("run()", globals={"run": run}, num_threads=self.threads)
        found = timer.blocked_autorange(min_run_time=self._min_run_time_s)
        blocks = [found]
        taken_s = sum(found.raw_times)
        while sum(len(block.times) for block in blocks) < ENOUGH and taken_s < MOST_TIME * self._min_run_time_s:
            blocks.append(timer.timeit(found.number_per_run))
            taken_s += sum(blocks[-1].raw_times)
        (merged,) = Measurement.merge(blocks)
        count = len(merged.times)
        return Timing(merged.median, merged.iqr if count >= ENOUGH else None, count, found.number_per_run)
