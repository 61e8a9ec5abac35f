import json
import os
import socket
import threading
import time

import pytest

from tests.support.commands import printed, refused
from tests.support.stacks import stacks_of, training_at
from training_profiler.cli import stacks
from training_profiler.storage.journal_lines import JOURNAL_SCHEMA
from training_profiler.storage.stack_files import read_request, write_stacks


def write_journal(folder, rank=0, world_size=1, pid=None, host=None, is_ended=False):
    begin = {"kind": "begin", "schema": JOURNAL_SCHEMA, "rank": rank, "who": {"world_size": world_size, "attempt": 0}}
    begin |= {"pid": pid or os.getpid(), "host": host or socket.gethostname(), "wall_ns": time.time_ns()}
    lines = [begin, *([{"kind": "end", "ended_by": None}] if is_ended else [])]
    (folder / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(stacks, "ANSWER_S", 0.0)
    monkeypatch.setattr(stacks, "ANSWER_INTERVALS", 0)


def test_what_does_not_run_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "neither a folder nor the name of a run" in refused(capsys, "stacks", "nothing")
    assert "No runs in ./runs. Make one with: " in refused(capsys, "stacks")
    assert "is not a run folder" in refused(capsys, "stacks", tmp_path)
    write_journal(tmp_path, is_ended=True)
    assert "is no longer running, and no stacks were written" in refused(capsys, "stacks", tmp_path)
    assert read_request(tmp_path) is None


def test_last_stacks_of_a_run_that_has_ended_are_printed(tmp_path, capsys):
    write_journal(tmp_path, is_ended=True)
    write_stacks(tmp_path, stacks_of(0, training_at("train.py:88 train")))
    out = printed(capsys, "stacks", str(tmp_path))
    assert out.startswith(f"The training of {tmp_path} is no longer running. Its last stacks:\n")
    assert "It is at train.py:88 train." in out


def test_run_of_another_machine_that_does_not_answer_is_refused_with_what_to_do(tmp_path, capsys):
    write_journal(tmp_path, host="node7", pid=4711)
    assert "The training has not answered (process 4711 on node7): run this command on that machine" in refused(
        capsys, "stacks", tmp_path
    )


def test_stopped_process_and_rank_without_journal_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stacks, "is_stopped", lambda pid: True)
    write_journal(tmp_path, world_size=2)
    line = refused(capsys, "stacks", tmp_path)
    assert f"Rank 0 is stopped (process {os.getpid()} on" in line
    assert f"kill -CONT {os.getpid()} lets it go on" in line
    assert "Rank 1 has no journal in this folder" in line


def test_answers_of_this_request_are_printed_and_missing_ranks_named(tmp_path, capsys, monkeypatch):
    write_journal(tmp_path, world_size=3)
    write_journal(tmp_path, rank=1, world_size=3, is_ended=True)
    write_journal(tmp_path, rank=2, world_size=3)
    write_stacks(tmp_path, stacks_of(2, training_at("old.py:1 old")))  # of an earlier request

    def answer(folder, asked_ns, original=stacks.write_request):
        original(folder, asked_ns)
        write_stacks(folder, stacks_of(0, training_at("train.py:88 train"), asked_ns=asked_ns))

    monkeypatch.setattr(stacks, "write_request", answer)
    monkeypatch.setattr(stacks, "stacks_by_signal", lambda pid: None)
    out = printed(capsys, "stacks", str(tmp_path))
    assert out.startswith("Stacks of 1 of 3 ranks at ")
    assert "Rank 0 at train.py:88 train" in out
    assert f"Rank 1 has ended (process {os.getpid()} on " in out
    assert f"Rank 2 has not answered (process {os.getpid()} on " in out
    assert "old.py" not in out


def test_rank_whose_python_cannot_run_shows_the_dump_of_its_main_thread(tmp_path, capsys, monkeypatch):
    write_journal(tmp_path)
    own = os.path.join(os.path.dirname(stacks.__file__), "stacks.py")
    dump = (
        f'Thread 0x1 (most recent call first):\n  File "{own}", line 1 in look\n\n'
        f'Thread 0x3 (most recent call first):\n  File "{threading.__file__}", line 982 in run\n\n'
        'Thread 0x2 (most recent call first):\n  File "/home/me/train.py", line 7 in stuck\n'
        '  File "/home/me/train.py", line 9 in <module>\n'
    )
    monkeypatch.setattr(stacks, "stacks_by_signal", lambda pid: dump)
    out = printed(capsys, "stacks", str(tmp_path))
    assert "The training cannot run Python: code in C holds the GIL at the line shown" in out
    assert out.endswith("  training thread MainThread:\n    me/train.py:9 <module>\n    me/train.py:7 stuck\n")
