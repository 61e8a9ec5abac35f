import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.statistics.histogram import BIN_COUNT, BIN_RATIO, bins_of, count_durations, quantile_ns

durations = st.lists(st.integers(1, 2**50), min_size=1, max_size=200)


def histogram(durations_ns):
    return np.bincount(bins_of(np.array(durations_ns, np.int64)), minlength=BIN_COUNT)


@given(durations, st.sampled_from((0.0, 0.5, 0.95, 0.99, 1.0)))
def test_a_quantile_is_within_one_percent_of_the_nearest_rank(durations_ns, q):
    rank = max(1, math.ceil(q * len(durations_ns)))
    exact = sorted(durations_ns)[rank - 1]
    assert quantile_ns(histogram(durations_ns), q) == pytest.approx(exact, rel=0.01)


def test_no_durations_have_no_quantile():
    assert quantile_ns(np.zeros(BIN_COUNT, np.int64), 0.5) is None


def test_durations_of_zero_share_the_first_bin():
    assert bins_of(np.array([0, 1])).tolist() == [0, 0]


def test_durations_of_months_share_the_last_bin():
    assert bins_of(np.array([2**62])).tolist() == [BIN_COUNT - 1]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=31))
def test_few_durations_are_counted_in_the_bins_of_many(durations_ns):
    counts = np.zeros(BIN_COUNT, np.int64)
    count_durations(counts, durations_ns)
    assert counts.tolist() == histogram(durations_ns).tolist()


@pytest.mark.parametrize("bin_number", range(0, BIN_COUNT, 37))
def test_durations_at_the_ends_of_a_bin_are_counted_in_it(bin_number):
    about_ns = int(BIN_RATIO**bin_number)
    durations_ns = [max(0, about_ns + off) for off in range(-3, 4)]
    counts = np.zeros(BIN_COUNT, np.int64)
    count_durations(counts, durations_ns)
    assert counts.tolist() == histogram(durations_ns).tolist()


def test_many_durations_are_counted_as_often_as_they_occur():
    counts = np.zeros(BIN_COUNT, np.int64)
    count_durations(counts, [5_000] * 100 + [7_000_000])
    assert counts.tolist() == histogram([5_000] * 100 + [7_000_000]).tolist()
