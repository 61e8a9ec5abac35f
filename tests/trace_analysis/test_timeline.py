import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace
from training_profiler.trace_analysis.columns import NONE, Columns

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=12)


def timeline(columns: Columns):
    return columns.timeline(columns.is_of("cpu_op"))


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
