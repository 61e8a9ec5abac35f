import pytest

from training_profiler.statistics.trend import MOST_POINTS, Series

MIB = 2**20


def series_of(values, every_s=1.0):
    series = Series()
    for i, value in enumerate(values):
        series.add(i * every_s, value)
    return series


def test_memory_that_rises_steadily_grows():
    growth = series_of([100 * MIB + 3 * MIB * i for i in range(60)]).growth()
    assert growth.bytes == pytest.approx(3 * MIB * growth.seconds)
    assert (growth.points, growth.seconds) == (48, 47.0)
    assert growth.p_value < 1e-9


def test_ten_samples_are_enough_and_nine_are_not():
    assert series_of(range(9)).growth() is None
    growth = series_of([10.0 * i for i in range(10)]).growth()
    assert (growth.bytes, growth.points) == (70.0, 8)
    assert growth.p_value == pytest.approx(0.0004, abs=1e-4)


def test_allocation_at_the_start_is_not_growth():
    growth = series_of([10.0, 400.0, 900.0, 1000.0, *[1100.0] * 36]).growth()
    assert growth.bytes == 0
    assert growth.p_value > 0.4


def test_slowing_growth_is_that_of_the_later_half():
    growth = series_of([*range(50), *[50.0] * 50]).growth()
    assert growth.bytes == 0


def test_noise_is_not_growth():
    growth = series_of([1000.0 + (7919 * i % 101) for i in range(200)]).growth()
    assert abs(growth.bytes) < 20
    assert growth.p_value > 0.05


def test_shrinking_memory_is_not_growth():
    growth = series_of([1000.0 - i for i in range(60)]).growth()
    assert growth.bytes == -47
    assert growth.p_value == pytest.approx(0.5)


def test_a_single_spike_moves_nothing():
    values = [100.0] * 80
    values[40] = 1e9
    assert series_of(values).growth().bytes == 0


def test_a_stopped_clock_shows_no_growth():
    assert series_of(range(60), every_s=0.0).growth() is None


def test_points_are_bounded_and_keep_the_slope():
    series = series_of([2.0 * i for i in range(100_000)])
    assert len(series.points) <= MOST_POINTS
    assert sum(count for count, _, _ in series.points) == 100_000
    growth = series.growth()
    assert growth.bytes == pytest.approx(2 * growth.seconds)


def test_a_series_from_parts_equals_the_whole():
    values = [float(i * i % 97) for i in range(2000)]
    together = Series()
    for begin in range(0, 2000, 10):
        part = Series()
        for i in range(begin, begin + 10):
            part.add(i, values[i])
        together.add_points(part.points)
    assert together.points == series_of(values).points
