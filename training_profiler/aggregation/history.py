"""What a run did over its steps, in bounded memory: the time of each section, its lines, and the machine."""

from collections import Counter
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from training_profiler.aggregation.lines import IN_STEPS, LineCounts, LineTimes, WeightedLines
from training_profiler.aggregation.machine import MachineSums
from training_profiler.aggregation.section_series import SectionSeries
from training_profiler.base.units import NS_PER_US
from training_profiler.statistics.arrays import Ints

MOST_PARTS: Final = 256
MOST_LINES: Final = 48  # of a part of the run; the others count as lines that are not known


class MemoryPoint(NamedTuple):
    """Mean memory over some steps."""

    step: int  # the number of steps before the last of them
    bytes: float


class _Block(NamedTuple):
    steps: int
    sections_ns: Ints  # exclusive time, by section; the first is time in none

    def together(self, following: "_Block") -> "_Block":
        shorter, longer = sorted((self.sections_ns, following.sections_ns), key=len)
        sums_ns = longer.copy()
        sums_ns[: len(shorter)] += shorter
        return _Block(self.steps + following.steps, sums_ns)


class _Stretch(NamedTuple):
    steps: int
    machine: MachineSums
    lines: LineCounts  # in sections and within steps
    weighted: WeightedLines  # the time that these samples stand for

    def together(self, following: "_Stretch") -> "_Stretch":
        machine = MachineSums()
        machine.add_levels(self.machine)
        machine.add_levels(following.machine)
        kept = _most_seen(self.lines + following.lines)
        weighted = self.weighted.together(following.weighted)
        weighted.keep_in_steps(kept)
        return _Stretch(self.steps + following.steps, machine, kept, weighted)


Part = TypeVar("Part", _Block, _Stretch)


class _HistoryParts(Generic[Part]):
    """Consecutive parts of a run, each with as many steps as the others, or a little fewer."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._steps_a_part = 1

    def add(self, part: Part) -> None:
        """Add the next one; all become twice as long whenever there are too many."""
        self._append(part)
        while len(self.parts) > MOST_PARTS:
            self._steps_a_part *= 2
            parts, self.parts = self.parts, []
            for each in parts:
                self._append(each)

    def _append(self, part: Part) -> None:
        if self.parts and self.parts[-1].steps + part.steps <= self._steps_a_part:
            self.parts[-1] = self.parts[-1].together(part)
        else:
            self.parts.append(part)

    def within(self, first: int, end: int) -> list[Part]:
        """Return the parts all of whose steps are among these."""
        found, begin = [], 0
        for part in self.parts:
            if first <= begin and begin + part.steps <= end:
                found.append(part)
            begin += part.steps
        return found


class RunHistory:
    """The sections and the machine over the steps of a run."""

    def __init__(self) -> None:
        self._blocks: _HistoryParts[_Block] = _HistoryParts()
        self._stretches: _HistoryParts[_Stretch] = _HistoryParts()

    @property
    def size(self) -> int:
        """Number of parts that are kept."""
        return len(self._blocks.parts) + len(self._stretches.parts)

    def add(self, series: SectionSeries, steps: int, machine: MachineSums, lines: LineCounts, wall_ns: int = 0) -> None:
        """Add the steps of a stretch: their sections, their number, what the machine did, and the samples of lines.

        ``wall_ns`` is the time of the stretch, for which all its samples stand.
        """
        # As precise as a journal, so that a report from one has the same figures.
        sums_ns = (series.sums_ns + NS_PER_US // 2) // NS_PER_US * NS_PER_US
        for row, begin in zip(sums_ns, range(0, series.steps, series.steps_a_block), strict=False):
            self._blocks.add(_Block(min(series.steps_a_block, series.steps - begin), row))
        if series.steps < steps:  # a journal of an earlier version
            self._blocks.add(_Block(steps - series.steps, np.zeros(1, np.int64)))
        levels = MachineSums()
        levels.add_levels(machine)
        in_steps = Counter({key: count for key, count in lines.items() if key[0] > 0 or key[0] == IN_STEPS})
        kept = _most_seen(in_steps)
        weighted = WeightedLines()
        weighted.add(lines, wall_ns)
        weighted.keep_in_steps(kept)
        self._stretches.add(_Stretch(steps, levels, kept, weighted))

    def sections_ns(self, first: int, end: int) -> tuple[int, Ints] | None:
        """Return the number of steps and each section's time in the blocks that lie in these steps; None without."""
        block = _Block(0, np.zeros(1, np.int64))
        for each in self._blocks.within(first, end):
            block = block.together(each)
        return (block.steps, block.sections_ns) if block.steps and block.sections_ns.any() else None

    def machine(self, first: int, end: int) -> MachineSums:
        """Return what the machine did in the stretches that lie in these steps."""
        sums = MachineSums()
        for each in self._stretches.within(first, end):
            sums.add_levels(each.machine)
        return sums

    def memory(self, quantity: str) -> list[MemoryPoint]:
        """Return the means of a quantity of the machine over consecutive steps."""
        points, steps = [], 0
        for stretch in self._stretches.parts:
            steps += stretch.steps
            weight, weighted, _, _ = stretch.machine.levels.get(quantity, (0.0, 0.0, 0.0, 0.0))
            if weight and stretch.steps:
                points.append(MemoryPoint(steps - 1, weighted / weight))
        return points

    def lines(self, first: int, end: int) -> LineCounts:
        """Return the samples of lines in the stretches that lie in these steps."""
        counts: LineCounts = Counter()
        for each in self._stretches.within(first, end):
            counts += each.lines
        return counts

    def line_ns(self, first: int, end: int) -> LineTimes:
        """Return the time that these samples stand for."""
        weighted = WeightedLines()
        for each in self._stretches.within(first, end):
            weighted = weighted.together(each.weighted)
        return weighted.times()


def _most_seen(lines: LineCounts) -> LineCounts:
    if len(lines) <= MOST_LINES:
        return lines
    kept: LineCounts = Counter()
    for at, ((section, location), count) in enumerate(lines.most_common()):
        kept[section, location if at < MOST_LINES else None] += count
    return kept
