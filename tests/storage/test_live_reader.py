"""A run is read while it is written: step by step, and again from the begin if its journal is another one."""

import os

import pytest

from tests.support.many_ranks import write_rank
from tests.support.recording import FakeRun
from training_profiler.base.errors import RunFolderError
from training_profiler.storage import live_reader
from training_profiler.storage.live_reader import LiveRun
from training_profiler.storage.run_reader import read_run


def train(run, steps=2, forward_s=0.25):
    for _ in range(steps):
        run.step(forward_pass=forward_s, optimizer_step=0.125)
    run.flush()


def begun(folder):
    return FakeRun(journal=folder / "rank0.jsonl")


def test_each_look_has_what_was_written_since(tmp_path):
    run = begun(tmp_path)
    train(run)
    live = LiveRun(tmp_path)
    look = live.look()
    assert (look.snapshot.steps, look.recent.steps, look.recent.step_s) == (2, 2, 0.375)
    assert look.recent.shares["forward_pass"] == pytest.approx(2 / 3)
    train(run, 3, forward_s=0.875)
    look = live.look()
    assert (look.snapshot.steps, look.recent.steps, look.recent.step_s) == (5, 3, 1.0)
    assert look.recent.over_steps == [(1, n, s) for n, s in ((1, 0.375), (2, 0.375), (3, 1.0), (4, 1.0), (5, 1.0))]
    run.journal.close(run.snapshot().health, None)
    assert live.look().state == "ended"


def test_the_figures_are_those_of_the_report(tmp_path):
    run = begun(tmp_path)
    for _ in range(3):
        train(run)
        run.begin_epoch(1)
        train(run)
        run.end_epoch(4, 16)
    live = LiveRun(tmp_path)
    assert live.look().snapshot == read_run(tmp_path)
    train(run)
    assert live.look().snapshot == read_run(tmp_path)
    write_rank(tmp_path, 1)
    assert live.look().snapshot == read_run(tmp_path)


def test_a_line_counts_once_it_is_whole_and_a_torn_one_is_said_of_a_run_that_is_gone(tmp_path):
    run = begun(tmp_path)
    train(run)
    path = tmp_path / "rank0.jsonl"
    whole = path.read_bytes()
    train(run)
    more = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + more[:40])
    live = LiveRun(tmp_path)
    look = live.look()
    assert look.snapshot.steps == 2
    assert "1 torn line in the journal left out" in look.snapshot.health.notes
    with path.open("ab") as file:
        file.write(more[40:])
    look = live.look()
    assert (look.snapshot.steps, look.began_again) == (4, False)
    assert not any("torn" in note for note in look.snapshot.health.notes)


def test_a_journal_that_is_cut_or_replaced_is_read_again(tmp_path):
    run = begun(tmp_path)
    train(run, 4)
    path = tmp_path / "rank0.jsonl"
    first = path.read_bytes()
    train(run, 4)
    live = LiveRun(tmp_path)
    assert live.look().snapshot.steps == 8
    path.write_bytes(first)
    look = live.look()
    assert (look.snapshot.steps, look.began_again) == (4, True)
    (tmp_path / "other").mkdir()
    train(begun(tmp_path / "other"), 30, forward_s=0.5)
    (tmp_path / "other" / "rank0.jsonl").replace(path)
    (tmp_path / "other").rmdir()
    look = live.look()
    assert (look.snapshot.steps, look.began_again) == (30, True)


def test_a_long_journal_is_read_in_parts(tmp_path, monkeypatch):
    run = begun(tmp_path)
    for _ in range(10):
        train(run)
    monkeypatch.setattr(live_reader, "MOST_A_LOOK", 1000)
    live = LiveRun(tmp_path)
    looks = [live.look()]
    while looks[-1].left_bytes:
        looks.append(live.look())
    assert len(looks) == -(-(tmp_path / "rank0.jsonl").stat().st_size // 1000)
    assert [look.snapshot.steps for look in looks] == sorted(look.snapshot.steps for look in looks)
    assert looks[-1].snapshot.steps == 20


def test_a_line_that_is_too_long_is_left_out_in_bounded_memory(tmp_path, monkeypatch):
    run = begun(tmp_path)
    train(run)
    path = tmp_path / "rank0.jsonl"
    lines = path.read_bytes()
    monkeypatch.setattr(live_reader, "MOST_LINE_BYTES", len(lines))
    live = LiveRun(tmp_path)
    live.look()
    with path.open("ab") as file:
        file.write(b"x" * (3 * len(lines)))
    live.look()
    with path.open("ab") as file:
        file.write(b"x\n" + lines.splitlines(keepends=True)[1])
    look = live.look()
    assert look.snapshot.steps == 4
    assert any("1 line of the journal left out" in note for note in look.snapshot.health.notes)


def test_the_next_attempt_of_a_launcher_is_followed(tmp_path):
    write_rank(tmp_path, 0, steps=10, is_ended=False)
    live, first = LiveRun(tmp_path), LiveRun(tmp_path, attempt=0)
    assert (live.look().attempt, live.look().snapshot.steps) == (0, 10)
    write_rank(tmp_path, 0, steps=5, attempt=1)
    look = live.look()
    assert (look.attempt, look.snapshot.steps, look.began_again) == (1, 5, False)
    assert first.look().attempt == 0


def test_a_run_folder_that_is_read_stays_as_it_is_and_its_age_is_never_negative(tmp_path):
    train(begun(tmp_path))
    os.utime(tmp_path / "rank0.jsonl", (1000, 1000))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.iterdir())}
    looks = [LiveRun(tmp_path, clock=lambda now_s=now_s: now_s).look() for now_s in (1090.0, 10.0)]
    assert [look.written_s_ago for look in looks] == [90, 0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.iterdir())} == before


@pytest.mark.parametrize("content", [b"", b"\x00\xff nothing of ours\n", b'{"kind":"begin","schema":9}\n'])
def test_another_file_is_an_error_each_time(tmp_path, content):
    (tmp_path / "rank0.jsonl").write_bytes(content)
    live = LiveRun(tmp_path)
    for _ in range(2):
        with pytest.raises(RunFolderError):
            live.look()
