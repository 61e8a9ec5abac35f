"""Finding the journals of a run in its folder."""

import json
import os
import socket
import time

import psutil
import pytest

from tests.support.many_ranks import LAUNCH, RUN, write_rank
from training_profiler.settings.settings import Launch
from training_profiler.storage import journal_discovery as journal_tail
from training_profiler.storage.journal_discovery import (
    LaunchId,
    find_journals,
    find_own_folder_journals,
    is_running,
    is_same_launch,
    is_surely_another,
    read_end,
    select_journals,
    this_launch,
)


def shown(folder):
    """Return the journals that are read, and the messages on the others."""
    journals, left_out = select_journals(find_journals(folder), folder)
    return [one.shown for one in journals], left_out


OTHER_RUN = {"run": "20261120-101010", "launch": LaunchId("node9")}
LATER = {"steps": 5, "name": "rank1-2.jsonl", "pid": 999, "wall_ns": 2 * 10**18}
FOLDERS = {  # the folder, rank and options of each journal, and which of them are read
    "journals are sorted by attempt and rank": (
        [("", 10, {}), ("", 2, {}), ("", 0, {"attempt": 1}), ("", 0, {})],
        ["rank0.jsonl", "rank2.jsonl", "rank10.jsonl", "rank0-attempt1.jsonl"],
        [],
    ),
    "the later process of a rank is read": (
        [("", 1, {"steps": 20}), ("", 1, LATER)],
        ["rank1-2.jsonl"],
        ["left out: rank1.jsonl, of an earlier process than rank1-2.jsonl"],
    ),
    "in a renamed folder rank 0 decides the run": (
        [("other", 1, OTHER_RUN), ("other", 2, OTHER_RUN), ("", 0, {})],
        ["rank0.jsonl"],
        ["left out, of another run (20261120-101010): other/rank1.jsonl, other/rank2.jsonl"],
    ),
    "a rank without the run name belongs by its launch": (
        [("", 0, {}), ("own", 3, {"run": f"{RUN}-rank3"})],
        ["rank0.jsonl", "own/rank3.jsonl"],
        [],
    ),
    "a second run of the same processes is left out": (
        [("", 0, {}), ("later", 0, {"run": "20261121-150000"})],
        ["rank0.jsonl"],
        ["left out, of another run (20261121-150000): later/rank0.jsonl"],
    ),
    "runs of one name differ by launcher id": (
        [("", rank, {"launch": LaunchId(f"node{rank}", torchrun="xy"[rank])}) for rank in (0, 1)],
        ["rank0.jsonl"],
        [f"left out, of another run ({RUN}): rank1.jsonl"],
    ),
    "ranks of two agents on one host share a run": (
        [("", 0, {"launch": LAUNCH}), ("", 1, {"launch": LAUNCH._replace(parent_pid=42)})],
        ["rank0.jsonl", "rank1.jsonl"],
        [],
    ),
}


@pytest.mark.parametrize("name", [RUN, "renamed"])
@pytest.mark.parametrize(("written", "read", "left_out"), FOLDERS.values(), ids=FOLDERS)
def test_the_journals_of_one_run_are_read_and_others_named(tmp_path, name, written, read, left_out):
    for folder, rank, options in written:
        write_rank(tmp_path / name / folder, rank, **options)
    (tmp_path / name / "meta.json").write_text("{}")
    (tmp_path / name / "metrics.jsonl").write_text("{}\n")
    assert shown(tmp_path / name) == (read, left_out)


def test_the_first_line_identifies_a_journal_not_its_name(tmp_path):
    write_rank(tmp_path, 3, attempt=1, name="rank3 (of node1).jsonl")
    (one,) = find_journals(tmp_path)
    assert (one.rank, one.attempt, one.run) == (3, 1, RUN)


def test_an_unreadable_file_has_a_reason_and_displaces_none(tmp_path):
    write_rank(tmp_path / "whole", 3)
    (tmp_path / "rank1.jsonl").mkdir()
    (tmp_path / "rank2.jsonl").write_bytes(b"")
    (tmp_path / "rank3.jsonl").write_bytes(os.urandom(100_000))
    os.mkfifo(tmp_path / "rank4.jsonl")
    (tmp_path / "rank5.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "rank6.jsonl").write_text('{"kind":"begin","schema":99}\n')
    troubles = {one.shown: one.problem for one in select_journals(find_journals(tmp_path), tmp_path)[0]}
    schema = "has schema 99, this version reads 1; read it with the version that wrote it (meta.json names it)"
    none = "does not begin like a journal; is it a file of the profiler's?"
    assert troubles == {
        "rank1.jsonl": "is not a file",
        "rank2.jsonl": none,
        "rank3.jsonl": none,
        "whole/rank3.jsonl": "",
        "rank4.jsonl": "is not a file",
        "rank5.jsonl": "cannot be read (No such file or directory)",
        "rank6.jsonl": schema,
    }


def test_with_a_garbled_first_line_the_file_name_counts(tmp_path):
    path = tmp_path / "rank3-attempt1.jsonl"
    path.write_text('{"kind":"begin","schema":1,"rank":"x","who":[],"run":7,"launched":3,"wall_ns":-1}\n')
    (one,) = find_journals(tmp_path)
    assert (one.rank, one.attempt, one.run, one.launch, one.wall_ns) == (3, 1, None, LaunchId(), 0)


def shown_with_siblings(folder):
    found = find_journals(folder)
    return [one.shown for one in select_journals(found + find_own_folder_journals(folder, found), folder)[0]]


def test_journals_of_ranks_that_ended_early_are_found_beside_the_folder(tmp_path):
    write_rank(tmp_path / RUN, 0)
    write_rank(tmp_path / f"{RUN}-rank1", 1, run=f"{RUN}-rank1")
    write_rank(tmp_path / f"{RUN}-rank2", 2, run=f"{RUN}-rank2", launch=LAUNCH._replace(parent_pid=42))
    write_rank(tmp_path / f"{RUN}-rank0", 0, run=f"{RUN}-rank0")
    assert shown_with_siblings(tmp_path / RUN) == ["rank0.jsonl", f"../{RUN}-rank1/rank1.jsonl"]
    assert shown_with_siblings(tmp_path / f"{RUN}-rank1") == ["rank1.jsonl"]


def test_each_run_of_a_launch_has_the_ranks_that_began_with_it(tmp_path):
    for number, name in enumerate((RUN, "20261121-150000")):
        began = {"wall_ns": number * 10**13}
        write_rank(tmp_path / name, 0, run=name, **began)
        write_rank(tmp_path / f"{name}-rank1", 1, run=f"{name}-rank1", **began)
    for name in (RUN, "20261121-150000"):
        assert shown_with_siblings(tmp_path / name) == ["rank0.jsonl", f"../{name}-rank1/rank1.jsonl"]


HERE = LaunchId("a", parent_pid=7, parent_start_s=100.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (LaunchId("a", torchrun="x"), LaunchId("b", torchrun="x"), True),
        (LaunchId("a", torchrun="x"), LaunchId("a", torchrun="y"), False),
        (HERE, HERE._replace(parent_start_s=101.5), True),
        (HERE, HERE._replace(parent_start_s=103.0), False),  # another process has that id now
        (HERE, HERE._replace(parent_pid=8), False),
        (HERE, HERE._replace(host="b"), None),
        (HERE._replace(job="1.0"), HERE._replace(host="b", job="1.0"), True),
        (HERE._replace(job="1.0"), HERE._replace(host="b", job="1.1"), False),
        (HERE._replace(job="1.0"), HERE._replace(parent_pid=8, job="1.0"), False),  # two launches in one job
        (LaunchId("a"), LaunchId("a"), None),
        (LaunchId(), LaunchId(), None),
    ],
)
def test_run_id_parent_or_job_identify_a_launch(one, other, same):
    assert is_same_launch(one, other) is same
    assert is_same_launch(other, one) is same


def test_different_parents_do_not_prove_another_launch():
    assert not is_surely_another(HERE, HERE._replace(parent_pid=8))
    assert is_surely_another(LaunchId(torchrun="x"), LaunchId(torchrun="y"))
    assert is_surely_another(LaunchId(job="1.0"), LaunchId(job="2.0"))
    assert not is_surely_another(LaunchId(torchrun="x"), LaunchId())


def test_this_process_has_its_parent_s_launch():
    launch = this_launch(Launch(run_id="x", job="1.0"))
    assert (launch.host, launch.torchrun, launch.job) == (socket.gethostname(), "x", "1.0")
    assert launch.parent_pid == os.getppid()
    assert launch.parent_start_s == psutil.Process(os.getppid()).create_time()


def test_a_process_still_runs_if_its_id_existed_then():
    host = socket.gethostname()
    assert is_running(host, os.getpid(), time.time()) is True
    assert is_running(host, os.getpid(), 1000.0) is False  # this one is younger
    assert is_running(host, 2**22 + 1, time.time()) is False  # Linux has no such id
    assert is_running("elsewhere", os.getpid(), time.time()) is None
    assert is_running(host, "7", time.time()) is None
    assert is_running(None, None, 0.0) is None


def number(record):
    return record["number"]


@pytest.fixture(params=[7, 64, 256 * 1024])
def small_tail(request, monkeypatch):
    monkeypatch.setattr(journal_tail, "TAIL_BYTES", request.param)


def write(path, *records, ending="\n"):
    path.write_text("\n".join(json.dumps(record) for record in records) + ending)


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


@pytest.mark.parametrize(
    ("rest", "found", "looked"),
    [
        ("\n" * 3_000_000, (1, False, True), 1),
        (" \n" * 1_000_000, (1, False, True), 1),
        ("x\n" * 1_000_000, (1, False, False), 1),
        ('{"kind":"rank"}\n' * 100_000, (None, False, False), journal_tail.MOST_TRIES),
    ],
)
def test_the_end_is_found_before_many_lines_of_nothing_and_few_that_cannot_be_used_are_tried(
    tmp_path, monkeypatch, rest, found, looked
):
    path = tmp_path / "rank0.jsonl"
    last = [{"kind": "end"}] if found[0] else []
    write(path, {"kind": "rank", "number": 1}, *last, ending="\n" + rest)
    looked_at = []
    monkeypatch.setattr(journal_tail, "as_record", lambda line: looked_at.append(line) or json.loads(line))
    assert read_end(path, "rank", number) == found
    assert len(looked_at) == looked
