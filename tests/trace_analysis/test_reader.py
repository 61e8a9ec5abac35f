import gzip
import json
import os
import zlib
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.traces import Trace
from training_profiler.base.errors import TraceError
from training_profiler.cli import main
from training_profiler.trace_analysis import reader
from training_profiler.trace_analysis.event_table import read_columns
from training_profiler.trace_analysis.reader import read_events
from training_profiler.trace_analysis.trace import analyse

WHOLE = Trace().op("a", 0, 1).kernel("k", 1, 2).text().encode()


def refusal(path, capsys):
    """Return the one line on stderr with which the command refuses a file; stdout is empty and the status 2."""
    assert main(["trace", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.rstrip("\n").removeprefix("training-profiler: ").replace(str(path), "PATH")


def single_event(**fields):
    return json.dumps(
        {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1} | fields]}
    ).encode()


EXACT = single_event(ts=1, dur=1).replace(b'"ts": 1', b'"ts": 1623143000123456.5')
BAD = {
    "empty": b"",
    "blank": b" \n",
    "cut off": WHOLE[:-20],
    "gzip cut off": gzip.compress(WHOLE)[:-12],
    "gzip of nothing": gzip.compress(b""),
    "gzipped twice": gzip.compress(gzip.compress(WHOLE)),
    "gzip damaged": b"\x1f\x8b\x08\x00" + b"\xff" * 60,
    "not JSON": b"hello",
    "malformed": b'{"traceEvents": [}',
    "binary": bytes(range(256)),
    "no trace": b'{"a": 1}',
    "a number": b"12",
    "events are not a list": b'{"traceEvents": {}}',
    "a strange pid": single_event(ts=1, dur=1, pid=[]),
    "nested too deeply": b'{"a": ' + b"[" * 100_000,
    "no events": b'{"traceEvents": []}',
    "NaN": single_event(ts=1, dur=1).replace(b'"dur": 1', b'"dur": NaN'),
    "object cut off before the first event ends": b'{"traceEvents": [{"ph": "X"',
    "negative duration": single_event(ts=1, dur=-2),
    "no duration": single_event(ts=1),
    "no time": single_event(dur=1),
    "a word for a time": single_event(ts="now", dur=1),
    "too late": single_event(ts=10**17, dur=1),
    "an invalid time among exact ones": EXACT.replace(b'"dur": 1', b'"dur": null'),
    "B without a time": b'{"traceEvents": [{"ph": "B", "name": "a"}]}',
}


def test_damaged_or_foreign_files_are_refused_in_one_line_each(tmp_path, capsys):
    texts, path = [], tmp_path / "a.json"
    for case, data in BAD.items():
        path.write_bytes(data)
        texts.append(f"{case}: {refusal(path, capsys)}\n")
    assert_golden(Path(__file__).parents[1] / "golden" / "trace_refusals.txt", "".join(texts))


def test_paths_without_a_file_are_refused_without_waiting(tmp_path, capsys):
    assert refusal(tmp_path / "a.json", capsys) == (
        "PATH does not exist; example: training-profiler trace runs/20261121-142530/captures"
    )
    (tmp_path / "notes.txt").write_text("hello")
    assert refusal(tmp_path, capsys) == "PATH holds no trace (*.pt.trace.json or *.pt.trace.json.gz)"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe", capsys) == "PATH is not a file; write the trace to a file first"


def test_folder_is_not_a_trace(tmp_path):
    with pytest.raises(TraceError, match=r"is a folder; give a file in it, such as \*\.pt\.trace\.json\.gz$"):
        read_events(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_unreadable_file_is_refused(tmp_path, capsys):
    path = Trace().op("a", 0, 1).write(tmp_path)
    path.chmod(0)
    assert refusal(path, capsys) == "PATH cannot be read (Permission denied)"


def test_gzip_bomb_is_refused_before_unpacking(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader, "PACKED_FREELY_BYTES", 1 << 20)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 26)))
    size = path.stat().st_size
    assert refusal(path, capsys) == f"PATH unpacks to over 100 times its {size} bytes: no trace does, so it is not read"


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_trace_over_the_limit_is_refused(name, tmp_path):
    path = Trace().op("a" * 5000, 0, 1).write(tmp_path, name)
    with pytest.raises(
        TraceError, match=r"holds over [0-9.e-]+ GiB of JSON, the limit; record fewer steps, or less of each$"
    ):
        read_events(path, most_bytes=4096)


@pytest.mark.parametrize("length", [1, 7, 100, 5000])
@pytest.mark.parametrize("empties", [0, 1, 3])
def test_any_chain_of_gzip_files_is_one_trace(tmp_path, length, empties, monkeypatch):
    monkeypatch.setattr(reader, "_CHUNK", 37)  # so that ends of files fall on all places of a chunk
    path, empty = tmp_path / "t.gz", gzip.compress(b"") * empties
    parts = (gzip.compress(WHOLE[at : at + length]) for at in range(0, len(WHOLE), length))
    path.write_bytes(empty + empty.join(parts) + empty)
    assert b"".join(reader.chunks_of(path, 1 << 20)) == WHOLE


class Unpacked:
    """``zlib`` as it is, with the bytes that were given to it counted: each call copies what it leaves."""

    error, given = zlib.error, 0

    def decompressobj(self, wbits):
        packed = zlib.decompressobj(wbits=wbits)

        class Counted:
            def decompress(_, data, most):
                self.given += len(data)
                return packed.decompress(data, most)

            def __getattr__(_, name):
                return getattr(packed, name)

        return Counted()


@pytest.mark.parametrize("content", [b"", b" "])
def test_many_tiny_gzip_files_are_unpacked_in_proportion(tmp_path, monkeypatch, content):
    counted, members = Unpacked(), 20_000
    monkeypatch.setattr(reader, "zlib", counted)
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(WHOLE) + gzip.compress(content) * members)
    pieces = list(reader.chunks_of(path, 1 << 20))
    assert pieces == [WHOLE + content * members]  # not one for each file
    assert counted.given <= (members + 1) * 4096


def test_a_chain_of_millions_of_gzip_files_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader, "MOST_MEMBERS", 1000)
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(WHOLE) + gzip.compress(b"") * 999)
    assert main(["trace", str(path)]) == 0
    capsys.readouterr()
    path.write_bytes(gzip.compress(WHOLE) + gzip.compress(b"") * 1000)
    assert refusal(path, capsys) == ("PATH consists of over 1000 gzip files: no trace does, so it is not read")


def test_process_ids_of_different_types_are_distinct_and_without_one_the_arguments_name_the_device(tmp_path):
    trace = Trace().op("a", 0, 1, pid=1).op("a", 0, 1, pid="1").op("a", 0, 1, pid=None)
    assert read_columns(trace.write(tmp_path)).threads == ((1, 1), ("1", 1), (None, 1))
    columns = read_columns(Trace().event("kernel", "k", 0, 1, pid=None, device=3, stream=7).write(tmp_path))
    assert (columns.device.tolist(), columns.stream.tolist()) == ([3], [7])


def test_separate_begins_and_ends_become_events(tmp_path):
    trace = Trace()
    for ph, name, ts, tid in (
        ("B", "a", 0, 1), ("B", "b", 2, 1), ("B", "c", 3, 2), ("E", "b", 4, 1), ("E", "c", 9, 2), ("E", "a", 10, 1),
        ("E", "never begun", 11, 1), ("B", "never ended", 12, 1),
    ):  # fmt: skip
        trace.events.append({"ph": ph, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts})
    columns = read_columns(trace.write(tmp_path))
    spans = zip(
        (columns.names[i] for i in columns.name), columns.begin_ns.tolist(), columns.end_ns.tolist(), strict=True
    )
    assert list(spans) == [("a", 0, 10_000), ("b", 2000, 4000), ("c", 3000, 9000)]


@pytest.mark.parametrize("number", [2**41, 2**62, 2**63, 2**1024, -2, -(2**62), -(2**1024)])
def test_numbers_of_a_device_and_a_stream_that_cannot_be_are_unknown(tmp_path, number):
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"device": number, "stream": number}}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event, event | {"args": {"device": 1, "stream": 7}}]}))
    columns = read_columns(path)
    assert (columns.device.tolist(), columns.stream.tolist()) == ([-1, 1], [-1, 7])


def test_names_are_kept_but_for_what_a_terminal_would_obey(tmp_path, capsys):
    names = ["<script>alert(1)</script>", "n" * 10_000, "tab\tline\nbell\a", "\u202eright to left", "\U0001f600 kernel"]
    trace = Trace()
    for i, name in enumerate(names):
        trace.kernel(name, 100 * i, 5)
    path = trace.write(tmp_path)
    kept = [names[0], "n" * 1_999 + "…", "tab\\tline\\nbell\\x07", "\\u202eright to left", names[4]]
    assert [kernel.name for kernel in analyse(path).kernels.rows] == kept
    assert main(["trace", str(path), "--view", "kernels"]) == 0
    out = capsys.readouterr().out
    assert "\a" not in out
    assert max(map(len, out.splitlines())) < 200


@pytest.mark.parametrize("damage", [b"1e999", b'"\xff"'])
def test_devices_that_cannot_be_read_are_unknown_and_invalid_bytes_in_a_name_replaced(damage, tmp_path):
    path, event = tmp_path / "a.json", single_event(ts=1, dur=1)
    path.write_bytes(b'{"deviceProperties": [{"id": ' + damage + b"}], " + event.lstrip()[1:])
    read = read_events(path)
    assert (len(read.events), read.devices) == (1, [])
    path.write_bytes(event.replace(b'"name": "a"', b'"name": "a\xff\xfeb"'))
    assert read_columns(path).names == ("a\ufffd\ufffdb",)


TWO = Trace().op("a", 0, 1).op("b", 2, 3)
LIST = json.dumps(TWO.events).encode()
OBJECT = TWO.text().encode()
NO_END = "its list of events has no end; it is read as far as it goes"
ODD = {
    "byte order mark": (b"\xef\xbb\xbf" + OBJECT, "a byte order mark at its begin is left out"),
    "UTF-16": (OBJECT.decode().encode("utf-16"), "read as UTF-16, not UTF-8"),
    "list without its end": (LIST[:-1], NO_END),
    "list that ends with a comma": (LIST[:-1] + b",\n", NO_END),
    "list cut in an event": (
        LIST[:-1] + b', {"ph": "X", "name"',
        f"{NO_END}, without the last 20 bytes, a part of an event",
    ),
    "object without its end": (OBJECT[:-2], NO_END),
}


@pytest.mark.parametrize("case", ODD)
def test_file_that_breaks_the_rules_of_json_is_read_as_far_as_it_goes_and_this_is_said(case, tmp_path, capsys):
    data, note = ODD[case]
    path = tmp_path / "a.json"
    path.write_bytes(data)
    found = analyse(path)
    assert (found.events, found.notes) == (2, (note,))
    assert main(["trace", str(path), "--view", "overview"]) == 0
    assert f"File: {note}." in " ".join(capsys.readouterr().out.split())


def test_events_without_a_name_are_read_and_counted(tmp_path):
    trace = Trace().op(None, 0, 1).op(7, 2, 1).op("a", 4, 1)
    trace.events[2]["cat"] = None
    found = trace.analysed(tmp_path)
    assert [row.name for row in found.operators] == ["(no name)", "7"]
    assert found.notes == ("1 event without a name",)


@pytest.mark.parametrize("number", [10**400, 1e308, -(10**400), "many", None, [1]])
def test_number_that_cannot_be_added_up_is_unknown(number, tmp_path):
    of_both = {"blocks per SM": number, "est. achieved occupancy %": number}
    trace = Trace().kernel("k", 0, 10, **{"blocks per SM": 2.0}).kernel("k", 20, 10, **of_both)
    if isinstance(number, list):
        with pytest.raises(TraceError, match="is not a trace"):
            trace.analysed(tmp_path)
        return
    (kernel,) = trace.analysed(tmp_path).kernels.rows
    assert (kernel.blocks_per_sm, kernel.occupancy) == (2.0, None)


def test_events_of_unknown_categories_are_said_where_they_are_many(tmp_path):
    trace = Trace().op("aten::mm", 0, 1)
    for i in range(12):
        trace.event("FEE", "f", i, 1)
    assert trace.analysed(tmp_path).notes == (
        "12 of 13 events with a duration have a category that is not known, such as FEE, and are not read",
    )
