"""The work of each step: how many forward passes it makes, and how large their inputs are."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from training_profiler.snapshot.snapshot import FORWARD_PASSES, INPUT_ELEMENTS
from training_profiler.statistics.arrays import Integers
from training_profiler.statistics.trend import Point, Series, trend

GROWS_FROM: Final = 0.05  # over the run; less is the chance of a mean
P_VALUE: Final = 0.001
SIZES_NEEDED: Final = 8
POINTS_NEEDED: Final = 10
FIRST: Final = 10  # steps that are left out: they are longer for other reasons


class StepPoint(NamedTuple):
    """The mean of consecutive steps."""

    step: float
    ns: float
    calls: float  # forward passes, with and without gradients


class WorkGrowth(NamedTuple):
    """Steps that do more and more."""

    unit: str
    rise: float  # of the work of a step over the run; 1: twice as much
    unit_rise: float  # of the time for one unit of work
    unit_p_value: float


class InputWork:
    """How the sizes of inputs and the times of steps vary together, where both are known for a step."""

    def __init__(self) -> None:
        self._pairs = 0
        self._sums = np.zeros(5)  # of elements, seconds, elements squared, seconds squared, and their products

    def add(self, first_step: int, durations_ns: Integers, sizes: Sequence[Point]) -> None:
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
            if 0 <= index < len(durations_ns) and first_step + index >= FIRST:
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


def explained_by_calls(points: Sequence[StepPoint]) -> float:
    """Return the part of the variance of step times that the number of forward passes explains, 0 to 1.

    That part is the squared correlation. 0 where the number is always the same.
    """
    if len(points) < POINTS_NEEDED:
        return 0.0
    _, ns, calls = np.asarray(points, np.float64).T
    apart = (ns.var() * calls.var()) ** 0.5
    return float(((ns - ns.mean()) * (calls - calls.mean())).mean() / apart) ** 2 if apart else 0.0


def work_growth(points: Sequence[StepPoint], sizes: Series) -> WorkGrowth | None:
    """Return what grows most in each step; None if the work is the same, or is not known."""
    calls = [point.calls for point in points]
    if not points or min(calls) <= 0:
        return None
    candidates = {FORWARD_PASSES: calls}
    if len(sizes.points) >= SIZES_NEEDED:
        at = [at / count for count, at, _ in sizes.points]
        # In updates, of which a step may have several.
        scale = min(1.0, points[-1].step / at[-1])
        at = [update * scale for update in at]
        mean = [value / count for count, _, value in sizes.points]
        elements = np.interp([point.step for point in points], at, mean).tolist()
        if min(elements) > 0:
            candidates[INPUT_ELEMENTS] = [call * size for call, size in zip(calls, elements, strict=True)]
    grown = []
    for unit, work in candidates.items():
        rise = trend([(point.step, amount) for point, amount in zip(points, work, strict=True)])
        cost = trend([(point.step, point.ns / amount) for point, amount in zip(points, work, strict=True)])
        if rise is not None and rise.rise > GROWS_FROM and rise.p_value <= P_VALUE:
            by_unit = (cost.rise, cost.p_value) if cost is not None else (0.0, 1.0)
            grown.append(WorkGrowth(unit, rise.rise, *by_unit))
    return max(grown, key=lambda growth: growth.rise, default=None)
