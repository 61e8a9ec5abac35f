"""Waiting for slower ranks told apart from exchange as such, on the steps of which all ranks tell by themselves."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from training_profiler.record.exchange import BLOCK_STEPS
from training_profiler.statistics.rank_sums import RankSums
from training_profiler.statistics.sections import Floats

STEPS_NEEDED: Final = 8


class Waiting(NamedTuple):
    """The part of synchronization that is waiting, of each rank that was compared, 0 to 1; and on how many steps."""

    part: dict[int, float]
    steps: int


def waiting_parts(told: Sequence[RankSums], warmup_steps: int = 0) -> Waiting | None:
    """Return what part of its synchronization each rank waits; None where too few steps can be compared.

    The last rank to come to an exchange waits for nobody: the least time that a rank has in a step is the exchange as
    such, and what another has beyond is waiting. A step counts where every rank that made it tells of it: a rank that
    fell silent before is not missing. The first ``warmup_steps`` do not count.
    """
    ranks = [one for one in told if one.knows_sync and one.blocks]
    if len(ranks) < 2:
        return None
    columns = []
    for first in sorted({first for one in ranks for first in one.blocks}):
        made_it = [one for one in ranks if one.steps >= first + BLOCK_STEPS]
        holders = [one for one in made_it if first in one.blocks]
        if first + BLOCK_STEPS <= warmup_steps or len(holders) < max(2, len(made_it)):
            continue
        columns.append(_of_block(ranks, first, max(0, warmup_steps - first)))
    if not columns:
        return None
    sync_ns = np.concatenate(columns, axis=1)  # [rank][step]; NaN where the rank had not come so far
    compared = sync_ns.shape[1]
    if compared < STEPS_NEEDED:
        return None
    waiting_ns = np.nansum(sync_ns - np.nanmin(sync_ns, axis=0), axis=1)
    total_ns = np.nansum(sync_ns, axis=1)
    part = np.divide(waiting_ns, total_ns, out=np.zeros_like(waiting_ns), where=total_ns > 0)
    steps_known = (~np.isnan(sync_ns)).sum(axis=1).tolist()
    return Waiting({one.who.rank: float(part[at]) for at, one in enumerate(ranks) if steps_known[at]}, compared)


def _of_block(ranks: Sequence[RankSums], first: int, skipped: int) -> Floats:
    """Return the synchronization of a block's steps, shape (ranks, steps that all who made them know)."""
    absent = [np.nan] * BLOCK_STEPS
    sync_ns = np.array([one.blocks.get(first, absent) for one in ranks], np.float64)[:, skipped:]
    is_known = np.all(~(sync_ns < 0), axis=0)  # NaN is not below 0
    return np.asarray(sync_ns[:, is_known], np.float64)
