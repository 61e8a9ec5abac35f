"""Durations of training steps: spread, warm-up, trend, and the sections that vary with them."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.base.units import NS_PER_S
from training_profiler.model.ranks import FIRST_STEPS
from training_profiler.model.snapshot import AroundCapture
from training_profiler.statistics.arrays import Bools, Floats, Integers, Ints
from training_profiler.statistics.histogram import BIN_COUNT, FEW, bins_of, count_durations, quantile_ns

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


def columns(durations_ns: Integers, calls: Integers) -> tuple[Integers, Integers]:
    """Return these as arrays where they are many, so that several sums need not make them."""
    if len(durations_ns) < FEW:
        return durations_ns, calls
    return np.asarray(durations_ns, np.int64), np.asarray(calls, np.int64)


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


WARMUP_NEEDS: Final = 10  # steps before the median is reliable
SETTLED_AFTER: Final = 10  # first steps left out of the correlations
AT_ONCE: Final = 65_536  # steps that are added in one go, which takes some 200 bytes for each
VARIES_AT_LEAST: Final = 1e-9  # variance over squared mean; below this it is float64 rounding error


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
    def of(cls, durations_ns: Integers, numbers: Sequence[int]) -> "Moments":
        """Return those of steps with these durations and numbers."""
        if not len(durations_ns):
            return cls()
        if isinstance(durations_ns, np.ndarray):
            at = int(durations_ns.argmax())
        else:
            at = durations_ns.index(max(durations_ns))
        mean = _total(durations_ns) / len(durations_ns)
        if len(durations_ns) < FEW:
            m2 = sum((ns - mean) ** 2 for ns in durations_ns)
        else:
            m2 = float(((np.asarray(durations_ns, np.float64) - mean) ** 2).sum())
        return cls(len(durations_ns), mean, m2, (int(durations_ns[at]), numbers[at]))

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
        self._points: list[tuple[int, int, int]] = []  # (count, total ns, forward passes) of consecutive normal steps
        self._steps_a_point = 1

    def add(self, durations_ns: Integers, slowed: Sequence[int] = (), calls: Integers = ()) -> None:
        """Add the steps that follow those added before.

        Args:
            durations_ns: of the steps.
            slowed: indices among them, counted from 0.
            calls: forward passes in each of them; empty if unknown.
        """
        self.around_capture.add(durations_ns, slowed)
        for begin in range(0, max(1, len(durations_ns)), AT_ONCE):
            end = begin + AT_ONCE
            slowed_here = [at - begin for at in slowed if begin <= at < end]
            self._add_some(durations_ns[begin:end], slowed_here, calls[begin:end])

    def _add_some(self, durations_ns: Integers, slowed: Sequence[int], calls: Integers) -> None:
        if not len(durations_ns):
            return
        numbers: Sequence[int] = range(self.count + 1, self.count + 1 + len(durations_ns))
        made = calls if len(calls) == len(durations_ns) else [0] * len(durations_ns)
        room = max(0, FIRST_STEPS - len(self.first_ns))
        self.first_ns.extend(_listed(durations_ns[:room]))
        later = normal = Moments.of(durations_ns[room:], numbers[room:])
        self.total_ns += _total(durations_ns)
        self.count += len(durations_ns)
        if slowed:
            durations_ns, made, left_out = _listed(durations_ns), _listed(made), set(slowed)
            self._slowed_first.update(numbers[at] - 1 for at in slowed if at < room)
            count_durations(self._slowed_bins, [durations_ns[at] for at in slowed])
            own = [at for at in range(len(durations_ns)) if at not in left_out]
            own_later = [at for at in own if at >= room]
            normal = Moments.of([durations_ns[at] for at in own_later], [numbers[at] for at in own_later])
            durations_ns, made = [durations_ns[at] for at in own], [made[at] for at in own]
        count_durations(self.bins, durations_ns)
        self._later.add(later)
        self._later_normal.add(normal)
        self._add_points(durations_ns, made)

    def _add_points(self, durations_ns: Integers, calls: Integers) -> None:
        count, total, made = self._points[-1] if self._points else (self._steps_a_point, 0, 0)
        room = self._steps_a_point - count
        if room and len(durations_ns):
            fill = durations_ns[:room]
            self._points[-1] = (count + len(fill), total + _total(fill), made + _total(calls[:room]))
            durations_ns, calls = durations_ns[room:], calls[room:]
        if self._steps_a_point == 1:
            # The end is that of the shortest.
            self._points += zip(repeat(1), _listed(durations_ns), _listed(calls), strict=False)
            durations_ns = ()
        whole = len(durations_ns) // self._steps_a_point * self._steps_a_point
        sums = (
            np.asarray(column[:whole], np.int64).reshape(-1, self._steps_a_point).sum(axis=1).tolist()
            for column in (durations_ns, calls)
        )
        self._points += zip(repeat(self._steps_a_point), *sums, strict=False)
        if whole < len(durations_ns):
            self._points.append((len(durations_ns) - whole, _total(durations_ns[whole:]), _total(calls[whole:])))
        while len(self._points) > 1024:
            left_over = self._points[len(self._points) // 2 * 2 :]
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs] + left_over
            self._steps_a_point *= 2

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
        points, step = [], 0
        for count, total, calls in self._points:
            if step >= without_first:
                points.append(StepPoint(step + (count + 1) / 2, total / count, calls / count))
            step += count
        return points


def _total(values: Integers) -> int:
    return int(values.sum()) if isinstance(values, np.ndarray) else sum(values)


def _listed(values: Integers) -> Sequence[int]:
    return values.tolist() if isinstance(values, np.ndarray) else values


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


MANY: Final = 64  # steps


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
        used: Ints | slice = slice(0, self_ns.shape[1])
        if len(self_ns) > MANY:  # finding the sections that occur takes less time than adding up all
            used = np.flatnonzero(self_ns.any(axis=0))
        seconds = self_ns[:, used] * 1e-9
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
