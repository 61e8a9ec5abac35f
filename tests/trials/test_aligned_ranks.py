"""The test and interval of a shift, against all exchanges of blocks within rounds."""

from itertools import product

import numpy as np
import pytest

from training_profiler.trials.statistics import faster_p, shift_of


def exact_p(logs):
    """Return the part of all ways to take one block of each round whose ranks are at most those of the first column."""
    aligned = logs - logs.mean(axis=1, keepdims=True)
    ranks = aligned.ravel().argsort().argsort().reshape(aligned.shape)
    sums = [sum(taken) for taken in product(*ranks)]
    return np.mean(np.array(sums) <= ranks[:, 0].sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("columns", [2, 3])
def test_the_probability_is_that_of_all_exchanges(seed, columns):
    random = np.random.default_rng(seed)
    logs = random.standard_normal((9, columns))
    logs[:, 0] -= 0.5 * (seed % 3)
    assert faster_p(logs) == pytest.approx(exact_p(logs), rel=0.3, abs=0.012)


@pytest.mark.parametrize("columns", [2, 3])
def test_equal_blocks_show_nothing(columns):
    logs = np.tile(np.linspace(0, 1, 20)[:, np.newaxis], columns)
    assert faster_p(logs) == 0.5
    assert shift_of(logs, 0.05) == (0, 0, 0)


def test_few_rounds_show_no_more_than_they_can():
    logs = np.array([[0.0, 1.0, 1.1], [0.0, 1.0, 1.2], [0.0, 1.0, 1.3]])
    assert faster_p(logs) == pytest.approx(1 / 27)
    shift, low, high = shift_of(logs, 0.05)
    assert (low, high) == (-np.inf, np.inf)
    assert -1.3 < shift < -1


def test_the_interval_holds_the_shift_as_often_as_it_says():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        logs = np.log(random.exponential(size=(25, 3)) + 0.2)
        logs[:, 0] -= 0.3
        _, low, high = shift_of(logs, 0.05)
        held += low <= -0.3 <= high
    assert 0.93 <= held / 1000 <= 0.97


def test_a_few_very_slow_blocks_do_not_hide_a_shift():
    random = np.random.default_rng(1)
    logs = random.normal(0, 0.02, (30, 3))
    logs[:, 0] -= 0.05
    logs[::6, 0] += 3
    logs[3::6, 1] += 3
    shift, _, high = shift_of(logs, 0.05)
    assert shift == pytest.approx(-0.05, abs=0.015)
    assert high < 0
    assert faster_p(logs) < 0.02
    assert logs[:, 0].mean() > logs[:, 1:].mean()


def test_the_probability_and_the_interval_agree():
    random = np.random.default_rng(2)
    for _ in range(50):
        logs = random.normal(0, 0.05, (20, 3))
        logs[:, 0] -= 0.02
        assert (faster_p(logs) < 0.025) == (shift_of(logs, 0.05)[2] < 0)
