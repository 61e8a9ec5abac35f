import numpy as np
import pytest

from training_profiler.statistics.change_point import change_point


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
    ],
    ids=["constant", "one pause", "alternating", "short", "empty"],
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


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(1, 2, 120),
        np.exp(np.linspace(0, 5, 120)),
        np.linspace(0, 1, 120) ** 2,
        1 + 5 * np.exp(-np.linspace(0, 60, 120)),
    ],
    ids=["line", "exponential", "square", "decay"],
)
def test_a_steady_trend_has_no_clear_cut(values):
    assert change_point(values) is None
