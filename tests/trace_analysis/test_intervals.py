import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.trace_analysis.columns import Intervals

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def arrays(spans):
    begins = np.array([begin for begin, _ in spans], np.int64)
    return begins, begins + np.array([length for _, length in spans], np.int64)


def moments(spans):
    """Return all nanoseconds that the spans cover."""
    return {moment for begin, length in spans for moment in range(begin, begin + length)}


def ints(*values):
    return np.array(values, np.int64)


@given(SPANS)
def test_union_has_exactly_the_moments_of_its_intervals_sorted_and_disjoint(spans):
    found = Intervals.of(*arrays(spans))
    assert {t for b, e in zip(found.begin_ns, found.end_ns, strict=True) for t in range(b, e)} == moments(spans)
    assert found.total_ns == len(moments(spans))
    assert (found.begin_ns[1:] > found.end_ns[:-1]).all()
    if len(found.begin_ns):
        assert found.total_ns + found.between.total_ns == found.end_ns[-1] - found.begin_ns[0]


@given(SPANS, SPANS)
def test_together_is_the_union_of_both_and_overlap_the_intersection(first, second):
    one, other = Intervals.of(*arrays(first)), Intervals.of(*arrays(second))
    assert (one | other).total_ns == len(moments(first) | moments(second))
    assert int(other.within(*one).sum()) == len(moments(first) & moments(second))


@given(SPANS, SPANS)
def test_covered_is_the_overlap_with_each_window(spans, windows):
    begins, ends = arrays(windows)
    inside = moments(spans)
    expected = [len(inside & set(range(b, e))) for b, e in zip(begins, ends, strict=True)]
    assert Intervals.of(*arrays(spans)).within(begins, ends).tolist() == expected


def test_empty_interval_divides_the_gap_around_it():
    assert Intervals.of(ints(0, 7, 10), ints(5, 7, 12)).between.begin_ns.tolist() == [5, 7]
