"""All sums over a stretch of time: a flush interval, a report interval, an epoch, or a run."""

from collections.abc import Sequence

import numpy as np

from training_profiler.aggregation.arrays import Integers, Ints
from training_profiler.aggregation.garbage import GarbageSums
from training_profiler.aggregation.history import RunHistory
from training_profiler.aggregation.lines import LineCounts, WeightedLines
from training_profiler.aggregation.loaders import LoaderSums
from training_profiler.aggregation.machine import MachineSums
from training_profiler.aggregation.section_series import SectionSeries
from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.step_totals import FIRST_STEPS, Coupling, StepSums, settled
from training_profiler.aggregation.trend import Series
from training_profiler.aggregation.work import InputWork
from training_profiler.recording.gradient_sync import BLOCK_STEPS, compared_blocks
from training_profiler.recording.step_flops import StepFlops


class Totals:
    """Sums over ``begin_ns`` to ``end_ns`` of the recorder's clock.

    ``sections.self_ns`` adds up to ``end_ns - begin_ns`` exactly; its row 0 is the time of no section.

    Args:
        begin_ns: of the stretch.
        first_step: steps complete before it.
        rows: how many sections there is room for at first; arrays that grow are copied.
    """

    def __init__(self, begin_ns: int, first_step: int = 0, rows: int = 16) -> None:
        self.begin_ns = begin_ns
        self.end_ns = begin_ns
        self.first_step = first_step
        self.sections = SectionSums(rows)
        self._steps = StepSums()
        self._step_count = 0
        self._waiting: list[tuple[Sequence[int], Sequence[int]]] = []  # (durations, slowed), not in ``steps`` yet
        self.coupling = Coupling(rows)
        self.garbage = GarbageSums()
        self.loop_begin_ns: int | None = None  # begin of the run's first step, which may precede this stretch
        self.first_fetch_ns: int | None = None  # the first wait for a batch, if it ended in this stretch
        # Time of each section (column) in each of the run's first steps, nested sections included. Warm-up is only
        # known afterwards, and then subtracted.
        self.early_ns = np.zeros((FIRST_STEPS, 1), np.int64)
        # Exclusive times of single steps, which ranks compare. Of this stretch only: ``add`` does not sum them.
        self.compared: dict[int, Ints] = {}
        self.series = SectionSeries()  # of this stretch only
        self.history = RunHistory()  # of the run alone
        # Indices of this stretch's steps, counted from 0, that a capture window slowed. Of this stretch only.
        self.slowed_by_capture: list[int] = []
        self.step_calls: list[int] = []  # forward passes in each complete step of this stretch alone
        self.input_sizes = Series()  # (step, elements) of the inputs of single forward passes
        self.input_work = InputWork()  # of sums of stretches alone
        self.with_grad = (0, 0)  # forward passes of evaluations that recorded gradients: their number and time in ns
        self.training_spans = 0  # spans that ended on the training thread, which pays for them
        self.lines: LineCounts = LineCounts()
        self.weighted_lines = WeightedLines()  # the time that these samples stand for; of sums of stretches alone
        self.machine = MachineSums()
        self.batches: int | None = None  # fetched for training; None without a known loader
        self.samples: int | None = None
        self.tokens: int | None = None  # read by the training; None where no trainer counts them
        self.flops: StepFlops | None = None  # of one step, as counted last
        self.slow_steps = 0  # first steps of the run up to the last one slowed by counting its FLOPs
        self.loaders = LoaderSums()
        self.late_exchange_ns = 0  # DDP's gradient sync, reported in this stretch for backward passes before it
        self.dropped = 0  # exits without an enter, and enters beyond MAX_OPEN
        self.unended = 0  # sections still open when their thread ended

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
        self.training_spans += later.training_spans
        self.lines.update(later.lines)
        self.weighted_lines.add(later.lines, later.wall_ns)
        self.machine.add(later.machine)
        self._add_batches(later)
        if later.tokens is not None:
            self.tokens = (self.tokens or 0) + later.tokens
        self.flops = later.flops or self.flops
        self.slow_steps = max(self.slow_steps, later.slow_steps)
        self.loaders.add(later.loaders)
        self.with_grad = (self.with_grad[0] + later.with_grad[0], self.with_grad[1] + later.with_grad[1])
        self.dropped += later.dropped
        self.unended += later.unended

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
