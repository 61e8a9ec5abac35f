"""A journal of a run that was killed ends with what its training thread could still rewrite."""

import json

import pytest

from tests.support.recording import FakeRun
from training_profiler.snapshot.snapshot import Health
from training_profiler.storage.journal import JournalLines
from training_profiler.storage.run_reader import read_run


@pytest.fixture
def run(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    run.step(forward_pass=1.0)
    run.flush()
    return run


def write_pending(run):
    """Write a preview of what the recorder holds, as a session does."""
    preview = run.accumulator.preview()
    preview.add(run.recorder.peek(), run.recorder.thread_id())
    inside = preview.open_sections(run.recorder.thread_id())
    run.journal.append(
        JournalLines(run.names).interval(*preview.pop_totals(), Health(), run.loaders, inside, is_pending=True)
    )


def test_the_last_pending_interval_counts(run, tmp_path):
    with run.section("forward_pass"):
        for _ in range(3):
            run.clock.advance(2.0)
            write_pending(run)
        snapshot = read_run(tmp_path)
    assert (snapshot.steps, snapshot.wall_s, snapshot.open_sections) == (1, 7.0, ("forward_pass",))
    assert sum(section.self_s for section in snapshot.sections.values()) == pytest.approx(7.0)
    run.journal.close(Health(), None)


def test_a_pending_interval_that_is_covered_again_does_not_count(run, tmp_path):
    with run.section("forward_pass"):
        run.clock.advance(2.0)
        write_pending(run)
    run.flush()
    run.journal.close(Health(), None)
    snapshot = read_run(tmp_path)
    assert (snapshot.wall_s, snapshot.sections["forward_pass"].count, snapshot.open_sections) == (3.0, 2, ())


def test_lost_intervals_are_counted(run, tmp_path):
    lines = JournalLines(run.names)
    run.journal.append(lines.lost(2))
    run.journal.append(lines.lost(1))
    run.journal.close(Health(), None)
    assert any("3 intervals not written" in note for note in read_run(tmp_path).health.notes)
    assert [json.loads(line)["kind"] for line in (tmp_path / "rank0.jsonl").read_text().splitlines()][-3:] == [
        "lost",
        "lost",
        "end",
    ]
