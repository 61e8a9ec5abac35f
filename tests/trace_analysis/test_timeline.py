import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace
from training_profiler.trace_analysis.columns import NONE, Columns
from training_profiler.trace_analysis.timeline import timeline_of

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=12)


def timeline(columns: Columns):
    return timeline_of(columns, columns.is_of("cpu_op"))


@pytest.mark.parametrize(
    ("spans", "changes"),
    [
        ([(0, 10), (20, 5)], [(0, "a"), (10, None), (20, "b"), (25, None)]),
        ([(0, 10), (10, 5)], [(0, "a"), (10, None), (10, "b"), (15, None)]),
        ([(0, 10), (2, 3)], [(0, "a"), (2, "b"), (5, "a"), (10, None)]),
        ([(0, 10), (2, 12)], [(0, "a"), (2, "b"), (14, None)]),
        ([(0, 3), (10, 9), (12, 2), (30, 1)],
         [(0, "a"), (3, None), (10, "b"), (12, "c"), (14, "b"), (19, None), (30, "d"), (31, None)]),
    ],
)  # fmt: skip
def test_the_newest_open_event_counts(spans, changes):
    trace = Trace()
    for name, (begin_us, length_us) in zip("abcd", spans, strict=False):
        trace.op(name, begin_us, length_us)
    columns = trace.columns()
    found = timeline(columns)
    names = [None if row == NONE else columns.names[columns.name[row]] for row in found.row.tolist()]
    assert list(zip((found.begin_ns // 1000).tolist(), names, strict=True)) == changes


def test_timeline_of_nothing_is_empty():
    columns = Trace().mark("a", 0, 5).columns()
    assert timeline(columns).at(np.array([0, 3])).tolist() == [NONE, NONE]


@given(SPANS)
def test_at_each_time_it_is_the_event_that_began_last_of_those_that_are_open(spans):
    trace = Trace()
    for i, (begin_us, length_us) in enumerate(spans):
        trace.op(f"op {i}", begin_us, length_us)
    columns = trace.columns()
    at_ns = np.arange(0, 60_000, 500)
    begins, ends = columns.begin_ns, columns.end_ns
    in_order = np.lexsort((-ends, begins)).tolist()
    expected = [max((row for row in in_order if begins[row] <= at < ends[row]),
                    key=in_order.index, default=NONE) for at in at_ns.tolist()]  # fmt: skip
    assert timeline(columns).at(at_ns).tolist() == expected
