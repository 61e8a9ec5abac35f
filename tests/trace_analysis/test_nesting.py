import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace
from training_profiler.trace_analysis.launches import nesting_of


def test_call_at_the_time_of_an_operator_is_inside_it():
    columns = Trace().call("launch", 0, 5).op("a", 0, 5).columns()
    nesting = nesting_of(columns, columns.is_of("cpu_op", "cuda_runtime"))
    assert [columns.name_of(parent) for parent in nesting.parent.tolist()] == ["a", ""]


TREES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.sampled_from("abc"), st.integers(1, 2)),
    min_size=1,
    max_size=25,
)


def slow_parents(columns):
    """Return the parent of each event by a search of all others: the last that began and ends late enough.

    Annotations can overlap, and times can be rounded: then an event that ends late is a sibling, or still inside.
    """
    rows = np.lexsort((-columns.end_ns, columns.begin_ns, columns.thread)).tolist()
    parents, end = {}, {}
    for place, row in enumerate(rows):
        around = [
            earlier for earlier in rows[:place]
            if columns.thread[earlier] == columns.thread[row]
            and end[earlier] > columns.begin_ns[row] and end[earlier] >= columns.end_ns[row] - 2000
        ]  # fmt: skip
        parents[row] = around[-1] if around else -1
        end[row] = min(columns.end_ns[row], end[around[-1]]) if around else columns.end_ns[row]
    return [parents[row] for row in range(len(rows))]


@given(TREES)
def test_nesting_equals_a_slow_search(tree):
    trace = Trace()
    for begin, length, name, thread in tree:
        trace.op(name, begin, length, tid=thread)
    columns = trace.columns()
    nesting = nesting_of(columns, columns.is_of("cpu_op"))
    parent = slow_parents(columns)
    assert nesting.parent.tolist() == parent

    def above(row):
        while row >= 0:
            yield row
            row = parent[row]

    is_a = columns.named(lambda name: name == "a")
    expected = [next((outer for outer in above(row) if is_a[outer]), -1) for row in range(len(parent))]
    assert nesting.nearest(is_a).tolist() == expected
    names = columns.name.tolist()
    expected = [names[row] not in {names[outer] for outer in above(parent[row])} for row in range(len(parent))]
    assert nesting.outermost(columns.name).tolist() == expected
    totals = nesting.with_children(np.ones(len(parent), np.int64)).tolist()
    assert totals == [sum(row in above(inner) for inner in range(len(parent))) for row in range(len(parent))]
    self_ns = columns.length_ns.tolist()
    for row, around in enumerate(parent):
        if around >= 0:
            self_ns[around] -= min(columns.end_ns[row], columns.end_ns[around]) - columns.begin_ns[row]
    assert nesting.self_ns.tolist() == [max(0, ns) for ns in self_ns]
