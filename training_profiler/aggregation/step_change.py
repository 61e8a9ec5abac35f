"""The step from which on steps take another time, and what else is different from there on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from training_profiler.aggregation.lines import LineCounts, lines_of, lines_with_loops
from training_profiler.aggregation.step_totals import POINTS_NEEDED, StepPoint
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.model.location import Location
from training_profiler.model.snapshot import (
    FORWARD_PASSES,
    INPUT_ELEMENTS,
    OTHER,
    LineChange,
    LineStats,
    StepChange,
)
from training_profiler.statistics.trend import ChangePoint, Series, change_point, trend

SamplesBySection = dict[str, Counter[Location | None]]


def step_change(
    points: Sequence[StepPoint], totals: Totals, names: Mapping[int, str], warmup: int
) -> StepChange | None:
    """Return the largest change of step time after warm-up; None where there is none.

    Args:
        points: the steps after warm-up.
    """
    found = change_point(np.array([point.ns for point in points]))
    return None if found is None else _described(found, points, totals, names, warmup)


def halves(points: Sequence[StepPoint], totals: Totals, names: Mapping[int, str], warmup: int) -> StepChange | None:
    """Return two parts of a run after warm-up as if there were a change between them; None with too few steps."""
    middle = len(points) // 2
    parts = ChangePoint(middle, middle, middle, 0.0, 0.0, is_abrupt=False)
    return _described(parts, points, totals, names, warmup) if middle else None


def _described(
    found: ChangePoint, points: Sequence[StepPoint], totals: Totals, names: Mapping[int, str], warmup: int
) -> StepChange:
    # A point is the mean of consecutive steps: a change lies between the middles of two.
    first, at, last = (round((points[i - 1].step + points[i].step) / 2) for i in (found.first, found.at, found.last))
    calls = [point.calls for point in points]
    history = totals.history
    if not found.is_abrupt:  # any two parts show what grows: those that have all samples of their time
        first = at = last = history.nearest_end(at, points[0].step, points[-1].step)
        cut = sum(point.step < at for point in points)
        before, after = (float(np.median([point.ns for point in side])) for side in (points[:cut], points[cut:]))
        found = ChangePoint(cut, cut, cut, before, after, is_abrupt=False)
    sections = _sections(totals, names, warmup, first, last)
    return StepChange(
        step=at + 1,
        first_step=first + 1,
        last_step=last + 1,
        before_s=found.before / NS_PER_S,
        after_s=found.after / NS_PER_S,
        is_abrupt=found.is_abrupt,
        sections=sections,
        lines=_lines(
            sections,
            _by_section(history.lines(warmup, first), names),
            _by_section(history.lines(last, totals.steps.count), names),
        ),
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


def _lines(
    sections: Mapping[str, tuple[float, float]], before: SamplesBySection, after: SamplesBySection
) -> dict[str, tuple[LineChange, ...]]:
    """Return the lines of each section that rose most. A line has the part of its time that its samples have."""
    callers = lines_with_loops(before) | lines_with_loops(after)
    found = {}
    for name in sections.keys() & before.keys() & after.keys():
        then, now = (
            {f"{line.place} {line.what}": line for line in lines_of(seconds, samples[name], callers)}
            for seconds, samples in zip(sections[name], (before, after), strict=True)
        )
        changes = [
            LineChange(place, then[place].share if place in then else 0.0, line.share, line.samples, _called(line))
            for place, line in now.items()
        ]
        changes.sort(key=lambda change: change.before_s - change.after_s)
        found[name] = tuple(changes[:3])
    return {name: lines for name, lines in found.items() if lines}


def _called(line: LineStats) -> str:
    """Return the function that a line calls for most of its time; "" where it does something else."""
    name, share = max(line.called.items(), key=lambda item: item[1], default=("", 0.0))
    return name if share >= 0.5 * line.share and not name.startswith("<") else ""


def _by_section(counts: LineCounts, names: Mapping[int, str]) -> SamplesBySection:
    found: SamplesBySection = {}
    for (id, location), count in counts.items():
        found.setdefault(names.get(id) or OTHER, Counter())[location] += count
    return found


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


class WorkGrowth(NamedTuple):
    """Steps that do more and more."""

    unit: str
    rise: float  # of the work of a step over the run; 1: twice as much
    unit_rise: float  # of the time for one unit of work
    unit_p_value: float


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
    if len(sizes.points) >= 8:
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
        if rise is not None and rise.rise > 0.05 and rise.p_value <= 0.001:  # less is the chance of a mean
            by_unit = (cost.rise, cost.p_value) if cost is not None else (0.0, 1.0)
            grown.append(WorkGrowth(unit, rise.rise, *by_unit))
    return max(grown, key=lambda growth: growth.rise, default=None)
