"""Durations of training steps: spread, warm-up, trend, and the sections that vary with them."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.base.units import NS_PER_S
from training_profiler.model.interval import MOST_BLOCKS
from training_profiler.model.ranks import FIRST_STEPS
from training_profiler.model.snapshot import AroundCapture
from training_profiler.statistics.arrays import Bools, Floats, Integers, Ints
from training_profiler.statistics.histogram import BIN_COUNT, bins_of, count_durations, quantile_ns

POINTS_NEEDED: Final = 10


class StepPoint(NamedTuple):
    """The mean of consecutive steps."""

    step: float
    ns: float
    calls: float  # forward passes, with and without gradients


class InputWork:
    """How the sizes of inputs and the times of steps vary together, where both are known for a step."""

    def __init__(self) -> None:
        self._pairs = 0
        self._sums = np.zeros(5)  # of elements, seconds, elements squared, seconds squared, and their products

    def add(self, first_step: int, durations_ns: Integers, sizes: Sequence[tuple[int, float, float]]) -> None:
        """Add a stretch of steps.

        Args:
            first_step: steps before it.
            durations_ns: of its steps.
            sizes: inputs of forward passes by the number of their update, which is that of the step if each step has
                one update; counted from 1. Means of several are left out.
        """
        of_steps: defaultdict[int, float] = defaultdict(float)
        for count, at, elements in sizes:
            if count == 1:
                of_steps[int(at) - 1 - first_step] += elements
        for index, elements in of_steps.items():
            if 0 <= index < len(durations_ns) and first_step + index >= 10:  # earlier steps are longer
                seconds = durations_ns[index] * 1e-9
                self._pairs += 1
                self._sums += (elements, seconds, elements**2, seconds**2, elements * seconds)

    def explained(self) -> float:
        """Return the part of the variance of step times that the sizes explain, 0 to 1; 0 where they do not vary.

        That part is the squared correlation.
        """
        if self._pairs < POINTS_NEEDED:
            return 0.0
        elements, seconds, elements_2, seconds_2, products = self._sums / self._pairs
        apart = (elements_2 - elements**2) * (seconds_2 - seconds**2)
        return float(min(1.0, (products - elements * seconds) ** 2 / apart)) if apart > 0 else 0.0


STEPS: Final = 50  # on each side
STEPS_NEEDED: Final = 20  # before
# Of a median, with errors of a normal distribution; twice as much, because neighbouring steps depend on each other.
_ERROR_OF_MEDIAN: Final = 2 * 1.2533 * 1.4826


class AroundFirstCapture:
    """Keeps the steps around the first capture window. Those that it slowed are in neither side."""

    def __init__(self) -> None:
        self._before: deque[int] = deque(maxlen=STEPS)
        self._after: list[int] = []
        self._has_begun = False

    def add(self, durations_ns: Integers, slowed: Sequence[int]) -> None:
        """Add the steps that follow; ``slowed`` are the indices of those that a window slowed."""
        begin = 0
        if not self._has_begun:
            begin = min(slowed, default=len(durations_ns))
            self._before.extend(durations_ns[max(0, begin - STEPS) : begin])
            self._has_begun = len(slowed) > 0
        room = STEPS - len(self._after)
        if self._has_begun and room:
            left_out = set(slowed)
            normal = (durations_ns[at] for at in range(begin, len(durations_ns)) if at not in left_out)
            self._after += islice(normal, room)

    def compared(self) -> AroundCapture | None:
        """Return both medians; None without a capture, or with too few steps on a side."""
        if len(self._before) < STEPS_NEEDED or len(self._after) < STEPS:
            return None
        before, after = (np.asarray(side, np.float64) / NS_PER_S for side in (self._before, self._after))
        before_s, after_s = float(np.median(before)), float(np.median(after))
        error_s = np.hypot(_error_of(before, before_s), _error_of(after, after_s))
        return AroundCapture(before_s, after_s, float(error_s))


def _error_of(values: Floats, median: float) -> float:
    return _ERROR_OF_MEDIAN * float(np.median(np.abs(values - median))) / sqrt(len(values))


class CaptureAffectedSteps:
    """Ranges of steps, counted from 1. The training thread adds them, the draining thread reads them."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int | None]] = []

    def begin(self, step: int) -> None:
        """Mark the steps from ``step`` on as slowed, until ``end``."""
        self._ranges.append((step, None))

    def end(self, last: int) -> None:
        """Set the last slowed step."""
        if self._ranges and self._ranges[-1][1] is None:
            self._ranges[-1] = (self._ranges[-1][0], last)

    def among(self, before: int, count: int) -> list[int]:
        """Return the slowed steps among the ``count`` steps after the first ``before``, counted from 0."""
        slowed: set[int] = set()
        for first, last in list(self._ranges):
            end = count if last is None else min(count, last - before)
            slowed.update(range(max(0, first - 1 - before), end))
        return sorted(slowed)


MANY: Final = 32  # steps
MOST_POINTS: Final = 1024
INSPECTED: Final = 2.0  # x the median: a shorter step was hardly slowed
WARMUP_NEEDS: Final = 10  # steps before the median is reliable
SETTLED_AFTER: Final = 10  # first steps left out of the correlations
VARIES_AT_LEAST: Final = 1e-9  # variance over squared mean; below this it is float64 rounding error


class StepBlocks:
    """Sums over blocks of consecutive steps. Blocks become twice as long whenever there are too many."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self.steps = 0
        self.steps_a_block = 1
        self.sums_ns = np.zeros((0, 1), np.int64)  # a row per block; the last may not be full

    def add(self, self_ns: Ints) -> None:
        """Add the steps that follow, shape (steps, columns): a column for each section, or other quantity."""
        count, width = self_ns.shape
        if not count:
            return
        end = self.steps + count
        while end > self._most_blocks * self.steps_a_block:
            self.steps_a_block *= 2
            if len(self.sums_ns):
                self.sums_ns = np.add.reduceat(self.sums_ns, np.arange(0, len(self.sums_ns), 2))
        blocks = -(-end // self.steps_a_block)
        known_blocks, known_width = self.sums_ns.shape
        if blocks > known_blocks or width > known_width:
            sums_ns = np.zeros((max(blocks, known_blocks), max(width, known_width)), np.int64)
            sums_ns[:known_blocks, :known_width] = self.sums_ns
            self.sums_ns = sums_ns
        first = self.steps // self.steps_a_block
        begins = np.maximum(np.arange(first, blocks) * self.steps_a_block - self.steps, 0)
        self.sums_ns[first:blocks, :width] += np.add.reduceat(self_ns, begins)
        self.steps = end

    def restore(self, sums_ns: Ints, steps: int, steps_a_block: int) -> None:
        """Take over the sums of a series that was written to a journal."""
        self.sums_ns, self.steps, self.steps_a_block = sums_ns, steps, steps_a_block


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and deviation of step durations, in ns."""

    count: int
    total_ns: float
    mean_ns: float
    std_ns: float  # of the sample; 0 for a single step


class Moments:
    """Count, mean, sum of squared deviations, and the longest of the steps that are not kept one by one."""

    def __init__(self, count: int = 0, mean: float = 0.0, m2: float = 0.0, longest: tuple[int, int] = (-1, 0)) -> None:
        self.count = count
        self.mean = mean
        self.m2 = m2
        self.longest = longest  # (ns, step counted from 1)

    @classmethod
    def of(cls, durations_ns: Ints, numbers: Ints) -> "Moments":
        """Return those of steps with these durations and numbers."""
        if not len(durations_ns):
            return cls()
        at, mean = int(durations_ns.argmax()), int(durations_ns.sum()) / len(durations_ns)
        squares = (durations_ns - mean) ** 2
        m2 = float(squares.sum() if len(squares) >= MANY else sum(squares.tolist()))  # numpy adds up in another order
        return cls(len(durations_ns), mean, m2, (int(durations_ns[at]), int(numbers[at])))

    def add(self, later: "Moments") -> None:
        """Add those of later steps."""
        if not later.count:
            return
        if later.longest[0] > self.longest[0]:
            self.longest = later.longest
        together = self.count + later.count
        delta = later.mean - self.mean
        self.m2 += later.m2
        self.m2 += delta**2 * self.count * later.count / together
        self.mean += delta * later.count / together
        self.count = together


class StepSums:
    """Running sums over steps, in bounded memory.

    Steps slowed by a capture window only enter count and total, unless they are the majority.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.first_ns: list[int] = []
        self.around_capture = AroundFirstCapture()
        self.bins = np.zeros(BIN_COUNT, np.int64)  # of normal steps, those that no capture window slowed
        self._slowed_bins = np.zeros(BIN_COUNT, np.int64)
        self._slowed_first: set[int] = set()  # among the first steps, counted from 0
        self._later, self._later_normal = Moments(), Moments()
        self._points = StepBlocks(MOST_POINTS)  # total ns and forward passes of consecutive normal steps

    def add(self, durations_ns: Integers, slowed: Sequence[int] = (), calls: Integers = ()) -> None:
        """Add the steps that follow those added before.

        Args:
            durations_ns: of the steps.
            slowed: indices among them, counted from 0.
            calls: forward passes in each of them; empty if unknown.
        """
        count = len(durations_ns)
        if not count:
            return
        durations_ns = np.asarray(durations_ns, np.int64)
        made = np.asarray(calls, np.int64) if len(calls) == count else np.zeros(count, np.int64)
        self.around_capture.add(durations_ns, slowed)
        numbers = np.arange(self.count + 1, self.count + 1 + count)
        is_later, is_normal = numbers > FIRST_STEPS, np.ones(count, np.bool_)
        is_normal[list(slowed)] = False
        self.first_ns += durations_ns[~is_later].tolist()
        self._slowed_first.update((numbers[~is_later & ~is_normal] - 1).tolist())
        self.total_ns += int(durations_ns.sum())
        self.count += count
        for moments, rows in ((self._later, is_later), (self._later_normal, is_later & is_normal)):
            moments.add(Moments.of(durations_ns[rows], numbers[rows]))
        count_durations(self.bins, durations_ns[is_normal])
        count_durations(self._slowed_bins, durations_ns[~is_normal])
        self._points.add(np.stack((durations_ns, made), axis=1)[is_normal])

    def median_ns(self) -> float | None:
        """Return the median normal step; None without steps. It is exact for 64 steps, and within 1 % for more."""
        if 0 < self.count == len(self.first_ns):
            normal = [ns for ns, _ in self._first_normal()] if self._is_mostly_normal else self.first_ns
            return float(np.median(normal))
        return quantile_ns(self.bins if self._is_mostly_normal else self.bins + self._slowed_bins, 0.5)

    def p95_ns(self, without_first: int = 0) -> float | None:
        """Return the 95th percentile (nearest rank) of normal steps, within 1 %; None with fewer than 20.

        Args:
            without_first: number of first steps to leave out, at most 64.
        """
        if self._is_mostly_normal:
            bins, left_out = self.bins.copy(), set(range(without_first)) - self._slowed_first
        else:
            bins, left_out = self.bins + self._slowed_bins, set(range(without_first))
        first_ns = [self.first_ns[at] for at in sorted(left_out)]
        if first_ns:
            np.subtract.at(bins, bins_of(np.asarray(first_ns, np.int64)), 1)
        return quantile_ns(bins, 0.95) if bins.sum() >= 20 else None  # the longest step is it, with fewer

    @property
    def slowed_count(self) -> int:
        """Number of steps slowed by a capture window."""
        return int(self._slowed_bins.sum())

    @property
    def _is_mostly_normal(self) -> bool:
        return 2 * self.slowed_count <= self.count

    def warmup_steps(self, configured: int | None = None) -> int:
        """Return the number of warm-up steps: ``configured``, else the first steps in a row above 3 medians."""
        if configured is not None:
            return min(configured, self.count)
        median = self.median_ns()
        if median is None or self.count < WARMUP_NEEDS:
            return 0
        # The exception cannot be more than half of the steps.
        candidates = self.first_ns[: min(FIRST_STEPS, self.count // 2)]
        slow = 0
        while slow < len(candidates) and candidates[slow] > 3.0 * median:  # docs/reference/figures.md
            slow += 1
        return slow

    def steps_made_long(self, inspected: int) -> int:
        """Return the number of first steps up to the last long one of so many ``inspected``; 0 if few others remain."""
        early, median = self.first_ns[:inspected], self.median_ns() or 0.0
        if self.count < inspected + WARMUP_NEEDS:
            return 0
        return max((step for step, ns in enumerate(early, 1) if ns > INSPECTED * median), default=0)

    def spread(self, without_first: int = 0) -> Spread | None:
        """Return mean and deviation without the ``without_first`` first steps; None if nothing is left.

        At most the first 64 steps can be left out.
        """
        return _spread(self.first_ns[without_first:], self._later)

    def normal_spread(self, without_first: int = 0) -> Spread | None:
        """Return the same of normal steps; of all steps if no normal step is left."""
        if not self._is_mostly_normal:
            return self.spread(without_first)
        normal = _spread([ns for ns, _ in self._first_normal(without_first)], self._later_normal)
        return self.spread(without_first) if normal is None else normal

    def longest(self, without_first: int = 0) -> tuple[int, int]:
        """Return (ns, step counted from 1) of the longest step that ``normal_spread`` covers."""
        first = [(ns, i + 1) for i, ns in enumerate(self.first_ns) if i >= without_first]
        steps = [*self._first_normal(without_first), self._later_normal.longest]
        if not self._is_mostly_normal or steps == [Moments().longest]:
            steps = [*first, self._later.longest]
        return max(steps, key=lambda step: step[0])

    def _first_normal(self, without_first: int = 0) -> list[tuple[int, int]]:
        return [(ns, i + 1) for i, ns in enumerate(self.first_ns) if i >= without_first and i not in self._slowed_first]

    def work_series(self, without_first: int = 0) -> list[StepPoint]:
        """Return the means of groups of consecutive steps, at most 1024 of them."""
        points, series = [], self._points
        for block, (total, calls) in enumerate(series.sums_ns.tolist()):
            step = block * series.steps_a_block
            count = min(series.steps_a_block, series.steps - step)
            if step >= without_first:
                points.append(StepPoint(step + (count + 1) / 2, total / count, calls / count))
        return points


def _spread(first_ns: Sequence[int], later: Moments) -> Spread | None:
    first = np.asarray(first_ns, np.float64)
    count = len(first) + later.count
    if not count:
        return None
    mean = (first.sum() + later.mean * later.count) / count
    m2 = float(((first - mean) ** 2).sum()) + later.m2
    m2 += later.count * (later.mean - mean) ** 2
    std = float(np.sqrt(m2 / (count - 1))) if count > 1 else 0.0
    return Spread(count, float(mean * count), float(mean), std)


def settled(first_step: int, count: int, slowed: Sequence[int]) -> Bools:
    """Return which of ``count`` steps, the first of them ``first_step``, enter correlations; ``slowed`` do not."""
    is_settled = np.arange(count) >= SETTLED_AFTER - first_step
    is_settled[list(slowed)] = False
    return is_settled


class Coupling:
    """Correlation of each section's time with the step's, from running sums.

    The first ten steps are left out, for warm-up would drown all else. Column i is the section
    with id i, column 0 the time of no section.
    """

    def __init__(self, rows: int = 16) -> None:
        self.count = 0
        self.step = np.zeros(2)  # sum and sum of squares of step seconds
        self.sections = np.zeros((3, rows))  # sum, sum of squares, sum of products with the step

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` sections."""
        missing = rows - self.sections.shape[1]
        if missing > 0:
            self.sections = np.pad(self.sections, ((0, 0), (0, missing)))

    def add_steps(self, first_step: int, self_ns: NDArray[np.int64], slowed: Sequence[int] = ()) -> None:
        """Add complete steps.

        Args:
            first_step: number of the first of them, counted from 0.
            self_ns: exclusive time within each step, shape (steps, sections), column 0 for time in no section.
            slowed: indices of steps to leave out, counted from 0.
        """
        if slowed or first_step < SETTLED_AFTER:
            self_ns = self_ns[settled(first_step, len(self_ns), slowed)]
        used = slice(0, self_ns.shape[1])
        seconds = self_ns * 1e-9
        step_s = seconds.sum(axis=1)
        self.count += len(step_s)
        self.step += (step_s.sum(), step_s @ step_s)
        self.sections[0, used] += seconds.sum(axis=0)
        self.sections[1, used] += np.einsum("ij,ij->j", seconds, seconds)
        self.sections[2, used] += step_s @ seconds

    def add(self, later: "Coupling") -> None:
        """Add the sums of other steps."""
        self.grow(later.sections.shape[1])
        self.count += later.count
        self.step += later.step
        self.sections[:, : later.sections.shape[1]] += later.sections

    def explained(self) -> Floats:
        """Return each section's part of the variance of step time, shape (sections,). The parts add up to 1.

        That part is cov(section, step) / var(step). Zeros where nothing varies.
        """
        if self.count < 2:
            return np.zeros(self.sections.shape[1])
        mean = self.step[0] / self.count
        variance = self.step[1] / self.count - mean**2
        covariance = self.sections[2] / self.count - self.sections[0] / self.count * mean
        if variance <= VARIES_AT_LEAST * mean**2:
            return np.zeros_like(covariance)
        return np.asarray(covariance / variance, np.float64)
