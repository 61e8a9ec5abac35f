import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import AUTOGRAD, Trace
from training_profiler.trace_analysis.load.reader import RawTrace, read_events
from training_profiler.trace_analysis.load.table import columns_of
from training_profiler.trace_analysis.nesting import nearest, nesting_of, with_children


def nested(trace, tmp_path):
    columns = columns_of(read_events(trace.write(tmp_path)), "a")
    nesting = nesting_of(columns, columns.is_of("cpu_op", "cuda_runtime", "user_annotation"))
    names = [columns.names[i] for i in columns.name]
    return names, nesting, columns


def parents(trace, tmp_path):
    names, nesting, _ = nested(trace, tmp_path)
    return {name: names[parent] if parent >= 0 else None for name, parent in zip(names, nesting.parent, strict=True)}


def test_an_event_lies_in_the_innermost_one_around_it(tmp_path):
    trace = Trace().op("a", 0, 10).op("b", 1, 5).op("c", 2, 2).op("d", 7, 2).op("e", 10, 1)
    assert parents(trace, tmp_path) == {"a": None, "b": "a", "c": "b", "d": "a", "e": None}


def test_threads_do_not_nest_in_each_other(tmp_path):
    assert parents(Trace().op("a", 0, 10).op("b", 1, 5, tid=AUTOGRAD), tmp_path) == {"a": None, "b": None}


def test_what_ends_one_us_late_by_rounding_still_lies_within_and_does_not_swallow_what_follows(tmp_path):
    trace = Trace().op("a", 0, 10).op("b", 8, 3).op("c", 10, 5)
    assert parents(trace, tmp_path) == {"a": None, "b": "a", "c": None}


def test_annotations_that_overlap_lie_beside_each_other(tmp_path):
    trace = Trace().mark("a", 0, 100).mark("b", 50, 100).op("c", 60, 5).op("d", 120, 5)
    assert parents(trace, tmp_path) == {"a": None, "b": None, "c": "b", "d": "b"}


def test_of_two_events_at_the_same_time_the_call_lies_in_the_operator(tmp_path):
    trace = Trace().call("launch", 0, 5).op("a", 0, 5)
    assert parents(trace, tmp_path) == {"a": None, "launch": "a"}


def test_time_of_its_own_is_without_what_lies_within(tmp_path):
    names, nesting, _ = nested(Trace().op("a", 0, 10).op("b", 1, 5).op("c", 2, 2).op("d", 7, 2), tmp_path)
    assert dict(zip(names, nesting.self_ns.tolist(), strict=True)) == {"a": 3000, "b": 3000, "c": 2000, "d": 2000}


def test_an_event_in_one_of_its_name_is_not_outermost(tmp_path):
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
    """Return the parent of each event by looking at all others: the last that began and ends late enough."""
    rows = np.lexsort((-columns.end_ns, columns.begin_ns, columns.thread)).tolist()
    found, end = {}, {}
    for place, row in enumerate(rows):
        around = [
            other for other in rows[:place]
            if columns.thread[other] == columns.thread[row]
            and end[other] > columns.begin_ns[row] and end[other] >= columns.end_ns[row] - 2000
        ]  # fmt: skip
        found[row] = around[-1] if around else -1
        end[row] = min(columns.end_ns[row], end[around[-1]]) if around else columns.end_ns[row]
    return [found[row] for row in range(len(rows))]


@given(TREES)
def test_nesting_is_that_of_a_slow_reading(tree):
    trace = Trace()
    for begin, length, name, thread in tree:
        trace.op(name, begin, length, tid=thread)
    columns = columns_of(RawTrace(read_from(trace), [], {}), "a")
    nesting = nesting_of(columns, columns.is_of("cpu_op"))
    parent = slow_parents(columns)
    assert nesting.parent.tolist() == parent

    def above(row):
        while row >= 0:
            yield row
            row = parent[row]

    is_a = columns.named(lambda name: name == "a")
    expected = [next((one for one in above(row) if is_a[one]), -1) for row in range(len(parent))]
    assert nearest(nesting, is_a).tolist() == expected
    names = columns.name.tolist()
    outermost = [names[row] not in {names[one] for one in above(parent[row])} for row in range(len(parent))]
    assert nesting.is_outermost.tolist() == outermost
    totals = with_children(nesting, np.ones(len(parent), np.int64)).tolist()
    assert totals == [sum(row in above(one) for one in range(len(parent))) for row in range(len(parent))]


def read_from(trace):
    import msgspec

    from training_profiler.trace_analysis.load.reader import Event

    return msgspec.convert(trace.events, list[Event])
