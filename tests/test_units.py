import pytest

from training_profiler.base.units import duration_text, ms_column, ms_text, rounded, three_digits, unit_of_steps


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (9.99, "9.99 s"),
        (24.3, "24.3 s"),
        (59.9, "59.9 s"),
        (59.96, "1 min 00 s"),
        (251.0, "4 min 11 s"),
        (3599.6, "1 h 00 min"),
        (7500.0, "2 h 05 min"),
    ],
)
def test_durations_are_readable_at_a_glance(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(0.0521, "0.0521"), (1.674, "1.67"), (85.43, "85.4"), (3944.2, "3944")])
def test_three_significant_digits(value, text):
    assert three_digits(value) == text


def test_step_times_are_in_ms():
    assert ms_text(0.0076) == "7.60 ms"


def test_column_has_one_number_of_decimals():
    assert ms_column([0.0036, None, 0.000065]) == ["3.600", "", "0.065"]
    assert ms_column([1.6312, 0.00001]) == ["1631.2", "<0.1"]
    assert ms_column([]) == []


def test_rounding_never_makes_zero_of_something():
    assert (rounded(0.0004, 3), rounded(0.0, 3), rounded(0.0006, 3)) == ("<0.001", "0.000", "0.001")


def test_steps_of_ten_seconds_are_in_seconds():
    for seconds, text in ((42.666, "42.7 s"), (9.99, "9990 ms")):
        unit, number = unit_of_steps(seconds)
        assert f"{number(seconds)} {unit}" == text
