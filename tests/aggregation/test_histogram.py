import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.aggregation.histogram import BIN_COUNT, bins_of, quantile_ns

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
