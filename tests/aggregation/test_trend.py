import random

from training_profiler.statistics.trend import trend


def points(ys):
    return [(float(x), y) for x, y in enumerate(ys)]


def test_a_rise_by_half_is_certain():
    found = trend(points([1.0 + 0.5 * i / 199 for i in range(200)]))
    assert round(found.rise, 2) == 0.47  # from the first of 20 blocks to the last
    assert found.p_value < 1e-6


def test_a_flat_series_does_not_rise():
    found = trend(points([1.0] * 200))
    assert (found.rise, found.p_value) == (0.0, 0.5)


def test_a_falling_series_does_not_rise():
    found = trend(points([2.0 - i / 200 for i in range(200)]))
    assert found.rise < 0
    assert found.p_value == 0.5


def test_noise_is_not_a_rise():
    noise = random.Random(1)
    found = trend(points([1.0 + 0.1 * noise.random() for _ in range(200)]))
    assert found.p_value > 0.001


def test_one_outlier_does_not_move_the_trend():
    ys = [1.0] * 200
    ys[199] = 1e6
    assert trend(points(ys)).rise == 0.0


def test_39_points_are_too_few():
    assert trend(points([1.0] * 39)) is None


def test_40_points_are_enough():
    assert trend(points([1.0] * 40)) is not None


def test_a_series_that_begins_at_zero_has_no_relative_rise():
    assert trend(points([0.0] * 40)) is None
