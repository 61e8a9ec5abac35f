import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.trace_analysis.event_arguments import TimeProblemError, times_ns


def written(*times):
    """Return times as a file has them; bytes are what it has."""
    return [msgspec.Raw(time if isinstance(time, bytes) else json.dumps(time).encode()) for time in times]


@pytest.mark.parametrize(
    ("time_us", "ns"),
    [
        (17, 17_000),
        (0.0005, 0),  # half to even, as floats are
        (12.345, 12_345),
        ("12.345", 12_345),
        ("-12.345", -12_345),
        (-0.5, -500),
        ("12.3456", 12_346),
        ("12", 12_000),
        (".5", 500),
        (b"1.5e3", 1_500_000),
        ("1.5e3", 1_500_000),
        (2.0**42 - 0.5, (2**42 - 1) * 1000 + 500),
        (b"9007199254740993.5", None),  # 2**53 us is beyond 146 years
        (9_007_199_254_740_993, None),
        (1_623_143_000_123_457, 1_623_143_000_123_457_000),
        (b"1623143000123456.789", 1_623_143_000_123_456_789),
        (b"1623143000123456.7895", 1_623_143_000_123_456_790),
        ("1623143000123456.789", 1_623_143_000_123_456_789),
    ],
)
def test_time_is_exact_to_the_nanosecond(time_us, ns):
    if ns is None:
        with pytest.raises(TimeProblemError):
            times_ns(written(time_us))
    else:
        assert times_ns(written(time_us)).tolist() == [ns]


@given(st.lists(st.integers(0, 4 * 10**18)))
def test_times_of_kineto_lose_no_digit(times):
    assert times_ns(written(*(f"{time // 1000}.{time % 1000:03}".encode() for time in times))).tolist() == times


def test_times_of_a_file_can_have_different_formats():
    times = written(b"1.5", b"1623143000123456.789", b"2e3", b'"7.250"', b"3")
    assert times_ns(times).tolist() == [1500, 1_623_143_000_123_456_789, 2_000_000, 7250, 3000]


@pytest.mark.parametrize("first", [1.5, 1, b"1.000", "1"])
@pytest.mark.parametrize(
    "time", [None, "", "soon", "nan", "inf", b"1e400", 2**64, -(2**70), 2**1024, "1e40", [], True, "1.2.3", b""]
)
def test_invalid_time_is_named_by_index(first, time):
    with pytest.raises(TimeProblemError) as problem:
        times_ns(written(first, time, 2))
    assert problem.value.index == 1
