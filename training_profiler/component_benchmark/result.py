"""The result of a component benchmark, in seconds, and the stopwatch that measures it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

# Importing the clock looks for a compiler of CUDA, and warns if there is one without a device.
_log = logging.getLogger("torch.utils.cpp_extension")
_level = _log.level
_log.setLevel(logging.ERROR)
from torch.utils.benchmark import Measurement, Timer  # noqa: E402

_log.setLevel(_level)

ENOUGH: Final = 5  # measurements; with fewer, quartiles mean nothing
MOST_TIME: Final = 5.0  # limit for reaching ENOUGH, in multiples of min_run_time_s


@dataclass(frozen=True)
class Timing:
    """The duration of one execution, from many measurements."""

    median_s: float
    iqr_s: float | None = None  # between the quartiles; None with too few measurements
    measurements: int = 1
    runs_each: int = 1  # executions per measurement, which is their mean

    @property
    def spread(self) -> float | None:
        """Return the IQR as a part of the median, or None."""
        return self.iqr_s / self.median_s if self.iqr_s is not None and self.median_s > 0 else None

    @property
    def is_noisy(self) -> bool:
        """Return whether the measurements differ by more than a tenth."""
        return self.spread is not None and self.spread > NOISY_FROM


@dataclass(frozen=True)
class MeasuredModule:
    """Equal calls of modules: same class, same shapes of parameters and inputs, same caller."""

    kind: str  # class
    names: tuple[str, ...]  # of the modules, as in named_modules()
    inputs: str  # shapes
    calls: int  # in one forward pass of the model
    parameters: int  # of one of the modules
    forward: Timing | None
    backward: Timing | None
    note: str | None  # why something was not measured, or how
    share_of_parent: float | None  # of the forward time of all calls of its parent
    share_of_model: float | None
    rest_s: float | None  # of one call: forward time outside of its children, by difference
    children: tuple["MeasuredModule", ...] = ()

    @property
    def total_s(self) -> float | None:
        """Return the forward time of all calls in one pass of the model."""
        return None if self.forward is None else self.calls * self.forward.median_s


@dataclass(frozen=True)
class ComponentBenchmark:
    """A model, its passes and its components."""

    source: str  # MODULE:FACTORY
    kind: str
    parameters: int
    device: str
    dtype: str
    mode: str  # train, eval or mixed
    threads: int
    torch: str
    passes: Mapping[str, Timing]  # forward, forward + loss, backward, optimizer step: those that were measured
    loss: str  # name of the loss
    root: MeasuredModule
    optimizer: str
    never_called: tuple[tuple[str, str], ...] = ()  # (name, class)
    notes: tuple[str, ...] = ()


# Returns the duration of one run; the text names it in the progress display.
Stopwatch = Callable[[str, Callable[[], object]], Timing]


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


NOISY_FROM: Final = 0.1  # IQR over median; half of the measurements of a quiet machine lie within a few percent
