"""All sums over a stretch of time: a flush interval, a report interval, an epoch, or a run."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import field

from training_profiler.aggregation.garbage import GarbageSums
from training_profiler.aggregation.history import RunHistory
from training_profiler.aggregation.lines import LineCounts, WeightedLines
from training_profiler.aggregation.loaders import LoaderSums
from training_profiler.aggregation.machine import MachineSums
from training_profiler.aggregation.section_series import SectionSeries
from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.step_totals import FIRST_STEPS, Coupling, StepSums, settled
from training_profiler.aggregation.work import InputWork
from training_profiler.model.interval import StretchFigures
from training_profiler.recording.gradient_sync import BLOCK_STEPS, compared_blocks
from training_profiler.statistics.arrays import Integers, Ints
from training_profiler.statistics.trend import Series

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
    series: SectionSeries = field(default_factory=SectionSeries)  # of this stretch only
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

    def add(self, later: "Totals", durations_ns: Integers, calls: Integers) -> None:
        """Add the stretch that follows this one, with the durations and the forward passes of its steps."""
        self.end_ns = later.end_ns
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
            self.machine.forget_growth()
        if self.first_fetch_ns is None:
            self.first_fetch_ns = later.first_fetch_ns
        self.lines.update(later.lines)
        self.weighted_lines.add(later.lines, later.wall_ns)
        self.machine.add(later.machine)
        self._add_batches(later)
        for name in SUMMED:
            if (more := getattr(later, name)) is not None:
                setattr(self, name, (getattr(self, name) or 0) + more)
        self.flops = later.flops or self.flops
        self.slow_steps = max(self.slow_steps, later.slow_steps)
        self.loaders.add(later.loaders)
        self.with_grad = (self.with_grad[0] + later.with_grad[0], self.with_grad[1] + later.with_grad[1])

    def _add_batches(self, later: "Totals") -> None:
        if later.batches is None:
            return
        if self.batches is None:
            self.batches, self.samples = later.batches, later.samples
        else:
            self.batches += later.batches
            is_known = self.samples is not None and later.samples is not None
            self.samples = self.samples + later.samples if is_known else None  # type: ignore[operator]


def rows_for(sections: int) -> int:
    """Return the number of rows to keep for this many sections; a multiple of 16, so that arrays seldom grow."""
    return (sections // 16 + 1) * 16
