import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.trace_analysis.event_arguments import InexactTimeError, TimeProblemError, times_ns


@pytest.mark.parametrize(
    ("time_us", "ns"),
    [
        (17, 17_000),
        (0.0005, 0),  # half to even, as floats are
        (12.345, 12_345),
        ("12.345", 12_345),
        ("-12.345", -12_345),
        ("12.3456", 12_346),
        ("12", 12_000),
        (".5", 500),
        ("1.5e3", 1_500_000),
        (9_007_199_254_740_993, None),  # 2**53 + 1 us is beyond 146 years
        (1_623_143_000_123_457, 1_623_143_000_123_457_000),
        ("1623143000123456.789", 1_623_143_000_123_456_789),
        ('"1623143000123456.789"', 1_623_143_000_123_456_789),
    ],
)
def test_time_is_exact_to_the_nanosecond(time_us, ns):
    if ns is None:
        with pytest.raises(TimeProblemError):
            times_ns([time_us])
    else:
        assert times_ns([time_us]).tolist() == [ns]


@given(st.lists(st.integers(0, 4 * 10**18), min_size=1))
def test_times_of_kineto_lose_no_digit(times):
    written = [msgspec.Raw(f"{time // 1000}.{time % 1000:03}".encode()) for time in times]
    assert times_ns(written).tolist() == times


def test_times_of_a_file_can_have_different_formats():
    written = [msgspec.Raw(text) for text in (b"1.5", b"1623143000123456.789", b"2e3", b'"7.250"', b"3")]
    assert times_ns(written).tolist() == [1500, 1_623_143_000_123_456_789, 2_000_000, 7250, 3000]


@pytest.mark.parametrize("time", [None, "", "soon", "nan", "inf", 1e400, 2**70, "1e40", [], True and "1.2.3", b""])
def test_invalid_time_is_named_by_index(time):
    with pytest.raises(TimeProblemError) as problem:
        times_ns([1.0, time, 2])
    assert problem.value.index == 1


@pytest.mark.parametrize("others", [[1, 2.5], ["1.5"], []])
def test_floats_that_may_not_be_exact_have_to_be_read_as_written(others):
    assert times_ns([*others, 2.0**42 - 0.5])[-1] == (2**42 - 1) * 1000 + 500
    with pytest.raises(InexactTimeError):
        times_ns([*others, 2.0**42])


def test_empty_list_of_times_is_valid():
    assert times_ns([]).tolist() == []


@pytest.mark.parametrize("others", [[], [1], [0.5], ["1"]])
@pytest.mark.parametrize("large", [2**64, 2**1024, -(2**1024)])
def test_a_number_beyond_floats_is_an_invalid_time(others, large):
    with pytest.raises(TimeProblemError) as caught:
        times_ns([*others, large])
    assert caught.value.index == len(others)
