import json

import pytest

from training_profiler.storage import journal_tail
from training_profiler.storage.journal_tail import read_end, read_head


def number(record):
    return record["number"]


@pytest.fixture(params=[7, 64, 256 * 1024])
def small_tail(request, monkeypatch):
    monkeypatch.setattr(journal_tail, "TAIL_BYTES", request.param)


def write(path, *records, ending="\n"):
    path.write_text("\n".join(json.dumps(record) for record in records) + ending)


@pytest.mark.usefixtures("small_tail")
def test_last_line_of_a_kind_is_found_anywhere(tmp_path):
    path = tmp_path / "rank0.jsonl"
    rows = [{"kind": "rank", "number": 1}, {"kind": "rank", "number": 2}]
    write(path, {"kind": "begin"}, *rows, *[{"kind": "interval", "text": "x" * 50}] * 20)
    assert read_end(path, "rank", number).value == 2


@pytest.mark.usefixtures("small_tail")
def test_a_torn_or_garbled_line_is_skipped(tmp_path):
    path = tmp_path / "rank0.jsonl"
    write(path, {"kind": "rank", "number": 1}, {"kind": "rank"}, {"kind": "rank", "number": 3}, ending="")
    path.write_bytes(path.read_bytes()[:-3])
    assert read_end(path, "rank", number).value == 1
    assert read_end(path, "rank", number).is_torn


@pytest.mark.parametrize("content", [b"", b"\n", b"\x00\xff" * 1000, b'{"kind":"rank"', b'{"kind":"end","number":1}\n'])
@pytest.mark.usefixtures("small_tail")
def test_without_a_complete_line_of_that_kind_there_is_none(tmp_path, content):
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(content)
    assert read_end(path, "rank", number).value is None


def test_only_the_end_of_a_long_file_is_read(tmp_path, monkeypatch):
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"x" * 50_000_000 + b'\n{"kind":"rank","number":5}\n')
    looked_at = []
    monkeypatch.setattr(journal_tail, "as_record", lambda line: looked_at.append(len(line)) or json.loads(line))
    assert read_end(path, "rank", number).value == 5
    assert looked_at == [26]


def test_the_head_is_the_first_line_of_a_journal(tmp_path):
    path = tmp_path / "rank0.jsonl"
    write(path, {"kind": "begin", "rank": 3}, {"kind": "end"})
    assert read_head(path) == {"kind": "begin", "rank": 3}
    write(path, {"kind": "begin", "rank": 3}, ending="")
    assert read_head(path) is None
    write(path, {"kind": "end"})
    assert read_head(path) is None


@pytest.mark.usefixtures("small_tail")
def test_an_ended_journal_has_an_end(tmp_path):
    path = tmp_path / "rank0.jsonl"
    rows = [{"kind": "rank", "number": 1}, {"kind": "end", "ended_by": None}]
    write(path, *rows)
    assert read_end(path, "rank", number) == (1, False, True)
    write(path, *rows, ending="")
    assert read_end(path, "rank", number) == (1, True, False)
    write(path, *rows, {"kind": "interval"})
    assert read_end(path, "rank", number) == (1, False, False)
    assert read_end(path, "epoch_end", number) == (None, False, False)


@pytest.mark.parametrize("blank", ["\n" * 3_000_000, " \n" * 1_000_000, "x\n" * 1_000_000])
def test_the_end_is_found_before_many_lines_of_nothing(tmp_path, monkeypatch, blank):
    path = tmp_path / "rank0.jsonl"
    write(path, {"kind": "rank", "number": 1}, {"kind": "end"}, ending="\n" + blank)
    looked_at = []
    monkeypatch.setattr(journal_tail, "as_record", lambda line: looked_at.append(line) or json.loads(line))
    assert read_end(path, "rank", number) == (1, False, "x" not in blank)
    assert len(looked_at) == 1


def test_lines_that_cannot_be_used_are_not_tried_for_ever(tmp_path, monkeypatch):
    path = tmp_path / "rank0.jsonl"
    write(path, {"kind": "rank", "number": 1}, *[{"kind": "rank"}] * 100_000)
    looked_at = []
    monkeypatch.setattr(journal_tail, "as_record", lambda line: looked_at.append(line) or json.loads(line))
    assert read_end(path, "rank", number).value is None
    assert len(looked_at) == journal_tail.MOST_TRIES
