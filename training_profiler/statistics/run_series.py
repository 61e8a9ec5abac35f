"""The steps of a run in their order, as a comparison needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.base.units import NS_PER_S
from training_profiler.model.series import RankSeries, Stretch
from training_profiler.statistics.arrays import Bools, Floats, Ints

SETTLED_AFTER: Final = 10  # first steps that are left out at least
SETTLED_PART: Final = 0.1  # at most this part of a short run for that reason alone
BUSY_FROM: Final = 0.05  # part of the time lost to other programs: then the steps of that stretch are set aside
FEWEST_STEPS: Final = 20  # with fewer, no difference can be shown


@dataclass(frozen=True, slots=True)
class SettledSteps:
    """The steps that are compared, and how many others there were."""

    step_s: Floats
    numbers: Ints  # of these steps, counted from 0
    block_steps: Ints  # number of steps in each block
    block_s: Floats  # their time
    sections: Mapping[str, Floats]  # section -> time in each block
    lost: float | None  # mean of the stretches
    lost_of_run: float | None  # the same with the steps that were set aside
    samples_a_step: float | None
    warmup: int
    slowed: int
    busy: int  # set aside: the machine was busy

    @property
    def count(self) -> int:
        """The number of steps that are compared."""
        return len(self.step_s)

    @property
    def span_s(self) -> float:
        """The time of these steps together."""
        return float(self.step_s.sum())


def settle(run: RankSeries) -> SettledSteps:
    """Return the steps after warm-up, without those slowed by captures.

    Steps on a busy machine are left out as well where at least half of the others remain.
    """
    warmup = max(run.warmup, min(SETTLED_AFTER, int(SETTLED_PART * run.steps)))
    if run.steps - warmup < 2:
        warmup = 0
    slowed = sum(len(stretch.slowed) for stretch in run.stretches)
    leaves_slowed = 0 < 2 * slowed < run.steps
    busy = [(stretch.lost or 0.0) >= BUSY_FROM for stretch in run.stretches]
    steps = [len(stretch.steps_ns) for stretch in run.stretches]
    quiet_steps = sum(count for count, is_busy in zip(steps, busy, strict=True) if not is_busy) - warmup
    leaves_busy = any(busy) and quiet_steps >= max(FEWEST_STEPS, (run.steps - warmup) / 2)
    if not leaves_busy:
        busy = [False] * len(busy)
    kept, first = [], 0
    for stretch, is_busy in zip(run.stretches, busy, strict=True):
        is_kept = np.full(len(stretch.steps_ns), not is_busy)
        is_kept[: max(0, warmup - first)] = False
        if leaves_slowed:
            is_kept[list(stretch.slowed)] = False
        kept.append((first, stretch, is_kept))
        first += len(stretch.steps_ns)
    busy_steps = sum(count for count, is_busy in zip(steps, busy, strict=True) if is_busy)
    return _gather(kept, warmup, slowed if leaves_slowed else 0, busy_steps)


def _gather(kept: Sequence[tuple[int, Stretch, Bools]], warmup: int, slowed: int, busy: int) -> SettledSteps:
    numbers = np.concatenate([np.zeros(0, np.int64), *(first + np.flatnonzero(is_kept) for first, _, is_kept in kept)])
    step_s = np.concatenate([np.zeros(0), *(_seconds(stretch.steps_ns)[is_kept] for _, stretch, is_kept in kept)])
    used = [(stretch, is_kept) for _, stretch, is_kept in kept if is_kept.any()]
    block_steps, block_s, sections = _blocks(used)
    # Of the whole run: the batch of a stretch's first step may be fetched before it begins.
    samples = [stretch.samples for _, stretch, _ in kept if len(stretch.steps_ns)]
    steps, samples_a_step = sum(len(stretch.steps_ns) for _, stretch, _ in kept), None
    if steps and None not in samples:
        samples_a_step = sum(stretch.samples or 0 for _, stretch, _ in kept) / steps
    return SettledSteps(
        step_s=step_s,
        numbers=numbers,
        block_steps=block_steps,
        block_s=block_s,
        sections=sections,
        lost=_mean_lost([(stretch.lost, int(is_kept.sum())) for _, stretch, is_kept in kept]),
        lost_of_run=_mean_lost([(stretch.lost, len(is_kept)) for _, stretch, is_kept in kept]),
        samples_a_step=samples_a_step,
        warmup=warmup,
        slowed=slowed,
        busy=busy,
    )


def _seconds(durations_ns: Sequence[int]) -> Floats:
    return np.asarray(durations_ns, np.float64) / NS_PER_S


def _mean_lost(stretches: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(lost, count) for lost, count in stretches if lost is not None]
    weight = sum(count for _, count in known)
    return sum(lost * count for lost, count in known) / weight if weight else None


def _blocks(used: Sequence[tuple[Stretch, Bools]]) -> tuple[Ints, Floats, dict[str, Floats]]:
    """Return steps, time and the time in each section of the blocks of which every step is kept."""
    counts, times, chosen = [], [], []
    for stretch, is_kept in used:
        begins = np.arange(0, len(is_kept), stretch.steps_a_block)
        sizes = np.diff(begins, append=len(is_kept))
        is_whole = np.add.reduceat(is_kept.astype(np.int64), begins) == sizes
        has_sections = bool(stretch.blocks_ns)
        chosen.append((stretch, is_whole & has_sections))
        counts.append(sizes[is_whole & has_sections])
        times.append(np.add.reduceat(_seconds(stretch.steps_ns), begins)[is_whole & has_sections])
    names = {name for stretch, _ in chosen for name in stretch.blocks_ns}
    sections = {}
    for name in sorted(names):
        columns = [_seconds(stretch.blocks_ns.get(name, [0] * len(is_whole)))[is_whole] for stretch, is_whole in chosen]
        sections[name] = np.concatenate([np.zeros(0), *columns])
    return np.concatenate([np.zeros(0, np.int64), *counts]), np.concatenate([np.zeros(0), *times]), sections
