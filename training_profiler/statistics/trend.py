"""Whether a series rises, by how much, and how sure that is."""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from math import erf, sqrt
from typing import NamedTuple

import numpy as np

BLOCKS = 20


class Trend(NamedTuple):
    """A rise over the whole series, relative to its level at the start."""

    rise: float  # 0.1: ten per cent more at the end than at the start
    p_value: float  # how often noise alone would show as much, one-sided


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the trend of ``(x, y)`` points in ascending x; None below 40 points.

    The medians of 20 blocks are compared pair by pair: slope after Theil (1950) and Sen (1968), significance
    after Mann (1945) and Kendall (1975), both of which one outlier in a block does not move.
    """
    if len(points) < 2 * BLOCKS:
        return None
    edges = [round(i * len(points) / BLOCKS) for i in range(BLOCKS + 1)]
    blocks = [points[a:b] for a, b in pairwise(edges)]
    xs = [median(x for x, _ in block) for block in blocks]
    ys = [median(y for _, y in block) for block in blocks]
    pairs = list(combinations(range(BLOCKS), 2))
    slope = median((ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairs)
    start = median(y - slope * (x - xs[0]) for x, y in zip(xs, ys, strict=True))
    if start <= 0:
        return None
    score = sum((ys[j] > ys[i]) - (ys[j] < ys[i]) for i, j in pairs)
    variance = BLOCKS * (BLOCKS - 1) * (2 * BLOCKS + 5) / 18
    z = max(0.0, score - 1) / sqrt(variance)
    return Trend(slope * (xs[-1] - xs[0]) / start, 0.5 * (1 - erf(z / sqrt(2))))


def median(values: Iterable[float]) -> float:
    """Return the median. Not the standard library's: a program may have a ``statistics.py`` of its own beside it."""
    return float(np.median(np.fromiter(values, np.float64)))
