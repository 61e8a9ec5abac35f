"""Durations in log-spaced bins: quantiles of any number of spans from one row of counts."""

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np

from training_profiler.model.interval import BIN_COUNT as BIN_COUNT
from training_profiler.statistics.arrays import Ints

# Bins are 2 % wide, so the geometric middle is within 1 % of every duration in a bin
# (the construction of DDSketch: Masson, Rim, Lee, VLDB 2019, section 2).
BIN_RATIO: Final = 1.02
_BINS_PER_E: Final = 1.0 / np.log(BIN_RATIO)


def bins_of(durations_ns: Ints) -> Ints:
    """Return the bin of each duration; durations below 1 ns share the first bin."""
    bins = np.log(np.maximum(durations_ns, 1)) * _BINS_PER_E
    return np.asarray(np.minimum(bins, BIN_COUNT - 1), np.int64)


def count_durations(counts: Ints, durations_ns: Ints) -> None:
    """Count durations in their bins; ``counts`` is one row, shape (BIN_COUNT,)."""
    np.add.at(counts, bins_of(durations_ns), 1)


def quantile_ns(counts: Ints, q: float) -> float | None:
    """Return the ``q`` quantile (nearest rank) in ns, within 1 %; None without durations.

    Args:
        counts: one row, shape (BIN_COUNT,).
        q: between 0 and 1.
    """
    (quantile,) = quantiles_ns(counts, (q,)) or (None,)
    return quantile


def quantiles_ns(counts: Ints, shares: Sequence[float], first: int = 0) -> list[float]:
    """Return several quantiles; none without durations.

    Args:
        counts: of consecutive bins.
        shares: between 0 and 1, one for each quantile.
        first: the bin of the first count.
    """
    if not counts.any():
        return []
    cumulated = counts.cumsum()
    total = int(cumulated[-1])
    ranks = [min(total, max(1, ceil(share * total))) for share in shares]
    return [float(BIN_RATIO ** (first + at + 0.5)) for at in cumulated.searchsorted(ranks).tolist()]
