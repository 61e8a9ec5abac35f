"""Finding the journals of a run in its folder."""

import os

from tests.support.many_ranks import LAUNCH, RUN, write_rank
from training_profiler.storage.journal_discovery import find_journals, find_own_folder_journals, select_journals
from training_profiler.storage.launch import LaunchId


def shown(folder):
    """Return the journals that are read, and the messages on the others."""
    chosen = select_journals(find_journals(folder), folder)
    return [one.shown for one in chosen.journals], chosen.left_out


def test_journals_are_sorted_by_attempt_and_rank(tmp_path):
    folder = tmp_path / RUN
    for rank, attempt in ((10, 0), (2, 0), (0, 1), (0, 0)):
        write_rank(folder, rank, attempt=attempt)
    (folder / "meta.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("{}\n")
    assert shown(folder) == (["rank0.jsonl", "rank2.jsonl", "rank10.jsonl", "rank0-attempt1.jsonl"], [])


def test_journals_in_folders_below_are_found_one_level_deep(tmp_path):
    write_rank(tmp_path / "node0", 0)
    write_rank(tmp_path / "node1", 2)
    write_rank(tmp_path / "node1" / "deeper", 3)
    (tmp_path / "ranks").mkdir()
    assert shown(tmp_path) == (["node0/rank0.jsonl", "node1/rank2.jsonl"], [])


def test_the_first_line_identifies_a_journal_not_its_name(tmp_path):
    write_rank(tmp_path, 3, attempt=1, name="rank3 (of node1).jsonl")
    (one,) = find_journals(tmp_path)
    assert (one.rank, one.attempt, one.run) == (3, 1, RUN)


def test_the_longer_of_two_copies_is_read(tmp_path):
    long = write_rank(tmp_path / "b", 1, steps=20)
    write_rank(tmp_path / "a", 1, steps=20)
    copy = tmp_path / "a" / "rank1.jsonl"
    copy.write_bytes(long.read_bytes()[:-100])
    assert shown(tmp_path) == (["b/rank1.jsonl"], ["left out: a/rank1.jsonl, a copy of b/rank1.jsonl"])


def test_the_later_process_of_a_rank_is_read(tmp_path):
    write_rank(tmp_path, 1, steps=20)
    write_rank(tmp_path, 1, steps=5, name="rank1-2.jsonl", pid=999, wall_ns=2 * 10**18)
    assert shown(tmp_path) == (["rank1-2.jsonl"], ["left out: rank1.jsonl, of an earlier process than rank1-2.jsonl"])


def test_journals_of_another_run_are_left_out_and_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, run="20261120-101010", launch=LaunchId("node9"))
    write_rank(tmp_path, 2, run="20261120-101010", launch=LaunchId("node9"))
    assert shown(tmp_path) == (
        ["rank0.jsonl"],
        ["left out, of another run (20261120-101010): rank1.jsonl, rank2.jsonl"],
    )


def test_the_folder_name_decides_the_run(tmp_path):
    folder = tmp_path / RUN
    for rank in range(3):
        write_rank(folder / "other", rank, run="20261120-101010", launch=LaunchId("node9"))
    write_rank(folder, 3)
    assert shown(folder)[0] == ["rank3.jsonl"]


def test_in_a_renamed_folder_rank_0_decides_the_run(tmp_path):
    for rank in (1, 2):
        write_rank(tmp_path / "other", rank, run="20261120-101010", launch=LaunchId("node9"))
    write_rank(tmp_path, 0)
    assert shown(tmp_path)[0] == ["rank0.jsonl"]


def test_a_rank_without_the_run_name_belongs_by_its_launch(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path / "own", 3, run=f"{RUN}-rank3")
    assert shown(tmp_path) == (["rank0.jsonl", "own/rank3.jsonl"], [])


def test_a_second_run_of_the_same_processes_is_left_out(tmp_path):
    folder = tmp_path / RUN
    write_rank(folder, 0)
    write_rank(folder / "later", 0, run="20261121-150000")
    assert shown(folder) == (["rank0.jsonl"], ["left out, of another run (20261121-150000): later/rank0.jsonl"])


def test_runs_of_one_name_differ_by_launcher_id(tmp_path):
    write_rank(tmp_path, 0, launch=LaunchId("node0", torchrun="x"))
    write_rank(tmp_path, 1, launch=LaunchId("node1", torchrun="y"))
    assert shown(tmp_path) == (["rank0.jsonl"], [f"left out, of another run ({RUN}): rank1.jsonl"])


def test_ranks_of_two_agents_on_one_host_share_a_run(tmp_path):
    write_rank(tmp_path, 0, launch=LAUNCH)
    write_rank(tmp_path, 1, launch=LAUNCH._replace(parent_pid=42))
    assert shown(tmp_path) == (["rank0.jsonl", "rank1.jsonl"], [])


def test_an_unreadable_file_has_a_reason_and_displaces_none(tmp_path):
    write_rank(tmp_path / "whole", 3)
    (tmp_path / "rank1.jsonl").mkdir()
    (tmp_path / "rank2.jsonl").write_bytes(b"")
    (tmp_path / "rank3.jsonl").write_bytes(os.urandom(100_000))
    os.mkfifo(tmp_path / "rank4.jsonl")
    (tmp_path / "rank5.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "rank6.jsonl").write_text('{"kind":"begin","schema":99}\n')
    troubles = {one.shown: one.problem for one in select_journals(find_journals(tmp_path), tmp_path).journals}
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
    return [one.shown for one in select_journals(found + find_own_folder_journals(folder, found), folder).journals]


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
