import gzip
import json

import numpy as np
import pytest

from tests.support.traces import Trace
from training_profiler.trace_analysis.load import chunks, pieces
from training_profiler.trace_analysis.load.pieces import NoPiecesError, pieces_of
from training_profiler.trace_analysis.load.reader import read_events, read_parts
from training_profiler.trace_analysis.load.table import columns_of, read_columns

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
    monkeypatch.setattr(chunks, "_CHUNK", 1000)
    monkeypatch.setattr(pieces, "_NEAR_END", 500)


def assert_same(found, expected):
    for field in expected.__slots__:
        one, other = getattr(found, field), getattr(expected, field)
        if hasattr(other, "__slots__"):
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


def test_each_piece_is_json_and_has_some_of_the_events(small):
    text = MANY.text().encode()
    found = [json.loads(piece) for piece in pieces_of(text[at : at + 1000] for at in range(0, len(text), 1000))]
    assert [event for piece in found for event in piece["traceEvents"]] == MANY.events
    assert found[-1].keys() | found[0].keys() == {"traceEvents", *MANY.top}


def test_objects_in_arguments_that_look_like_events_do_not_change_what_is_read(small, tmp_path):
    alike = [{"ph": "X", "name": "not an event", "ts": i, "dur": 1} for i in range(100)]
    path = Trace().op("a", 0, 1, details=alike).op("b", 2, 1, details=alike).write(tmp_path)
    found = read_columns(path)
    assert (found.names, found.events) == (("a", "b"), 2)


def test_file_without_a_place_for_a_cut_is_read_at_once(small, monkeypatch, tmp_path):
    monkeypatch.setattr(pieces, "MOST_PIECE_BYTES", 10_000)
    first, *others = MANY.events
    events = [first, *({"cat": event.get("cat")} | event for event in others)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(NoPiecesError):
        list(read_parts(path))
    assert read_columns(path).events == len(events)
