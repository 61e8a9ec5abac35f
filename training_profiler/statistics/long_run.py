"""The mean of a series whose values depend on each other, and its standard error.

Consecutive steps are not independent: a slow disk, a hot processor or a long batch lasts. The variance of the mean is
the long-run variance over n. It is estimated from the lowest frequencies of the series: the mean square of its
projections on the first cosines (equal-weighted cosine estimator; Lazarus, Lewis, Stock and Watson, "HAR Inference:
Recommendations for Practice", Journal of Business & Economic Statistics 36, 2018), with Student's t for as many degrees
of freedom as cosines. Few cosines are used, so that slow drift counts as noise.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log, pi, sqrt
from typing import Final

import numpy as np

from training_profiler.statistics.arrays import Floats

MOST_COSINES: Final = 8
FEWEST_COSINES: Final = 4
MOST_VALUES: Final = 4096  # a longer series is averaged in consecutive groups first, which keeps low frequencies
HUBER_K: Final = 1.345  # 95% efficient for normal values (Huber 1964)
MAD_TO_STD: Final = 1.4826  # of normal values
_ROUNDS: Final = 50
_FARTHEST_T: Final = 700.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its uncertainty."""

    mean: float
    variance: float  # of the mean
    freedom: float  # degrees of freedom of the variance
    influence: Floats  # what each value adds to the mean, times the number of values; its mean is 0


def plain_mean(values: Floats) -> Estimate:
    """Return the arithmetic mean."""
    mean = float(values.mean())
    return _estimate(mean, values - mean)


def typical(values: Floats) -> Estimate:
    """Return Huber's M-estimate: the mean, in which values far from the median count no more than those near to it.

    So one long pause in 500 steps does not hide a difference of 3% in all others.
    """
    middle = float(np.median(values))
    scale = MAD_TO_STD * float(np.median(np.abs(values - middle)))
    if scale <= 1e-9 * abs(middle):
        return plain_mean(values)
    for _ in range(_ROUNDS):
        distance = (values - middle) / scale
        shift = scale * float(np.clip(distance, -HUBER_K, HUBER_K).mean()) / _part_near(distance)
        middle += shift
        if abs(shift) <= 1e-9 * scale:
            break
    distance = (values - middle) / scale
    return _estimate(middle, np.clip(distance, -HUBER_K, HUBER_K) * scale / _part_near(distance))


def _part_near(distance: Floats) -> float:
    return max(0.1, float((np.abs(distance) < HUBER_K).mean()))


def _estimate(mean: float, influence: Floats) -> Estimate:
    variance, freedom = variance_of_mean(influence)
    return Estimate(mean, variance, freedom, influence)


def variance_of_mean(values: Floats) -> tuple[float, float]:
    """Return the variance of the mean of a series, and its degrees of freedom."""
    group = -(-len(values) // MOST_VALUES)
    if group > 1:
        values = values[: len(values) // group * group].reshape(-1, group).mean(axis=1)
    count = len(values)
    # Lazarus et al. recommend 0.4 n^(2/3).
    cosines = min(count - 1, max(FEWEST_COSINES, min(MOST_COSINES, round(0.4 * count ** (2 / 3)))))
    if cosines < 1:
        return float("inf"), 1.0
    angles = pi * np.outer(np.arange(1, cosines + 1), np.arange(count) + 0.5) / count
    projections = sqrt(2 / count) * np.cos(angles) @ (values - values.mean())
    return float((projections**2).mean()) / count, float(cosines)


def freedom_of_sum(*terms: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of independent variances (Welch 1947), given with theirs."""
    largest = max(variance for variance, _ in terms)
    if largest <= 0 or largest == float("inf"):
        return min(freedom for _, freedom in terms)
    parts = [(variance / largest, freedom) for variance, freedom in terms]
    return float(sum(part for part, _ in parts) ** 2 / sum(part**2 / freedom for part, freedom in parts))


@lru_cache(256)
def student_t(level: float, freedom: int) -> float:
    """Return the half-width of the interval around 0 that holds ``level`` of Student's t distribution."""
    at = np.sinh(np.linspace(0, np.arcsinh(_FARTHEST_T), 20_001))  # dense near 0
    log_density = lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - 0.5 * log(freedom * pi)
    density = exp(log_density) * (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(at))])
    return float(np.interp(level, area, at))
