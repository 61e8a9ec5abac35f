"""All sums over a stretch of time: a flush interval, a report interval, an epoch, or a run."""

import sys
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from msgspec import field

from training_profiler.aggregation.lines import ENOUGH, IN_STEPS, LineCounts, LineTimes, WeightedLines
from training_profiler.aggregation.loaders import LoaderSums
from training_profiler.aggregation.machine import GarbageSums, MachineSums
from training_profiler.aggregation.section_totals import SectionSums, rows_for
from training_profiler.aggregation.step_totals import Coupling, InputWork, StepBlocks, StepSums, settled
from training_profiler.base.sections import BACKWARD_PASS, SYNCHRONIZATION, SectionNames
from training_profiler.base.units import NS_PER_US
from training_profiler.model.interval import StretchFigures
from training_profiler.model.ranks import BLOCK_STEPS, FIRST_STEPS, GradientSyncTotals, compared_blocks
from training_profiler.statistics.arrays import Ints
from training_profiler.statistics.trend import Series

MOST_PARTS: Final = 256
MOST_LINES: Final = 48  # of a part of the run; the others count as lines that are not known


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

    def add(self, series: StepBlocks, steps: int, machine: MachineSums, lines: LineCounts, wall_ns: int = 0) -> None:
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

    def blocks(self, first: int) -> list[tuple[int, list[int]]]:
        """Return the blocks of steps after the first ones: how many steps, and the time of each section in ns."""
        return [(part.steps, part.sections_ns.tolist()) for part in self._blocks.within(first, sys.maxsize)]

    def sections_ns(self, first: int, end: int) -> tuple[int, Ints] | None:
        """Return the number of steps and each section's time in the blocks that lie in these steps; None without."""
        block = _Block(0, np.zeros(1, np.int64))
        for each in self._blocks.within(first, end):
            block = block.together(each)
        return (block.steps, block.sections_ns) if block.steps and block.sections_ns.any() else None

    def nearest_end(self, step: int, first: float, last: float) -> int:
        """Return the end of a stretch between these steps that is nearest to ``step``, which it is without one.

        One with enough samples on either side goes before.
        """
        parts, found = self._stretches.parts, [(0, 0, step)]
        samples = sum(part.lines.total() for part in parts)
        before = 0
        for part, end in zip(parts, accumulate(part.steps for part in parts), strict=True):
            before += part.lines.total()
            if first < end < last:
                found.append((-min(ENOUGH, before, samples - before), abs(end - step), end))
        return min(found[1:], default=found[0])[2]

    def machine(self, first: int, end: int) -> MachineSums:
        """Return what the machine did in the stretches that lie in these steps."""
        sums = MachineSums()
        for each in self._stretches.within(first, end):
            sums.add_levels(each.machine)
        return sums

    def memory(self, quantity: str) -> list[tuple[int, float]]:
        """Return the means of a quantity of the machine over steps, each after the number of steps before its last."""
        points, steps = [], 0
        for stretch in self._stretches.parts:
            steps += stretch.steps
            weight, weighted, _, _ = stretch.machine.levels.get(quantity, (0.0, 0.0, 0.0, 0.0))
            if weight and stretch.steps:
                points.append((steps - 1, weighted / weight))
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


SUMMED: Final = ("tokens", "training_spans", "dropped", "unended")


class Totals(StretchFigures, eq=False, kw_only=True):
    """Sums over ``begin_ns`` to ``end_ns`` of the recorder's clock.

    ``sections.self_ns`` adds up to ``end_ns - begin_ns`` exactly; its row 0 is the time of no section.
    """

    sections: SectionSums = field(default_factory=SectionSums)
    coupling: Coupling = field(default_factory=Coupling)
    garbage: GarbageSums = field(default_factory=GarbageSums)
    # Time of each section (column) in each of the run's first steps, nested sections included. Warm-up is only
    # known afterwards, and then subtracted.
    early_ns: Ints = field(default_factory=lambda: np.zeros((FIRST_STEPS, 1), np.int64))
    # Exclusive times of single steps, which ranks compare. Of this stretch only: ``add`` does not sum them.
    compared: dict[int, Ints] = field(default_factory=dict)
    series: StepBlocks = field(default_factory=StepBlocks)  # of this stretch only
    history: RunHistory = field(default_factory=RunHistory)  # of the run alone
    step_calls: list[int] = field(default_factory=list)  # forward passes in each complete step of this stretch alone
    input_sizes: Series = field(default_factory=Series)  # (step, elements) of the inputs of single forward passes
    input_work: InputWork = field(default_factory=InputWork)  # of sums of stretches alone
    training_spans: int = 0  # spans that ended on the training thread, which pays for them
    lines: LineCounts = field(default_factory=LineCounts)
    # The time that these samples stand for; of sums of stretches alone.
    weighted_lines: WeightedLines = field(default_factory=WeightedLines)
    machine: MachineSums = field(default_factory=MachineSums)
    loaders: LoaderSums = field(default_factory=LoaderSums)
    _steps: StepSums = field(default_factory=StepSums)
    _step_count: int = 0
    # Durations and indices of slowed steps that are not in ``steps`` yet.
    _waiting: list[tuple[Sequence[int], Sequence[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end_ns = max(self.end_ns, self.begin_ns)

    @classmethod
    def with_rows(cls, begin_ns: int, first_step: int, rows: int) -> "Totals":
        """Return totals with room for so many sections at first; arrays that grow are copied."""
        return cls(begin_ns, first_step, sections=SectionSums(rows), coupling=Coupling(rows))

    @property
    def wall_ns(self) -> int:
        """Duration of the stretch."""
        return self.end_ns - self.begin_ns

    @property
    def steps(self) -> StepSums:
        """The sums over steps.

        Of a stretch that is only added to a run they are never asked for, and took a quarter of adding up short steps.
        """
        waiting, self._waiting = self._waiting, []
        for durations_ns, slowed in waiting:
            self._steps.add(durations_ns, slowed)
        return self._steps

    def add_steps(
        self,
        durations_ns: Sequence[int],
        self_ns: Ints,
        first_step: int,
        slowed: Sequence[int],
        in_collections: Ints | None = None,
    ) -> None:
        """Add complete steps.

        Args:
            durations_ns: of the steps.
            self_ns: exclusive times of the sections in each.
            first_step: number of the first of them, counted from 0.
            slowed: indices of those that a capture slowed.
            in_collections: time in garbage collections in each; None if it is not known.
        """
        self.slowed_by_capture += [self._step_count + at for at in slowed]
        self._waiting.append((durations_ns, slowed))
        self._step_count += len(durations_ns)
        early = max(0, min(len(self_ns), FIRST_STEPS - first_step))
        if early:
            steps = np.arange(first_step, first_step + early)
            self.add_early(steps, np.zeros(early, np.int64), self_ns[:early, 0])  # column 0 has no spans
        self.coupling.grow(self_ns.shape[1])
        self.coupling.add_steps(first_step, self_ns, slowed)
        if in_collections is not None:
            is_settled = settled(first_step, len(self_ns), slowed)
            self.garbage.add_steps(in_collections[is_settled], self_ns.sum(axis=1)[is_settled])
        self.series.add(self_ns)
        self.sections.step_self_ns[: self_ns.shape[1]] += self_ns.sum(axis=0)
        end = first_step + len(self_ns)
        for block in compared_blocks(first_step, end):
            for step in range(max(block, first_step), min(block + BLOCK_STEPS, end)):
                self.compared[step] = self_ns[step - first_step]

    def add_early(self, steps: Ints, ids: Ints, ns: Ints) -> None:
        """Add time of sections in complete steps, counted from 0; later than the first steps is ignored."""
        missing = self.sections.rows - self.early_ns.shape[1]
        if missing > 0:
            self.early_ns = np.pad(self.early_ns, ((0, 0), (0, missing)))
        is_early = (steps >= 0) & (steps < FIRST_STEPS)
        np.add.at(self.early_ns, (steps[is_early], ids[is_early]), ns[is_early])

    def add(self, later: "Totals", durations_ns: Ints, calls: Ints) -> None:
        """Add the stretch that follows this one, with the durations and the forward passes of its steps."""
        self.end_ns = later.end_ns
        if later.loop_end_ns is not None:
            self.loop_end_ns = later.loop_end_ns
            self.sections.clear_after()
        self.sections.add(later.sections)
        self.input_work.add(self.steps.count, durations_ns, later.input_sizes.points)
        self.steps.add(durations_ns, later.slowed_by_capture, calls)
        self.input_sizes.add_points(later.input_sizes.points)
        self.coupling.add(later.coupling)
        self.garbage.add(later.garbage)
        if later.early_ns.any():
            steps, ids = np.nonzero(later.early_ns)
            self.add_early(steps, ids, later.early_ns[steps, ids])
        if later.loop_begin_ns is not None and self.loop_begin_ns != later.loop_begin_ns:
            self.loop_begin_ns = later.loop_begin_ns
            self.machine.series.clear()  # all of it was before the first step
        if self.first_fetch_ns is None:
            self.first_fetch_ns = later.first_fetch_ns
        self.lines.update(later.lines)
        self.weighted_lines.add(later.lines, later.wall_ns)
        self.machine.add(later.machine)
        if later.batches is not None:
            before = 0 if self.batches is None else self.samples
            self.samples = None if before is None or later.samples is None else before + later.samples
            self.batches = (self.batches or 0) + later.batches
        for name in SUMMED:
            if (more := getattr(later, name)) is not None:
                setattr(self, name, (getattr(self, name) or 0) + more)
        self.flops = later.flops or self.flops
        self.slow_steps = max(self.slow_steps, later.slow_steps)
        self.named_steps = max(self.named_steps, later.named_steps)
        self.loaders.add(later.loaders)
        self.with_grad = (self.with_grad[0] + later.with_grad[0], self.with_grad[1] + later.with_grad[1])


class GradientSyncAttribution:
    """Moves exposed gradient sync from backward passes to ``synchronization`` nested in them.

    Both are measured on the host's clock. DDP may report time for a step that has not ended. The part that exceeds
    this interval is carried into the next one, and moved in sums that contain both (see ``move_late``).
    """

    def __init__(self, names: SectionNames) -> None:
        self._names = names
        self._waiting_ns = 0  # still to move
        self._spans = 0
        self._moved_ns = 0  # moved, but not yet attributed to a step
        self._early: deque[tuple[int, int]] = deque()  # (one of the first steps, ns), often known late

    def attribute(self, totals: Totals, synced: GradientSyncTotals, has_steps: bool) -> None:
        """Move the reported time in ``totals``, if the host waits for it."""
        if not synced.is_on_host:
            return
        late_ns, self._waiting_ns = self._waiting_ns, synced.exposed_ns
        self._spans += synced.exchanges
        self._early.extend((step, ns) for step, ns in synced.of_steps if ns and step < FIRST_STEPS)
        if not late_ns and not self._waiting_ns and not self._early:
            return
        backward = next((id for id, name in list(self._names.names.items()) if name == BACKWARD_PASS), None)
        if backward is None:  # the section around the backward passes is unknown
            self._waiting_ns = self._spans = 0
            self._early.clear()
            return
        synchronization = self._names.id_of(SYNCHRONIZATION)
        sections = totals.sections
        sections.grow(rows_for(len(self._names.names)))
        totals.late_exchange_ns = late_ns
        # An open step may turn out not to be a step. Most time of a step that began earlier may be in earlier totals.
        moved_ns = _move(sections, backward, synchronization, self._waiting_ns, has_steps)
        if moved_ns:
            edge = (backward, synchronization)
            sections.count[synchronization] += self._spans
            sections.parents[edge] = sections.parents.get(edge, 0) + self._spans
            self._spans = 0
        self._waiting_ns -= moved_ns
        self._moved_ns += late_ns + moved_ns
        while self._early and self._moved_ns:  # one by one: the first steps may turn out to be warm-up
            step, ns = self._early.popleft()
            moved_ns = min(ns, self._moved_ns)
            self._moved_ns -= moved_ns
            if moved_ns < ns:
                self._early.appendleft((step, ns - moved_ns))
            totals.add_early(*(np.array([value], np.int64) for value in (step, synchronization, moved_ns)))


def move_late(sums: Totals, names: SectionNames, later: Totals) -> None:
    """Move gradient sync that ``later`` reports for backward passes before it, if ``sums`` contains these too."""
    ns = later.late_exchange_ns if sums.begin_ns < later.begin_ns else 0
    if not ns:
        return
    ids = {name: id for id, name in list(names.names.items()) if name in (BACKWARD_PASS, SYNCHRONIZATION)}
    if len(ids) == 2 and max(ids.values()) < sums.sections.rows:
        _move(sums.sections, ids[BACKWARD_PASS], ids[SYNCHRONIZATION], ns, has_steps=True)


def _move(sections: SectionSums, backward: int, synchronization: int, most_ns: int, has_steps: bool) -> int:
    """Move at most so much time of backward passes; return how much was moved."""
    own = [sections.self_ns, sections.step_self_ns] if has_steps else [sections.self_ns]
    whole = [sections.total_ns, sections.step_total_ns] if has_steps else [sections.total_ns]
    moved_ns = max(0, min(most_ns, *(int(column[backward]) for column in own)))
    for column in own:
        column[backward] -= moved_ns
    for column in own + whole:
        column[synchronization] += moved_ns
    return moved_ns
