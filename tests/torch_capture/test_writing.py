import gzip
import json
from pathlib import Path

import pytest

from training_profiler.base.sections import CLOCK_MARK
from training_profiler.torch_capture import trace_file
from training_profiler.torch_capture.trace_file import CaptureError, WrittenSpan, check_whole, write_trace

MARKS = [[(1000, 1010)], [(9000, 9010)]]


def raw_trace(folder: Path, has_marks: bool = True) -> Path:
    marks = [
        f'{{"ph": "X", "cat": "user_annotation", "name": "{CLOCK_MARK} {ns}", "pid": 7, "tid": 8, "ts": {ts}, '
        '"dur": 0.010}'
        for ns, ts in ((1000, "51.000"), (9000, "59.000"))
    ]
    events = ['{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 53.000, "dur": 1.000}']
    path = folder / "raw"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": [' + ",\n".join(events + marks * has_marks) + '], "traceName": "x"}'
    )
    return path


def written(
    raw: Path, path: Path, spans: list[WrittenSpan], most_bytes: float = 1e6, is_called_off: bool = False
) -> int:
    return write_trace(raw, path, spans, MARKS, most_bytes, lambda: is_called_off)


def test_sections_are_in_the_trace_on_its_clock_and_thread(tmp_path):
    path = tmp_path / "x.gz"
    size = written(raw_trace(tmp_path), path, [WrittenSpan('my "own"', 2999, 4001)])
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert size == path.stat().st_size
    assert trace["traceEvents"][0] == {
        "ph": "X",
        "cat": "user_annotation",
        "name": 'my "own"',
        "pid": 7,
        "tid": 8,
        "ts": 52.999,
        "dur": 1.002,
        "args": {},
    }
    assert [event["name"] for event in trace["traceEvents"][1:]] == [
        "aten::mm",
        f"{CLOCK_MARK} 1000",
        f"{CLOCK_MARK} 9000",
    ]


@pytest.mark.parametrize("cut", [0, 1, 7, 13, 14])
def test_steps_of_the_programs_profiler_are_renamed(tmp_path, monkeypatch, cut):
    raw, path = raw_trace(tmp_path), tmp_path / "x.gz"
    theirs = (
        '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 7, "tid": 8, "ts": 53.000, "dur": 1}'
    )
    raw.write_text(raw.read_text().replace('{"ph": "X", "cat": "cpu_op"', theirs + ',\n{"ph": "X", "cat": "cpu_op"'))
    monkeypatch.setattr(trace_file, "HEAD", raw.read_text().index('"ProfilerStep') + cut)
    written(raw, path, [WrittenSpan("ProfilerStep#5", 3000, 4000)])
    names = [event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
    assert names[:3] == ["ProfilerStep#5", "program's ProfilerStep#7", "aten::mm"]


@pytest.mark.parametrize(
    ("limits", "has_marks", "why"),
    [({"most_bytes": 1}, True, "megabytes"), ({"is_called_off": True}, True, "run ended"), ({}, False, "marks")],
)
def test_a_file_that_is_not_to_be_is_removed(tmp_path, limits, has_marks, why):
    with pytest.raises(CaptureError, match=why):
        written(raw_trace(tmp_path, has_marks), tmp_path / "x.gz", [], **limits)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_incomplete_trace_of_torch_is_an_error(tmp_path):
    raw = raw_trace(tmp_path)
    check_whole(raw)
    raw.write_bytes(raw.read_bytes()[:-20])
    with pytest.raises(CaptureError, match="disk full"):
        check_whole(raw)
    with pytest.raises(CaptureError, match="could not write the trace "):
        check_whole(tmp_path / "nowhere")
