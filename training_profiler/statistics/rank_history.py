"""Whether a rank became slower against itself, and when."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from training_profiler.statistics.rank_sums import Pace

PACES_NEEDED: Final = 8
PACES_A_SIDE: Final = 3
STEPS_A_SIDE: Final = 10
CHANGE_AT_LEAST: Final = 0.10
EXPLAINS_AT_LEAST: Final = 0.6  # of the variance of paces; the best split of 8 that are chance does so once in 10 times


class History(NamedTuple):
    """Work a step lately over work before; the step from which on it is more, where that change is clear."""

    ratio: float
    slower_since_step: int | None = None


def history_of(paces: Sequence[Pace], warmup_steps: int = 0) -> History | None:
    """Return how work a step changed over the run; None on too few paces.

    The split is the one that leaves the least variance within its two sides. Where the change there is not clear, the
    later half is compared with the earlier one. Paces with steps of warm-up in them do not count.
    """
    ends = np.cumsum([pace.steps for pace in paces])
    warm = int(np.searchsorted(ends, warmup_steps, side="left")) + 1 if warmup_steps else 0
    kept = paces[warm:]
    if len(kept) < PACES_NEEDED:
        return None
    first_step = int(ends[warm - 1]) if warm else 0
    steps = np.array([pace.steps for pace in kept], np.float64)
    work_ns = np.array([max(0, pace.step_ns - pace.sync_ns) for pace in kept], np.float64)
    steps_before = np.cumsum(steps)[:-1]
    work_before_ns = np.cumsum(work_ns)[:-1]
    means_before = work_before_ns / steps_before
    means_after = (work_ns.sum() - work_before_ns) / (steps.sum() - steps_before)
    between = steps_before * (steps.sum() - steps_before) / steps.sum() * (means_after - means_before) ** 2
    at = np.arange(1, len(kept))
    allowed = (at >= PACES_A_SIDE) & (len(kept) - at >= PACES_A_SIDE)
    allowed &= (steps_before >= STEPS_A_SIDE) & (steps.sum() - steps_before >= STEPS_A_SIDE)
    if not allowed.any() or not (means_before > 0).all():
        return None
    split = int(np.argmax(np.where(allowed, between, -1.0)))
    paces_ns = work_ns / steps
    mean_ns = work_ns.sum() / steps.sum()
    variance = float((steps * (paces_ns - mean_ns) ** 2).sum())
    ratio = float(means_after[split] / means_before[split])
    if abs(ratio - 1) > CHANGE_AT_LEAST and between[split] >= EXPLAINS_AT_LEAST * variance:
        return History(ratio, first_step + int(steps_before[split]) if ratio > 1 else None)
    half = int(np.argmin(np.abs(steps_before - steps.sum() / 2)))
    return History(float(means_after[half] / means_before[half]))
