"""Durations in log-spaced bins: quantiles of any number of spans from one row of counts."""

from typing import Final

import numpy as np

from training_profiler.aggregation.arrays import Ints

# Bins are 2 % wide, so the geometric middle is within 1 % of every duration in a bin
# (the construction of DDSketch: Masson, Rim, Lee, VLDB 2019, section 2).
BIN_RATIO: Final = 1.02
BIN_COUNT: Final = 1856  # up to 2**53 ns, 104 days; longer ones share the last bin
_BINS_PER_E: Final = 1.0 / np.log(BIN_RATIO)


def bins_of(durations_ns: Ints) -> Ints:
    """Return the bin of each duration; durations below 1 ns share the first bin."""
    bins = np.log(np.maximum(durations_ns, 1)) * _BINS_PER_E
    return np.asarray(np.minimum(bins, BIN_COUNT - 1), np.int64)


def quantile_ns(counts: Ints, q: float) -> float | None:
    """Return the ``q`` quantile (nearest rank) in ns, within 1 %; None without durations.

    Args:
        counts: one row, shape (BIN_COUNT,).
        q: between 0 and 1.
    """
    cumulated = np.cumsum(counts)
    total = int(cumulated[-1])
    if total == 0:
        return None
    rank = min(total, max(1, int(np.ceil(q * total))))
    bin_index = int(np.searchsorted(cumulated, rank))
    return float(BIN_RATIO ** (bin_index + 0.5))
