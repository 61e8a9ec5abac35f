"""The shift between blocks of the same rounds, by ranks that every round is aligned for (Hodges and Lehmann 1962).

If a change does nothing, the blocks of a round are exchangeable. So what a round took on average is subtracted, all
blocks are ranked together, and the sum of the ranks of the changed training is compared with what exchanging blocks
within rounds would give. A very slow block is one rank, however slow it is.
"""

from math import erfc, inf, sqrt
from statistics import NormalDist

import numpy as np

from training_profiler.statistics.arrays import Floats

_HALVINGS = 16  # of the range of all differences, so an end of the interval is exact to 1/65,536 of it
_DIGITS = 12  # after which differences are of rounding


def faster_p(logs: Floats) -> float:
    """Return the probability of such ranks, or clearer ones, from a change without a gain.

    Args:
        logs: logarithms of the time of a step: a row for each round, the changed training in the first column.
    """
    (score,) = _scores(logs, np.zeros(1))
    return max(_least_p(logs), 0.5 * erfc(score / sqrt(2)))


def shift_of(logs: Floats, error: float) -> tuple[float, float, float]:
    """Return the shift of the changed training at which its ranks are as expected, and the interval of the shift."""
    differences = logs[:, 0] - logs[:, 1:].mean(axis=1)
    bound = NormalDist().inv_cdf(1 - error / 2)
    wanted = np.array([0.0, -bound, bound])
    low, high = np.full(3, differences.min()), np.full(3, differences.max())
    for _ in range(_HALVINGS):  # the score grows with the shift
        middle = (low + high) / 2
        is_beyond = _scores(logs, middle) > wanted
        low, high = np.where(is_beyond, low, middle), np.where(is_beyond, middle, high)
    shift, least, most = ((low + high) / 2).tolist()
    return (shift, least, most) if _least_p(logs) <= error / 2 else (shift, -inf, inf)


def _least_p(logs: Floats) -> float:
    """Return the least probability that so few rounds can show."""
    return float(logs.shape[1]) ** -len(logs)


def _scores(logs: Floats, shifts: Floats) -> Floats:
    """Return how much lower the ranks of the changed training are than expected, in standard deviations.

    Each of the shifts is subtracted from the changed training before.
    """
    shifted = np.repeat(logs[np.newaxis], len(shifts), axis=0)
    shifted[:, :, 0] -= shifts[:, np.newaxis]
    aligned = shifted - shifted.mean(axis=2, keepdims=True)
    ranks = _ranks(aligned.reshape(len(shifts), -1).round(_DIGITS)).reshape(aligned.shape)
    expected = ranks.mean(axis=2, keepdims=True)
    variance = ((ranks - expected) ** 2).mean(axis=2).sum(axis=1)
    below = (expected[:, :, 0] - ranks[:, :, 0]).sum(axis=1)
    scores: Floats = below / np.sqrt(np.maximum(variance, 1.0))
    return scores


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value of a row; equal values share the mean of theirs."""
    forward = values.argsort(axis=1, kind="stable").argsort(axis=1)
    backward = values[:, ::-1].argsort(axis=1, kind="stable").argsort(axis=1)[:, ::-1]
    ranks: Floats = (forward + backward) / 2
    return ranks
