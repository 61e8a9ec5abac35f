"""The clock: ``torch.utils.benchmark``, which synchronizes with an accelerator."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import torch

from training_profiler.component_benchmark.result import Timing

# Importing the clock looks for a compiler of CUDA, and warns if there is one without a device.
_log = logging.getLogger("torch.utils.cpp_extension")
_level = _log.level
_log.setLevel(logging.ERROR)
from torch.utils.benchmark import Measurement, Timer  # noqa: E402

_log.setLevel(_level)

ENOUGH: Final = 5  # measurements; with fewer, quartiles mean nothing
MOST_TIME: Final = 5.0  # limit for reaching ENOUGH, in multiples of min_run_time_s


class Stopwatch(Protocol):
    """Measures durations."""

    def __call__(self, what: str, run: Callable[[], object]) -> Timing:
        """Return the duration of one ``run``; ``what`` names it in the progress display."""


class TorchStopwatch:
    """Repeats a run for a given time, in blocks long enough for the clock."""

    def __init__(
        self, threads: int | None, min_run_time_s: float, show_progress: Callable[[str], None] = lambda what: None
    ) -> None:
        self.threads = threads or torch.get_num_threads()
        self._min_run_time_s, self._show_progress = min_run_time_s, show_progress

    def __call__(self, what: str, run: Callable[[], object]) -> Timing:
        """Return the median over blocks of runs, and their interquartile range."""
        self._show_progress(what)
        timer = Timer("run()", globals={"run": run}, num_threads=self.threads)
        first = timer.blocked_autorange(min_run_time=self._min_run_time_s)
        blocks = [first]
        taken_s = sum(first.raw_times)
        while sum(len(block.times) for block in blocks) < ENOUGH and taken_s < MOST_TIME * self._min_run_time_s:
            blocks.append(timer.timeit(first.number_per_run))
            taken_s += sum(blocks[-1].raw_times)
        (merged,) = Measurement.merge(blocks)
        count = len(merged.times)
        return Timing(merged.median, merged.iqr if count >= ENOUGH else None, count, first.number_per_run)
