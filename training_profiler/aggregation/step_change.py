"""The step from which on steps take another time, and what else is different from there on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from training_profiler.aggregation.hot_lines import lines_of, lines_with_loops
from training_profiler.aggregation.lines import LineCounts
from training_profiler.aggregation.totals import Totals
from training_profiler.aggregation.work import StepPoint
from training_profiler.base.units import NS_PER_S
from training_profiler.model.location import Location
from training_profiler.snapshot.snapshot import CHECKS, OTHER, PYTHON, LineChange, LineStats, StepChange
from training_profiler.statistics.change_point import ChangePoint, change_point
from training_profiler.statistics.trend import Series

LINES_KEPT: Final = 3  # of a section
MOSTLY_CALLED: Final = 0.5  # of a line's time
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
    """Return the two halves of a run after warm-up as if there were a change between them; None with too few steps."""
    middle = len(points) // 2
    if not middle:
        return None
    before, after = (float(np.median([point.ns for point in half])) for half in (points[:middle], points[middle:]))
    parts = ChangePoint(middle, middle, middle, before, after, is_abrupt=False)
    return _described(parts, points, totals, names, warmup)


def _described(
    found: ChangePoint, points: Sequence[StepPoint], totals: Totals, names: Mapping[int, str], warmup: int
) -> StepChange:
    # A point is the mean of consecutive steps: a change lies between the middles of two.
    first, at, last = (round((points[i - 1].step + points[i].step) / 2) for i in (found.first, found.at, found.last))
    calls = [point.calls for point in points]
    history = totals.history
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
        found[name] = tuple(changes[:LINES_KEPT])
    return {name: lines for name, lines in found.items() if lines}


def _called(line: LineStats) -> str:
    """Return the function that a line calls for most of its time; "" where it does something else."""
    name, share = max(line.called.items(), key=lambda item: item[1], default=("", 0.0))
    return name if share >= MOSTLY_CALLED * line.share and name not in (CHECKS, PYTHON) else ""


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
