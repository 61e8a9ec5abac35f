"""How much of the machine's own drift a run is too short to see.

A machine is faster at one moment than at another: clock rate, caches, other programs. Two short runs fall into two
such moments, and the scatter of their steps does not show it. The logarithm of the machine's speed is taken for an
Ornstein-Uhlenbeck process (Uhlenbeck and Ornstein, "On the theory of the Brownian motion", Physical Review 36, 1930): a
value of its own for each moment, forgotten after some seconds. Of its variance in the mean of a run, the lowest
frequencies of the run show a part; the rest is added. A long run sees nearly all of it.
"""

from math import exp, hypot, pi, sqrt
from statistics import NormalDist
from typing import Final

from training_profiler.statistics.long_run import MOST_COSINES

STATE_STD: Final = 0.026  # of the logarithm; equal runs of 1 s beside other programs differed by up to 5.6%
FORGOTTEN_S: Final = 2.5  # until the correlation with now is 1/e
LONGEST_S: Final = 3600.0
_GROWTH: Final = 1.1


def unseen_variance(span_s: float) -> float:
    """Return the variance of a run's mean, relative to its square, that steps of ``span_s`` in all do not show."""
    if span_s <= 0:
        return STATE_STD**2
    x = span_s / FORGOTTEN_S
    in_mean = 2 / x * (1 - (1 - exp(-x)) / x) if x > 1e-4 else 1.0
    shown = sum(2 / x / (1 + (pi * number / x) ** 2) for number in range(1, MOST_COSINES + 1)) / MOST_COSINES
    return STATE_STD**2 * max(0.0, in_mean - shown)


def span_needed(difference: float, scatter: float, span_s: float, level: float) -> float | None:
    """Return how long two runs have to be, in s, for this difference of logarithms to be shown.

    ``scatter`` is half of the interval by the scatter of the steps of two runs of ``span_s``; it falls as runs get
    longer. None where an hour is not enough.
    """
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    needed_s = span_s
    while needed_s < LONGEST_S:
        needed_s *= _GROWTH
        if hypot(scatter * sqrt(span_s / needed_s), quantile * sqrt(2 * unseen_variance(needed_s))) < difference:
            return needed_s
    return None
