"""What ranks told, from the ends of their journals."""

import json
import os
import socket
import time

import pytest

from tests.support.many_ranks import BEGAN_S, RUN, S, figures_by_hand, told_by, who, write_rank
from training_profiler.errors import RunFolderError
from training_profiler.storage import rank_reader
from training_profiler.storage.launch import LaunchId
from training_profiler.storage.rank_reader import read_ranks


def told_steps(told):
    return {sums.who.rank: sums.steps for sums in told.sums}


def test_the_last_that_each_rank_told_is_read(tmp_path):
    for rank in (1, 0, 3, 2):
        write_rank(tmp_path, rank, steps=10 + 5 * rank)
    told = read_ranks(tmp_path)
    assert [sums.who for sums in told.sums] == [who(rank) for rank in range(4)]
    assert [sums.sent_ns - BEGAN_S * S for sums in told.sums] == [10 * S, 15 * S, 20 * S, 25 * S]
    assert told.sums[1].sections == told_by(1, 15, 15).sections
    assert (told.world_size, told.left_out) == (4, ())


def test_how_long_ago_a_rank_was_heard_is_before_the_last_that_any_told(tmp_path):
    write_rank(tmp_path, 0, told_s=100.0)
    write_rank(tmp_path, 1, told_s=30.5)
    told = read_ranks(tmp_path)
    assert told.heard_s_ago == {0: 0.0, 1: 69.5}
    assert told.silent_after_s == 60.0


def test_a_rank_is_not_silent_before_it_would_have_told_three_times(tmp_path):
    write_rank(tmp_path, 0)
    (tmp_path / "meta.json").write_text(json.dumps({"settings": {"flush_s": 100}}))
    assert read_ranks(tmp_path).silent_after_s == 300.0


def test_where_there_are_thousands_of_ranks_each_tells_more_seldom(tmp_path):
    write_rank(tmp_path, 0, who={"world_size": 16_384, "attempt": 0})
    told = read_ranks(tmp_path)
    assert (told.world_size, told.silent_after_s) == (16_384, pytest.approx(491.52))


def test_ranks_that_are_missing_are_those_without_a_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_reader, "all_ranks_stats", figures_by_hand)
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 2)
    assert read_ranks(tmp_path).stats().missing == (1, 3)


def test_a_torn_end_gives_way_to_what_was_told_before(tmp_path):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1, steps=10, is_ended=False)
    path.write_bytes(path.read_bytes()[:-5])
    told = read_ranks(tmp_path)
    assert told_steps(told) == {0: 10, 1: 5}
    assert told.left_out == ("the last line is torn, the one before it was read: rank1.jsonl",)


def test_a_journal_torn_at_its_beginning_still_tells_of_its_rank(tmp_path):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1)
    path.write_bytes(path.read_bytes()[100:])
    told = read_ranks(tmp_path)
    assert (told_steps(told), told.left_out) == ({0: 10, 1: 10}, ())


def test_a_rank_that_ended_before_it_told_anything_is_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, tells=False, is_ended=False)
    told = read_ranks(tmp_path)
    assert told_steps(told) == {0: 10}
    assert told.left_out == (
        "killed before the end, or still running: rank 1",
        "no figures of ranks that ended before they told any: rank1.jsonl",
    )


def test_where_some_ranks_ended_those_that_did_not_are_named(tmp_path):
    here = {"host": socket.gethostname(), "wall_ns": time.time_ns()}
    for rank, process in enumerate(({}, {"pid": os.getpid(), **here}, {"pid": 2**22 + 1, **here}, {})):
        write_rank(tmp_path, rank, is_ended=rank == 0, **process)
    assert read_ranks(tmp_path).left_out == (
        "killed before the end: rank 2",
        "still running: rank 1",
        "killed before the end, or still running: rank 3",
    )


def test_of_a_run_under_way_no_rank_is_named(tmp_path):
    for rank in range(4):
        write_rank(tmp_path, rank, is_ended=False)
    assert read_ranks(tmp_path).left_out == ()


def test_what_cannot_be_read_is_named_and_bounded(tmp_path):
    write_rank(tmp_path, 0)
    (tmp_path / "rank1.jsonl").mkdir()
    for rank in range(2, 30):
        (tmp_path / f"rank{rank}.jsonl").write_bytes(b"")
    told = read_ranks(tmp_path)
    assert told_steps(told) == {0: 10}
    assert told.left_out[0] == "left out: rank1.jsonl is no file"
    assert told.left_out[8:] == ("21 more files left out",)


@pytest.mark.parametrize(
    "garbage",
    [
        {"who": {"rank": -1}},
        {"who": {"rank": 7, "world_size": 4}},
        {"who": {"rank": 1, "world_size": 10**12}},
        {"who": {"rank": "one"}},
        {"who": None},
        {"told_ns": "x"},
        {"steps": None},
        {"sections": 3},
        {"sections": {"a": ["x"] * 50}},
        {"blocks": {"x": []}},
        {"schema": 99},
    ],
)
def test_a_line_with_garbage_in_it_gives_way_to_the_one_before(tmp_path, garbage):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1, steps=5, is_ended=False)
    data = told_by(1, 8, 8).to_data()
    for key, value in garbage.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data[key], dict) else value
    with path.open("a") as file:
        file.write(json.dumps({"kind": "rank", **data}, separators=(",", ":")) + "\n")
    assert told_steps(read_ranks(tmp_path))[1] == 5


def test_each_attempt_has_its_ranks(tmp_path):
    for rank in range(4):
        write_rank(tmp_path, rank, steps=20)
    for rank in range(2):
        write_rank(tmp_path, rank, attempt=1, steps=5)
    assert told_steps(read_ranks(tmp_path)) == {0: 5, 1: 5}
    assert told_steps(read_ranks(tmp_path, attempt=0)) == {0: 20, 1: 20, 2: 20, 3: 20}
    with pytest.raises(RunFolderError, match=r"has no attempt 2; it has attempts 0, 1; example: .* --attempt 1$"):
        read_ranks(tmp_path, attempt=2)


def test_of_an_attempt_that_is_missing_the_only_one_is_named(tmp_path):
    write_rank(tmp_path, 0)
    with pytest.raises(RunFolderError, match=r"has no attempt 1; it has attempt 0 alone; example: .* --attempt 0$"):
        read_ranks(tmp_path, attempt=1)


def test_journals_of_another_run_are_not_among_the_ranks(tmp_path):
    write_rank(tmp_path / RUN, 0)
    write_rank(tmp_path / RUN, 1, run="20261120-101010", launch=LaunchId("node9"))
    told = read_ranks(tmp_path / RUN)
    assert told_steps(told) == {0: 10}
    assert told.left_out == ("left out, of another run (20261120-101010): rank1.jsonl",)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_journal_without_permission_is_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1).chmod(0)
    assert read_ranks(tmp_path).left_out == ("left out: rank1.jsonl cannot be read (Permission denied)",)


def test_a_run_of_one_rank_tells_nothing_and_lacks_nothing(tmp_path):
    write_rank(tmp_path, 0, tells=False, who={"world_size": 1, "attempt": 0})
    told = read_ranks(tmp_path)
    assert (told.sums, told.world_size, told.left_out, told.stats()) == ((), 1, (), None)
