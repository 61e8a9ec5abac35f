"""Steps with their spans read back from a journal, and a damaged record of them is left out."""

import json

import msgspec
import pytest

from tests.support.every_field import filled
from tests.support.recording import FakeRun
from training_profiler.snapshot.program import CallFacts, CallSite, LongOperators, ProgramFacts
from training_profiler.storage.journal_lines import BadLineError, SpansLine, checked_facts, decode_line
from training_profiler.storage.run_reader import read_run
from training_profiler.storage.timeline_reader import read_series

US = 1_000


def journal_of(folder):
    run = FakeRun(warmup=0, journal=folder / "rank0.jsonl", spans=True)
    for _ in range(3):
        with run.section("forward_pass"):
            run.clock.advance_ns(1_499)
            run.spend("attention\x1b[31m", 2e-6)
            run.clock.advance_ns(501)
        run.step()
    run.flush(is_last=True)
    return folder / "rank0.jsonl"


def lines_of(path, kind):
    return [line for line in path.read_bytes().splitlines() if json.loads(line)["kind"] == kind]


def test_steps_read_back_with_nested_spans_to_the_microsecond(tmp_path):
    journal_of(tmp_path)
    (series,) = read_series(tmp_path)
    assert [(step.number, step.why, step.duration_ns) for step in series.recorded] == [
        (1, "first", 4_000),
        (2, "first", 4_000),
        (3, "last", 4_000),
    ]
    step = series.recorded[1]
    (lane,) = step.lanes
    assert lane.thread == "MainThread"
    spans = sorted((span.section, span.begin_ns - step.begin_ns, span.end_ns - step.begin_ns) for span in lane.spans)
    assert spans == [("attention\\x1b[31m", 1 * US, 3 * US), ("forward_pass", 0, 4 * US)]


def test_the_figures_of_a_run_are_the_same_with_and_without_the_record(tmp_path):
    path = journal_of(tmp_path)
    assert lines_of(path, "spans")
    before = read_run(tmp_path)
    path.write_bytes(b"".join(line + b"\n" for line in path.read_bytes().splitlines() if b'"spans"' not in line[:16]))
    assert read_run(tmp_path) == before
    assert [series.recorded for series in read_series(tmp_path)] == [()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["steps"][0].__setitem__(3, 0),  # ends before its begin
        lambda data: data["steps"][0][6][0][1].append(0),  # columns of different lengths
        lambda data: data["steps"][0][6][0].__setitem__(1, [7, 7]),  # a name that is not there
        lambda data: data["steps"][0][6][0].__setitem__(3, [-1, -1]),  # a span that ends before its begin
        lambda data: data["steps"][0][6][0].__setitem__(2, [2**60, 0]),
        lambda data: data["steps"][0].__setitem__(1, "often"),
    ],
)
def test_a_damaged_record_is_refused_and_the_rest_of_the_journal_is_read(tmp_path, damage):
    path = journal_of(tmp_path)
    (line,) = lines_of(path, "spans")
    assert isinstance(decode_line(line), SpansLine)
    data = json.loads(line)
    damage(data)
    damaged = json.dumps(data).encode()
    with pytest.raises(BadLineError):
        decode_line(damaged)
    path.write_bytes(path.read_bytes().replace(line, damaged))
    assert [(series.steps, series.recorded) for series in read_series(tmp_path)] == [(3, ())]
    assert "1 line of the journal left out" in " ".join(read_run(tmp_path).health.notes)


def test_more_steps_than_a_run_records_are_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("training_profiler.storage.timeline_reader.MOST_SPANS", 6)
    journal_of(tmp_path)
    (series,) = read_series(tmp_path)
    assert [step.number for step in series.recorded] == [1, 2]


FACTS = msgspec.convert(filled(ProgramFacts), ProgramFacts)


def test_facts_read_back_from_json():
    facts = checked_facts(FACTS)
    assert checked_facts(msgspec.convert(json.loads(json.dumps(facts)), ProgramFacts)) == facts
    assert checked_facts(ProgramFacts()) == ProgramFacts()


def test_numbers_and_texts_that_cannot_be_are_mended():
    site = CallSite("\x1b.py", -3, "/\n", -7, "\x1b")
    calls = (CallFacts("a", "b", site, (("x", "\x1b"),) * 99),)
    mended = checked_facts(FACTS._replace(kept_graphs=-1, autocast="\x1b[31m", operators=-5, calls=calls))
    (call,) = mended.calls
    assert (mended.kept_graphs, mended.operators) == (0, 0)
    assert "\x1b" not in f"{mended.autocast}{call}"
    assert (call.site.line, call.site.column, len(call.arguments)) == (0, -1, 32)


def test_facts_of_an_earlier_version_lack_what_came_later():
    read = checked_facts(msgspec.convert(json.loads(json.dumps(FACTS[:6])), ProgramFacts))
    assert (read.operators, read.calls, read.long_forward, read.forward) == (
        checked_facts(FACTS).operators,
        (),
        LongOperators(),
        None,
    )
