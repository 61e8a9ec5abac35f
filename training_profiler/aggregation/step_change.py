"""The step from which on steps take another time, and what else is different from there on."""

from collections.abc import Mapping, Sequence

import numpy as np

from training_profiler.aggregation.change_point import change_point
from training_profiler.aggregation.totals import Totals
from training_profiler.aggregation.trend import Series
from training_profiler.snapshot.snapshot import OTHER, StepChange
from training_profiler.units import NS_PER_S


def step_change(totals: Totals, names: Mapping[int, str], warmup: int) -> StepChange | None:
    """Return the largest change of step time after warm-up; None where there is none."""
    points = totals.steps.work_series(warmup)
    found = change_point(np.array([point.ns for point in points]))
    if found is None:
        return None
    # A point is the mean of consecutive steps: a change lies between the middles of two.
    first, at, last = (round((points[i - 1].step + points[i].step) / 2) for i in (found.first, found.at, found.last))
    calls = [point.calls for point in points]
    history = totals.history
    return StepChange(
        step=at + 1,
        first_step=first + 1,
        last_step=last + 1,
        before_s=found.before / NS_PER_S,
        after_s=found.after / NS_PER_S,
        is_abrupt=found.is_abrupt,
        sections=_sections(totals, names, warmup, first, last),
        forward_passes=(_mean(calls[: found.at]), _mean(calls[found.at :])) if min(calls) > 0 else None,
        input_elements=_elements(totals.input_sizes, at / totals.steps.count),
        machine=(
            history.machine(0, last).stats(has_growth=False),
            history.machine(first, totals.steps.count).stats(has_growth=False),
        ),
    )


def _sections(
    totals: Totals, names: Mapping[int, str], warmup: int, first: int, last: int
) -> dict[str, tuple[float, float]]:
    """Return the time a step of each section before and after a change, without the blocks in which it may lie."""
    sides = totals.history.sections_ns(warmup, first), totals.history.sections_ns(last, totals.steps.count)
    if sides[0] is None or sides[1] is None:
        return {}
    width = max(len(ns) for _, ns in filter(None, sides))
    before, after = (
        (np.pad(ns, (0, width - len(ns))) / steps / NS_PER_S).tolist() for steps, ns in filter(None, sides)
    )
    pairs = enumerate(zip(before, after, strict=True))
    return {names.get(id) or OTHER: pair for id, pair in pairs if any(pair)}


def _elements(sizes: Series, part: float) -> tuple[float, float] | None:
    """Return the mean elements of an input before and after this part of all updates; None if they are not known."""
    if not sizes.points:
        return None
    # In updates, of which a step may have several.
    end = sizes.points[-1][1] / sizes.points[-1][0]
    before = [point for point in sizes.points if point[1] / point[0] <= part * end]
    after = sizes.points[len(before) :]
    if not before or not after:
        return None
    return _per_value(before), _per_value(after)


def _per_value(points: Sequence[tuple[int, float, float]]) -> float:
    return sum(value for _, _, value in points) / sum(count for count, _, _ in points)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
