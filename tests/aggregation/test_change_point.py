""""""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.statistics.histogram import BIN_COUNT, bins_of, quantile_ns
from training_profiler.statistics.trend import MOST_POINTS, Series, change_point, trend


def wandering(rng, count, correlation, tail=np.inf):
    """Return a stationary series in which each value keeps ``correlation`` of the one before it."""
    noise = rng.normal(size=count + 300) if tail == np.inf else rng.standard_t(tail, size=count + 300)
    values = np.zeros(count + 300)
    for i in range(1, len(values)):
        values[i] = correlation * values[i - 1] + noise[i]
    return values[300:]


def test_at_most_one_in_twenty_stationary_series_has_a_change():
    rng = np.random.default_rng(16)
    found = 0
    for run in range(200):
        correlation, tail = (0.0, 0.5, 0.8, 0.9)[run % 4], (np.inf, 3)[run // 4 % 2]
        count = (100, 400, 1024)[run % 3]
        found += change_point(100 + wandering(rng, count, correlation, tail)) is not None
    assert found <= 10


def test_change_is_found_within_its_interval():
    rng = np.random.default_rng(17)
    inside = found = 0
    for _ in range(60):
        values = 100 + wandering(rng, 240, 0.5)
        values[150:] += 6
        change = change_point(values)
        found += change is not None
        inside += change is not None and change.first <= 150 <= change.last
    assert found >= 54
    assert inside >= 0.9 * found


def test_levels_are_the_medians_of_both_sides():
    values = np.concatenate([np.tile([1.0, 1.1, 0.9], 40), np.tile([2.0, 2.1, 1.9], 40)])
    change = change_point(values)
    assert (change.at, change.before, change.after, change.is_abrupt) == (120, 1.0, 2.0, True)
    assert change.last - change.first <= 8


@pytest.mark.parametrize("bend", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("noise", [0.001, 0.1])
def test_steady_rise_does_not_jump(bend, noise):
    rng = np.random.default_rng(18)
    change = change_point(1 + np.linspace(0.0, 1.0, 300) ** bend + noise * rng.normal(size=300))
    assert change is None or not change.is_abrupt


@pytest.mark.parametrize(
    "values",
    [
        np.ones(200),
        np.concatenate([np.ones(150), [500.0], np.ones(49)]),  # one pause
        np.tile([1.0, 2.0], 100),
        np.concatenate([np.ones(20), np.full(19, 2.0)]),  # too few
        np.array([]),
        np.linspace(1, 2, 120),
        np.exp(np.linspace(0, 5, 120)),
        np.linspace(0, 1, 120) ** 2,
        1 + 5 * np.exp(-np.linspace(0, 60, 120)),
    ],
    ids=["constant", "one pause", "alternating", "short", "empty", "line", "exponential", "square", "decay"],
)
def test_series_without_a_change_has_none(values):
    assert change_point(values) is None


def test_a_large_step_is_found_although_values_drift_on_both_sides():
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(50):
        before = np.linspace(4.4, 3.5, 60) + generator.normal(0, 0.15, 60)
        change = change_point(np.concatenate([before, 24.5 + generator.normal(0, 1, 60)]))
        found += change is not None and 58 <= change.at <= 62 and change.is_abrupt
    assert found == 50


CERTAIN, CHANCE = 0.0, 0.5  # that the values rise by chance alone
RISES = {
    "by half": ([1.0 + 0.5 * i / 199 for i in range(200)], (0.472, CERTAIN)),  # from the first of 20 blocks to the last
    "not at all": ([1.0] * 200, (0.0, CHANCE)),
    "by one outlier": ([1.0] * 199 + [1e6], (0.0, CHANCE)),
    "of 40 values": ([1.0] * 40, (0.0, CHANCE)),
    "of too few": ([1.0] * 39, None),
    "from zero": ([0.0] * 40, None),
    # A straight line through them begins near 0, or below.
    "that is quadratic": ([0.18 + (i / 199) ** 2 for i in range(200)], (5.289, CERTAIN)),
    "that becomes steeper, from its first values": ([0.01 + (i / 199) ** 3 for i in range(200)], (79.495, CERTAIN)),
}


@pytest.mark.parametrize(("ys", "expected"), RISES.values(), ids=RISES)
def test_a_rise_is_relative_to_the_first_values_and_has_its_probability(ys, expected):
    found = trend([(float(x), y) for x, y in enumerate(ys)])
    assert (found and (round(found.rise, 3), pytest.approx(found.p_value, abs=1e-6))) == expected


MIB = 2**20


def series_of(values, every_s=1.0):
    series = Series()
    for i, value in enumerate(values):
        series.add(i * every_s, value)
    return series


GROWTHS = {  # bytes, values, and the probability of a growth by chance
    "steady": ([100 * MIB + 3 * MIB * i for i in range(60)], (3 * MIB * 47, 48, CERTAIN)),
    "of ten values": ([10.0 * i for i in range(10)], (70, 8, 0.0004)),
    "of nine": (range(9), None),
    "by an allocation at the start": ([10.0, 400.0, 900.0, 1000.0, *[1100.0] * 36], (0, 32, CHANCE)),
    "that has ended": ([*range(50), *[50.0] * 50], (0, 80, CERTAIN)),
    "by noise": ([1000.0 + (7919 * i % 101) for i in range(200)], (0, 160, 0.3976)),
    "below zero": ([1000.0 - i for i in range(60)], (-47, 48, CHANCE)),
}


@pytest.mark.parametrize(("values", "expected"), GROWTHS.values(), ids=GROWTHS)
def test_growth_of_memory_leaves_out_the_first_values_and_has_its_probability(values, expected):
    found = series_of(values).growth()
    assert (found and (found.bytes, found.points, pytest.approx(found.p_value, abs=1e-4))) == expected
    assert found is None or found.seconds == found.points - 1
    assert series_of(values, every_s=0.0).growth() is None  # the clock stands still


def test_points_are_bounded_and_keep_the_slope():
    series = series_of([2.0 * i for i in range(100_000)])
    assert len(series.points) <= MOST_POINTS
    assert sum(count for count, _, _ in series.points) == 100_000
    growth = series.growth()
    assert growth.bytes == pytest.approx(2 * growth.seconds)


durations = st.lists(st.integers(1, 2**50), min_size=1, max_size=200)


def histogram(durations_ns):
    return np.bincount(bins_of(np.array(durations_ns, np.int64)), minlength=BIN_COUNT)


@given(durations, st.sampled_from((0.0, 0.5, 0.95, 0.99, 1.0)))
def test_a_quantile_is_within_one_percent_of_the_nearest_rank(durations_ns, q):
    rank = max(1, math.ceil(q * len(durations_ns)))
    exact = sorted(durations_ns)[rank - 1]
    assert quantile_ns(histogram(durations_ns), q) == pytest.approx(exact, rel=0.01)


def test_durations_below_the_first_bin_and_beyond_the_last_share_these():
    assert bins_of(np.array([0, 1, 2**62])).tolist() == [0, 0, BIN_COUNT - 1]
