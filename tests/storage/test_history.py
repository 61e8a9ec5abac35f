import json
import shutil
import sqlite3
import sys
import threading
from dataclasses import replace

import pytest

from tests.cli.test_compare import write_run
from tests.support.recording import FakeRun
from training_profiler.cli.history import all_runs
from training_profiler.storage import history
from training_profiler.storage.history import INDEX, remember, with_index
from training_profiler.storage.run_folder import META, read_meta, write_json

FACTS = {
    "command": "python train.py --lr 0.1",
    "began": "2026-11-21T14:25:30+0000",
    "host": "node1",
    "folder": "/project",
    "versions": {"torch": "2.13.0"},
    "git": {"commit": "a1b2c3d4e5f6", "has_changes": False},
    "attempts": [{"number": 0, "world_size": 1}],
}


def train(runs, second, step_s=0.1, steps=200, loading_s=0.02, **facts):
    """Return what the end of a run says that began in that second, and why there is no index."""
    folder = runs / f"20261121-1425{second:02d}"
    folder.mkdir(parents=True)
    (folder / META).write_text(json.dumps({**FACTS, **facts}))
    run = FakeRun(journal=folder / "rank0.jsonl")
    for i in range(steps):
        run.spend("data_loading", loading_s)
        run.spend("forward_pass", (step_s - loading_s) * (1 + 0.02 * ((i * 7) % 5 - 2)))
        run.step()
        if i % 20 == 19:
            run.flush()
    snapshot = run.snapshot()
    found = remember(folder, run.sums, snapshot)
    run.journal.close(snapshot.health, None)
    return found


def remembered_runs(runs):
    """Return all runs of a folder as `history` finds them, and why they are in no index."""
    found, problem = with_index(runs, lambda index: all_runs(index, runs))
    return found or with_index(runs, lambda index: all_runs(index, runs), path=history.MEMORY)[0], problem


@pytest.fixture
def runs(tmp_path):
    """Return a folder with two runs beside another one, without which there would be no index."""
    (tmp_path / "runs" / "another").mkdir(parents=True)
    for second in (10, 11):
        assert train(tmp_path / "runs", second) == (None, "")
    return tmp_path / "runs"


def test_a_run_that_is_slower_than_those_before_says_so_once(runs):
    slower = {"step_s": 0.115, "loading_s": 0.035, "git": {"commit": "3f2a1c9", "has_changes": False}}
    change, problem = train(runs, 12, **slower)
    assert problem == ""
    assert change.text.startswith("15% slower a step than your last 2 runs (")
    assert change.text.endswith("): data_loading +15.0 ms, since 3f2a1c9")
    assert read_meta(runs / "20261121-142512")["history"]["section"] == "data_loading"
    assert train(runs, 13, **slower) == (None, "")  # one of the last runs was as slow


def test_a_run_beside_others_is_not_compared_with_nor_is_what_is_new_in_it_old(runs):
    slower = {"step_s": 0.115, "git": {"commit": "3f2a1c9"}}
    train(runs, 12, **slower)
    (*_, row), _ = remembered_runs(runs)
    busy = row._replace(blocks=replace(row.blocks, lost=0.2))
    with_index(runs, lambda index: history.put(index, busy))
    change, _ = train(runs, 13, **slower)
    assert (change.runs, change.since) == (2, "3f2a1c9")


@pytest.mark.parametrize(
    ("facts", "since"),
    [
        ({"git": {"commit": "a1b2c3d4e5f6", "has_changes": True}}, "changes that are not committed"),
        ({"versions": {"torch": "2.14.0"}}, "torch 2.14.0"),
        ({"python": "3.14.0"}, "python 3.14.0"),
        ({}, ""),
    ],
)
def test_since_is_what_is_new(runs, facts, since):
    assert train(runs, 12, 0.115, **facts)[0].since == since


@pytest.mark.parametrize(
    "facts",
    [
        {"command": "python train.py --lr 0.2"},
        {"command": "python other.py --lr 0.1"},
        {"command": "python -c pass"},  # no program
        {"command": ""},
        {"host": "node2"},
        {"folder": "/another"},
        {"attempts": [{"number": 0, "world_size": 2}]},
        {"settings": {"timing": "sync"}},
    ],
)
def test_a_run_that_does_something_else_is_not_compared(runs, facts):
    assert train(runs, 12, 0.2, **facts) == (None, "")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 0.1 --seed 7",
        "python train.py --run-name a --lr 0.1 --out-dir=x",
        "python train.py seed=3 --lr 0.1",
    ],
)
def test_a_seed_and_names_do_not_matter(runs, command):
    assert train(runs, 12, 0.115, command=command)[0] is not None


def test_a_run_that_was_deleted_is_not_compared_and_leaves_the_index(runs):
    shutil.rmtree(runs / "20261121-142510")
    assert train(runs, 12, 0.115) == (None, "")
    found, problem = remembered_runs(runs)
    assert ([run.folder for run in found], problem) == (["20261121-142511", "20261121-142512"], "")


def test_runs_are_in_the_order_of_their_ends_where_the_clock_is_set_back(runs):
    change, _ = train(runs, 5, 0.115)
    assert change.runs == 2
    assert [run.folder[-2:] for run in remembered_runs(runs)[0]] == ["10", "11", "05"]


@pytest.mark.parametrize("content", [b"no database", b"", b"SQLite format 3\0" + 90 * b"\xff"])
def test_a_damaged_index_is_made_again(runs, content):
    (runs / INDEX).write_bytes(content)
    assert train(runs, 12, 0.115) == (None, "")
    assert [run.folder[-2:] for run in remembered_runs(runs)[0]] == ["12", "10", "11"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET blocks = '[1'",
        "UPDATE runs SET blocks = '{}'",
        "UPDATE runs SET blocks = '[[1, 2], {\"a\": [1]}, null, null]'",
        "DROP TABLE runs; CREATE TABLE runs (folder)",
    ],
)
def test_a_row_that_cannot_be_read_makes_the_index_new(runs, damage):
    with sqlite3.connect(runs / INDEX) as index:
        index.executescript(damage)
    index.close()
    assert train(runs, 12) == (None, "")
    remembered_runs(runs)
    assert train(runs, 13, 0.115)[0].runs == 3


def test_without_an_index_the_end_of_a_run_opens_no_journal_and_history_all(runs):
    (runs / INDEX).unlink()
    assert train(runs, 30, 0.115) == (None, "")
    found = remembered_runs(runs)[0]
    assert [run.folder[-2:] for run in found] == ["30", "10", "11"]
    assert all(len(run.blocks.steps) > 20 for run in found)
    assert len({run.work for run in found}) == 1


def test_a_journal_gives_the_blocks_of_the_running_session(runs):
    live = remembered_runs(runs)[0][0].blocks
    (runs / INDEX).unlink()
    read = remembered_runs(runs)[0][0].blocks
    assert live.steps.tolist() == read.steps.tolist()
    assert {name: list(each) for name, each in live.sections_ns.items()} == {
        name: list(each) for name, each in read.sections_ns.items()
    }


def test_two_runs_that_end_at_once_are_both_entered(runs):
    threads = [threading.Thread(target=train, args=(runs, second)) for second in range(20, 28)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(remembered_runs(runs)[0]) == 10


def test_an_index_that_another_holds_is_left_alone(runs, monkeypatch):
    monkeypatch.setattr(history, "WAIT_S", 0.0)
    other = sqlite3.connect(runs / INDEX, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    change, problem = train(runs, 12, 0.115)
    assert change is None
    assert problem.endswith("so earlier runs are not compared: database is locked")
    other.execute("ROLLBACK")
    other.close()
    assert len(remembered_runs(runs)[0]) == 3


def test_where_no_index_can_be_written_the_runs_are_read_each_time(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    assert train(runs, 9) == (None, "")
    assert [each.name for each in runs.iterdir()] == ["20261121-142509"]  # a single run has no file beside it
    shutil.rmtree(runs)
    (runs / INDEX).mkdir(parents=True)
    train(runs, 10)
    train(runs, 11)
    change, problem = train(runs, 12, 0.115)
    assert (change, problem.endswith(f"{INDEX} is not a file")) == (None, True)
    found, problem = remembered_runs(runs)
    assert ([run.folder[-2:] for run in found], bool(problem)) == (["10", "11", "12"], True)
    (runs / INDEX).rmdir()
    (runs / INDEX).symlink_to(tmp_path / "of another")
    assert "not a file" in train(runs, 13)[1]
    assert not (tmp_path / "of another").exists()


def test_a_network_folder_has_no_index(runs, monkeypatch):
    mounts = runs.parent / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/home {runs.parent} nfs4 rw 0 0\n")
    monkeypatch.setattr(history, "MOUNTS", mounts)
    assert "network folder (nfs4)" in train(runs, 12, 0.115)[1]


def test_a_full_disk_or_missing_sqlite_is_said(runs, monkeypatch):
    def full(*_words, **_named):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", full)
    assert train(runs, 12, 0.115)[1].endswith("not compared: database or disk is full")
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert "sqlite3" in train(runs, 13, 0.115)[1]


def test_a_run_of_an_earlier_version_without_facts_or_steps_is_never_compared(runs):
    write_run(runs, "20261121-142509", steps=0, meta={})
    (runs / "20261121-142508").mkdir()
    write_json(runs / "20261121-142508" / META, {"command": ["no text"], "attempts": {}, "settings": 3})
    assert {run.folder[-2:] for run in remembered_runs(runs)[0]} == {"10", "11"}
    assert train(runs, 12, 0.115)[0].runs == 2
