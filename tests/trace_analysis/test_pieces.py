import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace
from training_profiler.trace_analysis import reader
from training_profiler.trace_analysis.columns import CATEGORIES
from training_profiler.trace_analysis.event_table import columns_of, read_columns
from training_profiler.trace_analysis.reader import NoPiecesError, read_events, read_parts

MANY = Trace(distributedInfo={"rank": 3, "world_size": 8})
for i in range(200):
    MANY.op(f"op {i % 7}", 10 * i, 5, **{"Input Dims": [[i % 3, 2], [{}]], "External id": i})
    MANY.kernel(f"kernel {i % 5}", 10 * i + 6, 3, correlation=i, **{"Collective name": "all_reduce" if i % 2 else None})
    MANY.memory(10 * i, 100)
HALVES = [
    event
    for span in MANY.events
    for event in (
        [{**span, "ph": "B"}, {"ph": "E", "pid": span["pid"], "tid": span["tid"], "ts": span["ts"] + span["dur"]}]
        if span["ph"] == "X"
        else [span]
    )
]
# What any event may have as arguments, whether its category has it or not.
ARGUMENTS = {
    "External id": 3,
    "correlation": 4,
    "device": 1,
    "stream": 7,
    "bytes": 2**40,
    "kernel": "gemm",
    "Input Dims": [[1, 2], []],
    "Input type": ["float", ""],
    "Concrete Inputs": ["", "1"],
    "Call stack": "a.py(1): f",
    "Module Hierarchy": "model",
    "est. achieved occupancy %": 50,
    "blocks per SM": 0.5,
    "Collective name": "allreduce",
    "Process Group Ranks": "[0, 1]",
    "dtype": "Float",
}
OTHERS = ["cuda_sync", "Trace", "fwdbwd", "ac2g", None, 3]
KINDS = [*CATEGORIES, *(category.capitalize() for category in CATEGORIES), *OTHERS]
WRITTEN = {
    "an object": MANY.text(),
    "an object with its rank first": json.dumps({"distributedInfo": {"rank": 3}, "traceEvents": MANY.events}),
    "a list": json.dumps(MANY.events),
    "indented": json.dumps(MANY.top | {"traceEvents": MANY.events}, indent=1),
    "in halves": json.dumps(MANY.top | {"traceEvents": HALVES}),
    "with large times": json.dumps([event | {"ts": f"16231430001{event['ts']:05}.5"} for event in MANY.events]),
}


@pytest.fixture
def small(monkeypatch):
    """Files are read in chunks of 1 kB, and cut near the end of each."""
    monkeypatch.setattr(reader, "_CHUNK", 1000)
    monkeypatch.setattr(reader, "_NEAR_END", 500)


def assert_same(found, expected):
    for field in expected.__dataclass_fields__:
        one, other = getattr(found, field), getattr(expected, field)
        if hasattr(other, "__dataclass_fields__"):
            assert_same(one, other)
        elif isinstance(other, np.ndarray):
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other, field


@pytest.mark.parametrize("written", WRITTEN)
def test_trace_in_pieces_is_the_same_as_read_at_once(written, small, tmp_path):
    for name, data in (("a.json", WRITTEN[written].encode()), ("a.json.gz", gzip.compress(WRITTEN[written].encode()))):
        path = tmp_path / name
        path.write_bytes(data)
        assert len(list(read_parts(path))) > 20
        assert_same(columns_of(read_parts(path), "a"), columns_of([read_events(path)], "a"))


def event(kind, phase, ts, args):
    """Return an event as Kineto writes it; one without a category lacks the key."""
    given = {"ph": phase, "cat": kind, "name": f"{kind} {ts % 3}", "pid": 1, "tid": ts % 2, "ts": ts, "dur": 3}
    return {key: value for key, value in given.items() if key != "cat" or value is not None} | (
        {"args": args} if args else {}
    )


def in_pieces_and_at_once(events, path):
    path.write_text(json.dumps({"traceEvents": events}))
    assert_same(columns_of(read_parts(path), "a"), columns_of([read_events(path)], "a"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from("XXXXXXsfMi"),
            st.dictionaries(st.sampled_from(sorted(ARGUMENTS)), st.none(), max_size=4),
        ),
        max_size=60,
    )
)
def test_events_of_any_category_are_the_same_in_pieces(kinds):
    events = [event("cpu_op", "X", 0, None)]
    for i, (kind, phase, keys) in enumerate(kinds):
        events.append(event(kind, phase, i, {key: ARGUMENTS[key] for key in keys}))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(reader, "_CHUNK", 1000)
        patch.setattr(reader, "_NEAR_END", 500)
        in_pieces_and_at_once(events, Path(folder, "a.json"))


def test_an_arrow_that_is_a_span_is_one(small, tmp_path):
    in_pieces_and_at_once([event("ac2g", "X", i, ARGUMENTS) for i in range(50)], tmp_path / "a.json")
    assert read_columns(tmp_path / "a.json").end_ns[-1] == 52_000


def test_objects_in_arguments_that_look_like_events_do_not_change_what_is_read(small, tmp_path):
    alike = [{"ph": "X", "name": "not an event", "ts": i, "dur": 1} for i in range(100)]
    path = Trace().op("a", 0, 1, details=alike).op("b", 2, 1, details=alike).write(tmp_path)
    found = read_columns(path)
    assert (found.names, found.events) == (("a", "b"), 2)


def test_file_without_a_place_for_a_cut_is_read_at_once(small, monkeypatch, tmp_path):
    monkeypatch.setattr(reader, "MOST_PIECE_BYTES", 10_000)
    first, *others = MANY.events
    events = [first, *({"cat": event.get("cat")} | event for event in others)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(NoPiecesError):
        list(read_parts(path))
    assert read_columns(path).events == len(events)
