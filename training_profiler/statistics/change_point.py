"""The moment from which on a series has another level, for series whose neighbours depend on each other.

Rank statistic of Wilcoxon with self-normalization (Betken, "Testing for change-points in long-range dependent time
series by means of a self-normalized Wilcoxon test", Journal of Time Series Analysis 37, 2016, after Shao and Zhang,
JASA 105, 2010): the difference between the ranks before and after each moment, over how much the ranks wander on either
side. A series that wanders by itself is its own yardstick, and an outlier has no more than its rank. The interval is
that of Bai ("Estimation of a change point in multiple regression models", Review of Economics and Statistics 79, 1997).
"""

from typing import Final, NamedTuple

import numpy as np

from training_profiler.statistics.arrays import Floats

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
