import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import assert_answers
from training_profiler.trace_analysis.event_arguments import TimeProblemError, times_ns


def written(*times):
    """Return times as a file has them; bytes are what it has."""
    return [msgspec.Raw(time if isinstance(time, bytes) else json.dumps(time).encode()) for time in times]


def ns_of(time_us):
    try:
        return times_ns(written(time_us.encode())).tolist()[0]
    except TimeProblemError:
        return "refused"


def test_time_is_exact_to_the_nanosecond():
    """Halves are rounded to even, as floats are, and what is beyond 146 years is refused."""
    assert_answers("times", ns_of)


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
