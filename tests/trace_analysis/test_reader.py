import gzip
import json
import os

import pytest

from tests.support.traces import Trace
from training_profiler.cli import main
from training_profiler.errors import TraceError
from training_profiler.trace_analysis.analysis import analyse
from training_profiler.trace_analysis.load import reader
from training_profiler.trace_analysis.load.reader import read_events
from training_profiler.trace_analysis.load.table import columns_of

WHOLE = Trace().op("a", 0, 1).kernel("k", 1, 2).text().encode()


def said(path, capsys):
    """Return what the command says of a file that it refuses: one line on stderr, nothing on stdout, status 2."""
    assert main(["trace", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.rstrip("\n").removeprefix("training-profiler: ").replace(str(path), "PATH")


def one(**fields):
    return json.dumps(
        {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1} | fields]}
    ).encode()


BAD = {
    "empty": (b"", "PATH is empty: was the training stopped before the trace was written?"),
    "blank": (b" \n", "PATH is empty: was the training stopped before the trace was written?"),
    "cut off": (
        WHOLE[:-20],
        f"PATH is cut off after {len(WHOLE) - 20} bytes of JSON: was the training stopped while it wrote?",
    ),
    "gzip cut off": (
        gzip.compress(WHOLE)[:-12],
        "PATH is cut off: the gzip file ends early. Was the training stopped then?",
    ),
    "gzip of nothing": (gzip.compress(b""), "PATH is empty: was the training stopped before the trace was written?"),
    "gzipped twice": (
        gzip.compress(gzip.compress(WHOLE)),
        "PATH is gzipped twice; unpack it once: gunzip -c FILE > once.json.gz",
    ),
    "gzip damaged": (
        b"\x1f\x8b\x08\x00" + b"\xff" * 60,
        "PATH is damaged: no whole gzip file (Error -3 while decompressing data: invalid block type)",
    ),
    "not JSON": (b"hello", "PATH is not JSON: invalid character (byte 0)"),
    "malformed": (b'{"traceEvents": [}', "PATH is not JSON: invalid character (byte 17)"),
    "binary": (bytes(range(256)), "PATH is not JSON: invalid character (byte 0)"),
    "no trace": (b'{"a": 1}', "PATH is not a trace of torch.profiler: Object missing required field `traceEvents`"),
    "a number": (b"12", "PATH is not a trace of torch.profiler: Expected `object`, got `int`"),
    "events are no list": (
        b'{"traceEvents": {}}',
        "PATH is not a trace of torch.profiler: Expected `array`, got `object` - at `$.traceEvents`",
    ),
    "a strange pid": (
        one(ts=1, dur=1, pid=[]),
        "PATH is not a trace of torch.profiler: Expected `int | float | str | null`, got `array` - at "
        "`$.traceEvents[0].pid`",
    ),
    "nested too deeply": (
        b'{"a": ' + b"[" * 100_000,
        "PATH is not a trace of torch.profiler: its JSON is nested too deeply",
    ),
    "no events": (
        b'{"traceEvents": []}',
        "PATH has no events with a duration: nothing was recorded, or it is no trace of torch",
    ),
    "NaN": (one(ts=1, dur=1).replace(b'"dur": 1', b'"dur": NaN'), "PATH is not JSON: invalid character (byte 95)"),
    "negative duration": (one(ts=1, dur=-2), "PATH has a negative duration: 'a' with ts 1, dur -2"),
    "no duration": (one(ts=1), "PATH has an event without a usable time: 'a' with ts 1, dur None"),
    "no time": (one(dur=1), "PATH has an event without a usable time: 'a' with ts None, dur 1"),
    "a word for a time": (one(ts="now", dur=1), "PATH has an event without a usable time: 'a' with ts now, dur 1"),
    "too late": (
        one(ts=10**17, dur=1),
        "PATH has an event without a usable time: 'a' with ts 100000000000000000, dur 1",
    ),
    "a time that is no number, among exact ones": (
        one(ts=1, dur=1).replace(b'"ts": 1', b'"ts": 1623143000123456.5').replace(b'"dur": 1', b'"dur": null'),
        "PATH has an event without a usable time: 'a' with ts 1623143000123456.5, dur null",
    ),
    "B without a time": (
        b'{"traceEvents": [{"ph": "B", "name": "a"}]}',
        'PATH has an event of ph "B" or "E" without a usable time',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_whole_trace_is_refused_in_one_line(case, tmp_path, capsys):
    data, message = BAD[case]
    path = tmp_path / "a.json"
    path.write_bytes(data)
    assert said(path, capsys) == message


def test_a_file_that_is_not_there_is_refused(tmp_path, capsys):
    message = said(tmp_path / "a.json", capsys)
    assert message == "PATH does not exist; example: training-profiler trace runs/20261121-142530/captures"


def test_a_folder_without_traces_is_refused(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")
    assert said(tmp_path, capsys) == "PATH holds no trace (*.pt.trace.json or *.pt.trace.json.gz)"


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(TraceError, match=r"is a folder; give a file in it, such as \*\.pt\.trace\.json\.gz$"):
        read_events(tmp_path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert said(tmp_path / "pipe", capsys) == "PATH is no file: write the trace to one first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_refused(tmp_path, capsys):
    path = Trace().op("a", 0, 1).write(tmp_path)
    path.chmod(0)
    assert said(path, capsys) == "PATH cannot be read (Permission denied)"


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader, "PACKED_FREELY_BYTES", 1 << 20)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 26)))
    size = path.stat().st_size
    assert said(path, capsys) == f"PATH unpacks to over 200 times its {size} bytes: no trace does, so it is not read"


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_trace_beyond_the_limit_is_refused(name, tmp_path):
    path = Trace().op("a" * 5000, 0, 1).write(tmp_path, name)
    with pytest.raises(
        TraceError, match=r"holds over [0-9.e-]+ GiB of JSON, the limit; record fewer steps, or less of each$"
    ):
        read_events(path, most_bytes=4096)


def test_gzip_files_one_after_another_are_one(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(WHOLE[:40]) + gzip.compress(WHOLE[40:]))
    assert len(read_events(path).events) == 2


def test_events_alone_are_a_trace_too(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(Trace().op("a", 0, 1).events))
    assert analyse(path).events == 1


def read(trace, tmp_path):
    return columns_of(read_events(trace.write(tmp_path)), "a")


def test_events_out_of_order_are_put_in_order(tmp_path):
    columns = read(Trace().op("b", 10, 5).op("a", 1, 2), tmp_path)
    assert [columns.names[i] for i in columns.name] == ["a", "b"]
    assert columns.end_ns.tolist() == [3000, 15_000]


def test_processes_of_any_type_and_of_none_are_kept_apart(tmp_path):
    columns = read(Trace().op("a", 0, 1, pid=1).op("a", 0, 1, pid="1").op("a", 0, 1, pid=None), tmp_path)
    assert columns.threads == ((1, 1), ("1", 1), (None, 1))


def test_a_device_is_told_by_the_event_where_the_process_is_missing(tmp_path):
    columns = read(Trace().event("kernel", "k", 0, 1, pid=None, device=3, stream=7), tmp_path)
    assert (columns.device.tolist(), columns.stream.tolist()) == ([3], [7])


@pytest.mark.parametrize("written", ["1623143000123456.789", '"1623143000123456.789"'])
def test_a_time_beyond_2_53_ns_is_read_to_the_nanosecond(written, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(
        one(ts=1, dur=1).replace(b'"ts": 1', f'"ts": {written}'.encode()).replace(b'"dur": 1', b'"dur": 0.002')
    )
    columns = columns_of(read_events(path), "a")
    assert (columns.begin_ns.tolist(), columns.end_ns.tolist()) == (
        [1_623_143_000_123_456_789],
        [1_623_143_000_123_456_791],
    )


def test_large_times_are_exact_where_only_later_events_have_them(tmp_path):
    trace = Trace().op("a", 5, 1)
    for _ in range(2000):
        trace.op("filler" * 10, 5, 1)
    path = trace.op("b", 0, 1).write(tmp_path)
    text = path.read_text()
    at = text.rindex('"ts": 0')
    path.write_text(f'{text[:at]}"ts": 1623143000123456.789{text[at + 7 :]}')
    assert columns_of(read_events(path), "a").begin_ns[-1] == 1_623_143_000_123_456_789


def test_begins_and_ends_that_stand_apart_are_events(tmp_path):
    trace = Trace()
    for ph, name, ts, tid in (
        ("B", "a", 0, 1), ("B", "b", 2, 1), ("B", "c", 3, 2), ("E", "b", 4, 1), ("E", "c", 9, 2), ("E", "a", 10, 1),
        ("E", "never begun", 11, 1), ("B", "never ended", 12, 1),
    ):  # fmt: skip
        trace.events.append({"ph": ph, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts})
    columns = read(trace, tmp_path)
    spans = zip(
        (columns.names[i] for i in columns.name), columns.begin_ns.tolist(), columns.end_ns.tolist(), strict=True
    )
    assert list(spans) == [("a", 0, 10_000), ("b", 2000, 4000), ("c", 3000, 9000)]


def test_what_carries_a_stream_but_is_no_work_of_a_device_does_not_count(tmp_path):
    trace = Trace().kernel("k", 0, 1).event("gpu_user_annotation", "ProfilerStep#1", 0, 5, stream=7, device=0)
    found = trace.analysed(tmp_path)
    assert (found.gpu_events, found.steps) == (1, ())


def test_old_names_of_categories_are_read(tmp_path):
    trace = Trace().event("Operator", "aten::mm", 0, 5).event("Runtime", "cudaLaunchKernel", 1, 1, correlation=4)
    trace.event("Kernel", "volta_sgemm", 3, 4, device=0, stream=7, correlation=4)
    trace.event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 8, 1, device=0, stream=7, bytes=64)
    trace.event("Operator", "ProfilerStep#5", 0, 20)
    found = trace.analysed(tmp_path)
    assert (found.gpu_events, found.kernels.count, len(found.steps)) == (2, 1, 1)
    assert [(one.name, one.device_total_ns) for one in found.operators if one.name == "aten::mm"] == [
        ("aten::mm", 4000)
    ]


def test_names_are_taken_as_they_are(tmp_path, capsys):
    names = ["<script>alert(1)</script>", "n" * 10_000, "tab\tline\nbell\a", "\u202eright to left", "\U0001f600 kernel"]
    trace = Trace()
    for i, name in enumerate(names):
        trace.kernel(name, 100 * i, 5)
    path = trace.write(tmp_path)
    assert [one.name for one in analyse(path).kernels.rows] == names
    assert main(["trace", str(path), "--view", "kernels"]) == 0
    out = capsys.readouterr().out
    assert "\a" not in out
    assert max(map(len, out.splitlines())) < 200


def test_arguments_of_unexpected_types_are_unknown_and_not_an_error(tmp_path):
    found = Trace().kernel("k", 0, 1, bytes="many", **{"est. achieved occupancy %": "high"}).analysed(tmp_path)
    assert found.kernels.rows[0].occupancy is None


def test_a_name_that_is_no_text_is_read_as_far_as_it_is(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(one(ts=1, dur=1).replace(b'"name": "a"', b'"name": "a\xff\xfeb"'))
    assert columns_of(read_events(path), "a").names == ("a\ufffd\ufffdb",)


def test_half_a_surrogate_is_not_taken_for_a_cut(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_bytes(one(ts=1, dur=1).replace(b'"name": "a"', b'"name": "\\ud83d"'))
    assert said(path, capsys) == "PATH is not JSON: unexpected end of escaped utf-16 surrogate pair (byte 61)"
