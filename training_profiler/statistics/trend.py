"""A quantity over time: where its level changes, its growth, and its values in bounded memory."""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from math import erf, isfinite, sqrt
from typing import Final, NamedTuple

import numpy as np

from training_profiler.model.snapshot import Growth
from training_profiler.statistics.arrays import Floats

# The moment from which on a series has another level, for series whose neighbours depend on each other: rank statistic
# of Wilcoxon with self-normalization (Betken, "Testing for change-points in long-range dependent time series by means
# of a self-normalized Wilcoxon test", Journal of Time Series Analysis 37, 2016, after Shao and Zhang, JASA 105, 2010).
# It is the difference between the ranks before and after each moment, over how much the ranks wander on either side. A
# series that wanders by itself is its own yardstick, and an outlier has no more than its rank. The interval is that of
# Bai ("Estimation of a change point in multiple regression models", Review of Economics and Statistics 79, 1997).

MOST_VALUES: Final = 120  # a longer series is reduced to medians of consecutive values first
FEWEST_VALUES: Final = 40
TRIM: Final = 0.05  # of the values at each end, in which no change is looked for
# Reached by 0.03 % of series of independent values, and by 3 % of series with a correlation of 0.9 between neighbours
# (10,000 and 400 simulated series of 120 values).
CRITICAL: Final = 12.0
BAI_95: Final = 11.0  # 95 % of the distribution of the estimated moment, in long-run variances over squared jumps
NEAR: Final = 3  # values on either side of a step
CLEAR_CUT: Final = 5.0  # such a step over the 95th percentile of differences between neighbours; a steady trend has 3
ABRUPT: Final = 0.9  # of the distances to a straight line: a change explains more than a trend from here on


class ChangePoint(NamedTuple):
    """A change of level. Indices are those of the series."""

    at: int  # the first value after it
    first: int  # 95 % interval of ``at``
    last: int
    before: float  # medians
    after: float
    is_abrupt: bool  # explains the series better than a straight line


def change_point(values: Floats) -> ChangePoint | None:
    """Return the largest change of level; None with fewer than 40 values, or where chance may explain it."""
    group = -(-len(values) // MOST_VALUES)
    if len(values) // max(1, group) < FEWEST_VALUES:
        return None
    reduced = np.array([np.median(values[at : at + group]) for at in range(0, len(values) - group + 1, group)])
    statistic, at = _wilcoxon(reduced)
    if statistic < CRITICAL and not _is_clear_cut(reduced, at):
        return None
    before, after = float(np.median(reduced[:at])), float(np.median(reduced[at:]))
    half = _half_interval(reduced, at, after - before)
    return ChangePoint(
        at * group,
        max(1, at - half) * group,
        min(len(reduced) - 1, at + half) * group,
        before,
        after,
        float(np.abs(reduced[:at] - before).sum() + np.abs(reduced[at:] - after).sum())
        < ABRUPT * _distance_to_line(reduced),
    )


def _wilcoxon(values: Floats) -> tuple[float, int]:
    """Return the largest self-normalized difference of ranks, and the change that explains the ranks best."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(count)
    ranks[order] = np.arange(1, count + 1)
    _, inverse, ties = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.bincount(inverse, ranks) / ties)[inverse]  # equal values have equal ranks
    sums = np.concatenate([[0.0], np.cumsum(ranks)])
    edge = max(5, int(TRIM * count))
    largest = fit = 0.0
    place = edge
    for at in range(edge, count - edge + 1):
        before, after = np.arange(1, at + 1), np.arange(1, count - at + 1)
        wander = ((sums[1 : at + 1] - before / at * sums[at]) ** 2).sum()
        wander += (((sums[at + 1 :] - sums[at]) - after / (count - at) * (sums[-1] - sums[at])) ** 2).sum()
        apart = abs(count * sums[at] - at * sums[-1]) / count  # exactly 0 for ranks that do not differ
        if apart:
            largest = max(largest, float(apart / np.sqrt(wander / count)) if wander else float("inf"))
        # Least squares, which the interval is for.
        if (explained := float(apart**2 / (at * (count - at)))) > fit:
            fit, place = explained, at
    return largest, place


def _is_clear_cut(values: Floats, at: int) -> bool:
    """Return whether all values after a moment are beyond all before, with a step that is large for this series.

    Ranks know no distances: where values drift a little on both sides, they hide that steps take six times as long.
    """
    before, after = values[:at], values[at:]
    if before.max() >= after.min() and after.max() >= before.min():
        return False
    step = abs(float(np.median(after[:NEAR])) - float(np.median(before[-NEAR:])))
    usual = float(np.percentile(np.abs(np.delete(np.diff(values), at - 1)), 95))
    return 0 < CLEAR_CUT * usual < step


def _half_interval(values: Floats, at: int, jump: float) -> int:
    rest = np.concatenate([values[:at] - np.median(values[:at]), values[at:] - np.median(values[at:])])
    spread = 3 * float(np.median(np.abs(rest))) or float(np.abs(rest).max())
    rest = np.clip(rest, -spread, spread)
    long_run = max(
        _variance_of_batches(rest, length) for length in (1, round(len(rest) ** 0.33), round(len(rest) ** 0.5))
    )
    return int(min(len(values), BAI_95 * long_run / jump**2 if jump else len(values))) + 1


def _variance_of_batches(values: Floats, length: int) -> float:
    """Return the long-run variance by the means of batches of this length."""
    means = values[: len(values) // length * length].reshape(-1, length).mean(axis=1)
    return length * float(means.var())


def _distance_to_line(values: Floats) -> float:
    """Return the summed distances to a straight line through the medians of fifths."""
    at = np.arange(len(values), dtype=np.float64)
    places = [np.median(part) for part in np.array_split(at, 5)]
    slope, start = np.polyfit(places, [np.median(part) for part in np.array_split(values, 5)], 1)
    return float(np.abs(values - (start + slope * at)).sum())


BLOCKS = 20


class Trend(NamedTuple):
    """Rise over the whole series, relative to its level at the start."""

    rise: float  # 0.1: 10 % more at the end than at the start
    p_value: float  # probability of such a rise by noise alone, one-sided


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the trend of ``(x, y)`` points in ascending x; None below 40 points.

    The medians of 20 blocks are compared pair by pair: slope after Theil (1950) and Sen (1968), significance
    after Mann (1945) and Kendall (1975), neither of which is moved by one outlier in a block.
    """
    if len(points) < 2 * BLOCKS:
        return None
    blocks = _blocks(points)
    slope, first_x = _slope(blocks), blocks[0][0]
    start = median(y - slope * (x - first_x) for x, y in blocks)
    start = max(start, min(y for _, y in blocks[:2]))  # a line begins below a rise that becomes steeper
    return Trend(slope * (blocks[-1][0] - first_x) / start, _chance(blocks)) if start > 0 else None


def median(values: Iterable[float]) -> float:
    """Return the median. The program's folder may hold a ``statistics.py``, so the standard library's is not used."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


MOST_POINTS: Final = 240
FEWEST_POINTS: Final = 10  # without the first fifth 8 are left, which rise in order by chance once in 40,000 times
GOES_ON: Final = 0.4  # of the slope at the begin, at the end: a rise with less than that is about to end
WARMUP: Final = 0.2  # part of the time; memory allocated at the start is not growth
Point = tuple[int, float, float]  # consecutive values: count, sum of their times in s, sum of the values


class Series:
    """Means of consecutive values; each point covers twice as many whenever there are too many points."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._values_a_point = 1

    def add(self, at_s: float, value: float) -> None:
        """Add a value that follows those added before."""
        self.add_points([(1, at_s, value)])

    def add_points(self, points: Sequence[Point]) -> None:
        """Add the points of a series that follows this one."""
        for point in points:
            if self.points and self.points[-1][0] + point[0] <= self._values_a_point:
                self.points[-1] = _together(self.points[-1], point)
            else:
                self.points.append(point)
            if len(self.points) > MOST_POINTS:
                pairs = zip(self.points[::2], self.points[1::2], strict=False)
                left_over = self.points[len(self.points) // 2 * 2 :]
                self.points = [_together(point, following) for point, following in pairs] + left_over
                self._values_a_point *= 2

    def growth(self) -> Growth | None:
        """Return the rise over all but the first fifth of the time; None with too few points.

        A straight line through the medians of at most 20 blocks: slope after Theil (1950) and Sen (1968), significance
        after Mann (1945) and Kendall (1975), one-sided. The slope is that of the flattest part: the whole, its halves
        or its last third. It is 0 where they disagree on the direction, and where the end rises less than 0.4 times as
        steeply as the begin: a cache that fills and a single large allocation are rises that end.
        """
        points = [(at_s / count, value / count) for count, at_s, value in self.points]
        if len(points) < FEWEST_POINTS:
            return None
        warm_s = points[0][0] + WARMUP * (points[-1][0] - points[0][0])
        points = [point for point in points if point[0] >= warm_s]
        blocks = _blocks(points)
        if len(blocks) < FEWEST_POINTS * (1 - WARMUP) or blocks[-1][0] <= blocks[0][0]:
            return None
        seconds = points[-1][0] - points[0][0]
        rise = _lasting_slope(blocks) * seconds
        return Growth(rise, _chance(blocks), len(points), seconds) if isfinite(rise) else None


def _together(point: Point, following: Point) -> Point:
    return point[0] + following[0], point[1] + following[1], point[2] + following[2]


def _blocks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    count = min(BLOCKS, len(points))
    edges = [round(i * len(points) / count) for i in range(count + 1)]
    blocks = [points[a:b] for a, b in pairwise(edges)]
    return [(median(x for x, _ in block), median(y for _, y in block)) for block in blocks]


def _slope(points: list[tuple[float, float]]) -> float:
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    return median(slopes) if slopes else 0.0


def _lasting_slope(blocks: list[tuple[float, float]]) -> float:
    """Return the slope of the flattest part of a series that goes on as it began; 0 if it does not."""
    half, third = len(blocks) // 2, len(blocks) - max(3, len(blocks) // 3)
    begin, end, last = _slope(blocks[: half + 1]), _slope(blocks[half:]), _slope(blocks[third:])
    slopes = [_slope(blocks), begin, end, last]
    if len({slope > 0 for slope in slopes}) > 1 or min(abs(end), abs(last)) < GOES_ON * abs(begin):
        return 0.0
    return min(slopes, key=abs)


def _chance(points: list[tuple[float, float]]) -> float:
    count = len(points)
    score = sum((y2 > y1) - (y2 < y1) for (_, y1), (_, y2) in combinations(points, 2))
    z = max(0.0, score - 1) / sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return 0.5 * (1 - erf(z / sqrt(2)))
