import numpy as np
import pytest

from training_profiler.statistics.compare import freedom_of_sum, plain_mean, student_t, typical, variance_of_mean


@pytest.mark.parametrize(
    ("level", "freedom", "expected"),
    [(0.95, 1, 12.706), (0.95, 4, 2.776), (0.99, 8, 3.355), (0.95, 1000, 1.962)],  # tables of Student's t
)
def test_quantiles_of_students_t_are_those_of_the_tables(level, freedom, expected):
    assert student_t(level, freedom) == pytest.approx(expected, rel=1e-3)


def test_the_variance_of_independent_values_is_theirs_over_their_number():
    random = np.random.default_rng(0)
    variances = [variance_of_mean(random.standard_normal(400))[0] for _ in range(300)]
    assert np.mean(variances) == pytest.approx(1 / 400, rel=0.1)


def test_autocorrelation_makes_the_mean_less_certain():
    random = np.random.default_rng(1)
    shocks = random.standard_normal((300, 800))
    for i in range(1, 800):
        shocks[:, i] += 0.5 * shocks[:, i - 1]
    series = shocks[:, 400:]  # the variance of a mean is 1 / (1 - 0.5)^2 / 400
    variances = [variance_of_mean(row)[0] for row in series]
    assert np.mean(variances) == pytest.approx(4 / 400, rel=0.1)


def test_a_long_series_is_read_in_groups():
    random = np.random.default_rng(2)
    variance, freedom = variance_of_mean(random.standard_normal(100_000))
    assert freedom == 8
    assert 1e-6 < variance < 1e-4


def test_one_far_value_moves_the_mean_and_not_the_typical_value():
    values = np.array([1.0, 1.1, 0.9] * 30 + [100.0])
    assert plain_mean(values).mean > 2
    assert typical(values).mean == pytest.approx(1.0, abs=0.01)


def test_equal_values_have_no_spread():
    estimate = typical(np.full(30, 0.25))
    assert (estimate.mean, estimate.variance) == (0.25, 0.0)


def test_one_value_says_nothing():
    assert plain_mean(np.array([1.0])).variance == float("inf")


def test_freedom_of_two_equal_variances_adds_up():
    assert freedom_of_sum((2.0, 8), (2.0, 8)) == pytest.approx(16)
    assert freedom_of_sum((0.0, 8), (0.0, 5)) == 5
