"""A quantity over time in bounded memory, and its growth."""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from math import erf, isfinite, sqrt
from typing import Final, NamedTuple

from training_profiler.model.snapshot import Growth

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
