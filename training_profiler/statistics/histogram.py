"""Durations in log-spaced bins: quantiles of any number of spans from one row of counts."""

from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Final

import numpy as np

from training_profiler.model.interval import BIN_COUNT as BIN_COUNT
from training_profiler.statistics.arrays import Integers, Ints

# Bins are 2 % wide, so the geometric middle is within 1 % of every duration in a bin
# (the construction of DDSketch: Masson, Rim, Lee, VLDB 2019, section 2).
BIN_RATIO: Final = 1.02
_BINS_PER_E: Final = 1.0 / np.log(BIN_RATIO)


def bins_of(durations_ns: Ints) -> Ints:
    """Return the bin of each duration; durations below 1 ns share the first bin."""
    bins = np.log(np.maximum(durations_ns, 1)) * _BINS_PER_E
    return np.asarray(np.minimum(bins, BIN_COUNT - 1), np.int64)


FEW: Final = 32  # durations, which Python adds up faster than numpy, whose code has left the caches between two drains


def count_durations(counts: Ints, durations_ns: Integers) -> None:
    """Count durations in their bins; ``counts`` is one row, shape (BIN_COUNT,)."""
    if len(durations_ns) < FEW:
        for ns in durations_ns:
            counts[_bin_of(int(ns))] += 1
    else:
        np.add.at(counts, bins_of(np.asarray(durations_ns, np.int64)), 1)


def _bin_of(duration_ns: int) -> int:
    """Return what ``bins_of`` does, for one duration."""
    bins, next_begins_ns = bin_cells()
    power = duration_ns.bit_length() - 1
    if power < 1:
        return 0
    cell = power * _CELLS + ((duration_ns * _CELLS) >> power) - _CELLS
    if cell >= len(bins):
        return BIN_COUNT - 1
    return int(bins[cell]) + (duration_ns >= int(next_begins_ns[cell]))


_CELLS: Final = 64  # of each power of two, so that a cell is narrower than a bin


@cache
def bin_cells() -> tuple[Ints, Ints]:
    """Return for each cell of durations the bin of its first, and the first of the next bin inside of the cell.

    Without a next bin that is the largest integer. A cell is as wide as a 64th of a power of two; the cells reach up to
    2**53 ns. So the bin of an integer is found without a logarithm, and is always that of ``bins_of``.
    """
    numbers = np.arange(53 * _CELLS, dtype=np.int64)  # Windows has 32 bits by default
    powers = numbers // _CELLS
    first_ns = -(-((numbers % _CELLS + _CELLS) << powers) // _CELLS)
    bins = bins_of(first_ns)
    begins_ns = _first_in_bins()[np.minimum(bins + 1, BIN_COUNT)]
    ends_ns = -(-((numbers % _CELLS + _CELLS + 1) << powers) // _CELLS)
    return bins, np.where(begins_ns < ends_ns, begins_ns, np.iinfo(np.int64).max)


def _first_in_bins() -> Ints:
    """Return the first integer of each bin or a later one, by bisection; after the last bin the largest integer."""
    bins = np.arange(BIN_COUNT)
    about_ns = np.exp(bins / _BINS_PER_E)
    below = np.maximum(about_ns * (1 - 1e-12) - 2, 0).astype(np.int64)
    reached = np.ceil(about_ns * (1 + 1e-12) + 2).astype(np.int64)
    while (reached - below > 1).any():
        middle = (below + reached) // 2
        is_reached = bins_of(middle) >= bins
        below, reached = np.where(is_reached, below, middle), np.where(is_reached, middle, reached)
    return np.append(reached, np.iinfo(np.int64).max)


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
