import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.trace_analysis.intervals import covered, gaps, overlap, together, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def arrays(spans):
    begins = np.array([begin for begin, _ in spans], np.int64)
    return begins, begins + np.array([length for _, length in spans], np.int64)


def moments(spans):
    """Return every nanosecond that any of the spans covers."""
    return {moment for begin, length in spans for moment in range(begin, begin + length)}


def ints(*values):
    return np.array(values, np.int64)


@given(SPANS)
def test_a_union_covers_each_moment_that_any_interval_covers_and_no_other(spans):
    found = union(*arrays(spans))
    assert found.total_ns == len(moments(spans))
    assert {t for b, e in zip(found.begin_ns, found.end_ns, strict=True) for t in range(b, e)} == moments(spans)


@given(SPANS)
def test_intervals_of_a_union_are_in_order_and_do_not_touch(spans):
    found = union(*arrays(spans))
    assert (found.begin_ns[1:] > found.end_ns[:-1]).all()


@given(SPANS, SPANS)
def test_together_is_the_union_of_both(one, other):
    assert together(union(*arrays(one)), union(*arrays(other))).total_ns == len(moments(one) | moments(other))


@given(SPANS, SPANS)
def test_overlap_is_what_both_cover(one, other):
    assert overlap(union(*arrays(one)), union(*arrays(other))) == len(moments(one) & moments(other))


@given(SPANS, SPANS)
def test_covered_is_the_part_of_each_window_that_the_intervals_cover(spans, windows):
    begins, ends = arrays(windows)
    inside = moments(spans)
    expected = [len(inside & set(range(b, e))) for b, e in zip(begins, ends, strict=True)]
    assert covered(union(*arrays(spans)), begins, ends).tolist() == expected


@given(SPANS)
def test_gaps_and_intervals_together_are_the_whole_span(spans):
    found = union(*arrays(spans))
    if len(found.begin_ns):
        assert found.total_ns + gaps(found).total_ns == found.end_ns[-1] - found.begin_ns[0]


def test_intervals_that_touch_are_one():
    found = union(ints(0, 5), ints(5, 9))
    assert (found.begin_ns.tolist(), found.end_ns.tolist()) == ([0], [9])


def test_an_empty_interval_divides_the_gap_around_it():
    assert gaps(union(ints(0, 7, 10), ints(5, 7, 12))).begin_ns.tolist() == [5, 7]
