"""Whether a run is slower or faster than the last runs of the same program, by the test of ``compare``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from training_profiler.base.units import NS_PER_S
from training_profiler.model.snapshot import HistoryChange
from training_profiler.statistics.arrays import Ints
from training_profiler.statistics.compare import NOT_SHOWN, NoComparisonError, compare_settled
from training_profiler.statistics.run_series import BUSY_FROM, SettledSteps

MOST_BLOCKS: Final = 64  # of a run in the index
FEWEST_BLOCKS: Final = 8
FEWEST_RUNS: Final = 2  # one earlier run may be the exception
MOST_RUNS: Final = 4  # a run is compared with


@dataclass(frozen=True, slots=True, eq=False)
class RunBlocks:
    """The steps of a run after warm-up in blocks of about the same length, small enough for an index of runs."""

    steps: Ints  # in each block
    sections_ns: Mapping[str, Ints]  # exclusive time of each section in each block; all together is that of the steps
    samples_a_step: float | None
    lost: float | None  # part of the time that the training waited for CPUs that others had; None if unknown

    @property
    def step_s(self) -> float:
        """The typical time of a step."""
        return float(np.median(self.block_ns / self.steps)) / NS_PER_S

    @property
    def block_ns(self) -> Ints:
        """The time of each block."""
        return sum(self.sections_ns.values(), np.zeros(len(self.steps), np.int64))

    @property
    def is_busy(self) -> bool:
        """Whether others had so much of the CPUs that the run says nothing about the program."""
        return (self.lost or 0.0) >= BUSY_FROM

    def grouped(self, size: int, most_steps: int) -> "RunBlocks":
        """Return blocks of ``size`` steps, of the first ``most_steps`` steps."""
        ends = np.cumsum(self.steps)
        ends = ends[ends <= most_steps]
        groups = (ends - 1) // size
        if len(ends) and 2 * (ends[-1] - groups[-1] * size) < size:  # a short rest would count as much as the others
            groups = groups[groups < groups[-1]]
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        steps, *sections = (
            np.add.reduceat(column[: len(groups)], begins) for column in (self.steps, *self.sections_ns.values())
        )
        return RunBlocks(steps, dict(zip(self.sections_ns, sections, strict=True)), self.samples_a_step, self.lost)


NO_BLOCKS: Final = RunBlocks(np.zeros(0, np.int64), {}, None, None)


class _BlockSteps(SettledSteps):
    """Blocks in the place of steps."""

    @property
    def count(self) -> int:
        return int(self.block_steps.sum())

    @property
    def span_s(self) -> float:
        return float(self.block_s.sum())


def change_since(earlier: Sequence[RunBlocks], run: RunBlocks) -> HistoryChange | None:
    """Return how much longer or shorter a step takes than in the last of the earlier runs, which come newest first.

    Each of these has to show the difference, in the same direction. None where one does not, or the run was beside
    others; earlier runs were not.
    """
    if run.is_busy:
        return None
    pairs = [_equal_blocks(each, run) for each in earlier[:MOST_RUNS]]
    if len(pairs) < FEWEST_RUNS or min(len(blocks.steps) for pair in pairs for blocks in pair) < FEWEST_BLOCKS:
        return None
    try:
        found = [compare_settled(*map(_settled, pair)) for pair in pairs]
    except NoComparisonError:
        return None
    verdicts = {each.verdict for each in found}
    if len(verdicts) > 1 or NOT_SHOWN in verdicts or any(each.is_by_work for each in found):
        return None
    section = next((name for name in found[0].carriers if all(name in each.carriers for each in found)), None)
    shown = [each.shown for each in found]
    rows = [row.seconds for each in found for row in each.sections if row.name == section]
    return HistoryChange(
        relative=fmean(each.relative for each in shown),  # of which the mean of the intervals is more than 95%
        low=fmean(each.low for each in shown),
        high=fmean(each.high for each in shown),
        runs=len(found),
        section=section,
        section_s=fmean(rows) if rows else None,
    )


def _equal_blocks(old: RunBlocks, new: RunBlocks) -> tuple[RunBlocks, RunBlocks]:
    """Return the steps that both runs have, in blocks of the same length: a mean of many steps has more long ones."""
    size = max(int(each.steps.max(initial=1)) for each in (old, new))
    most = min(int(each.steps.sum()) for each in (old, new))
    return old.grouped(size, most), new.grouped(size, most)


def _settled(run: RunBlocks) -> SettledSteps:
    block_s = run.block_ns / NS_PER_S
    return _BlockSteps(
        step_s=block_s / run.steps,
        numbers=np.arange(len(run.steps)),
        block_steps=run.steps,
        block_s=block_s,
        sections={name: column / NS_PER_S for name, column in run.sections_ns.items()},
        lost=run.lost,
        lost_of_run=run.lost,
        samples_a_step=run.samples_a_step,
        warmup=0,
        slowed=0,
        busy=0,
    )
