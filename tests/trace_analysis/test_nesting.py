import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import AUTOGRAD, Trace
from training_profiler.trace_analysis.event_table import read_columns
from training_profiler.trace_analysis.launches import nearest, nesting_of, with_children


def nested(trace, tmp_path):
    columns = read_columns(trace.write(tmp_path))
    nesting = nesting_of(columns, columns.is_of("cpu_op", "cuda_runtime", "user_annotation"))
    names = [columns.names[i] for i in columns.name]
    return names, nesting, columns


def parents(trace, tmp_path):
    names, nesting, _ = nested(trace, tmp_path)
    return {name: names[parent] if parent >= 0 else None for name, parent in zip(names, nesting.parent, strict=True)}


def test_parent_is_the_innermost_event_around(tmp_path):
    trace = Trace().op("a", 0, 10).op("b", 1, 5).op("c", 2, 2).op("d", 7, 2).op("e", 10, 1)
    assert parents(trace, tmp_path) == {"a": None, "b": "a", "c": "b", "d": "a", "e": None}


def test_events_of_different_threads_do_not_nest(tmp_path):
    assert parents(Trace().op("a", 0, 10).op("b", 1, 5, tid=AUTOGRAD), tmp_path) == {"a": None, "b": None}


def test_event_that_ends_1_us_late_by_rounding_is_still_inside(tmp_path):
    trace = Trace().op("a", 0, 10).op("b", 8, 3).op("c", 10, 5)
    assert parents(trace, tmp_path) == {"a": None, "b": "a", "c": None}


def test_overlapping_annotations_are_siblings(tmp_path):
    trace = Trace().mark("a", 0, 100).mark("b", 50, 100).op("c", 60, 5).op("d", 120, 5)
    assert parents(trace, tmp_path) == {"a": None, "b": None, "c": "b", "d": "b"}


def test_call_at_the_time_of_an_operator_is_inside_it(tmp_path):
    trace = Trace().call("launch", 0, 5).op("a", 0, 5)
    assert parents(trace, tmp_path) == {"a": None, "launch": "a"}


def test_self_time_excludes_inner_events(tmp_path):
    names, nesting, _ = nested(Trace().op("a", 0, 10).op("b", 1, 5).op("c", 2, 2).op("d", 7, 2), tmp_path)
    assert dict(zip(names, nesting.self_ns.tolist(), strict=True)) == {"a": 3000, "b": 3000, "c": 2000, "d": 2000}


def test_event_inside_one_of_the_same_name_is_not_outermost(tmp_path):
    names, nesting, _ = nested(Trace().op("a", 0, 10).op("b", 1, 8).op("a", 2, 2).op("a", 20, 1), tmp_path)
    assert list(zip(names, nesting.is_outermost.tolist(), strict=True)) == [
        ("a", True), ("b", True), ("a", False), ("a", True)
    ]  # fmt: skip


TREES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.sampled_from("abc"), st.integers(1, 2)),
    min_size=1,
    max_size=25,
)


def slow_parents(columns):
    """Return the parent of each event by a search of all others: the last that began and ends late enough."""
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
    assert nearest(nesting, is_a).tolist() == expected
    names = columns.name.tolist()
    outermost = [names[row] not in {names[outer] for outer in above(parent[row])} for row in range(len(parent))]
    assert nesting.is_outermost.tolist() == outermost
    totals = with_children(nesting, np.ones(len(parent), np.int64)).tolist()
    assert totals == [sum(row in above(inner) for inner in range(len(parent))) for row in range(len(parent))]
