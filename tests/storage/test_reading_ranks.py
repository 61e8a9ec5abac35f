"""Summaries of ranks, from the ends of their journals."""

import json
import os
import socket
import time

import pytest

from tests.support.many_ranks import summary_by, write_rank
from training_profiler.base.errors import RunFolderError
from training_profiler.storage.journal_discovery import find_journals, select_attempt
from training_profiler.storage.run_reader import received_ranks


def read_ranks(folder, attempt=None):
    found = select_attempt(folder, find_journals(folder), attempt)
    return received_ranks(found.of_attempt, found.left_out)


def steps_by_rank(received):
    return {summary.who.rank: summary.steps for summary in received.summaries}


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_an_hour_off_makes_no_rank_unresponsive(tmp_path, hours):
    write_rank(tmp_path, 0, sent_s=100.0)
    write_rank(tmp_path, 1, sent_s=98.0, off_s=3600.0 * hours)
    write_rank(tmp_path, 2, sent_s=20.0, off_s=3600.0 * hours)
    ages = read_ranks(tmp_path).age_s
    assert (ages[0], ages[1]) == (0.0, 2.0 if hours < 0 else 0.0)
    assert ages[2] >= 78.0


def test_a_rank_that_began_late_is_not_unresponsive(tmp_path):
    write_rank(tmp_path, 0, sent_s=1000.0)
    write_rank(tmp_path, 1, sent_s=300.0, off_s=700.0)
    assert read_ranks(tmp_path).age_s == {0: 0.0, 1: 0.0}


def test_the_place_of_a_killed_rank_is_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, is_ended=False, inside=("forward_pass", "attention"))
    (sentence,) = read_ranks(tmp_path).left_out
    assert sentence.endswith("rank 1 (last at step 10 in forward_pass > attention, after 10.0 s)")


def test_a_rank_is_silent_after_three_missing_summaries(tmp_path):
    write_rank(tmp_path, 0)
    (tmp_path / "meta.json").write_text(json.dumps({"settings": {"flush_s": 100}}))
    assert read_ranks(tmp_path).silent_after_s == 300.0


def test_with_thousands_of_ranks_summaries_are_rarer(tmp_path):
    write_rank(tmp_path, 0, who={"world_size": 16_384, "attempt": 0})
    received = read_ranks(tmp_path)
    assert (received.world_size, received.silent_after_s) == (16_384, pytest.approx(491.52))


def test_a_torn_end_is_replaced_by_the_summary_before(tmp_path):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1, steps=10, is_ended=False)
    path.write_bytes(path.read_bytes()[:-5])
    received = read_ranks(tmp_path)
    assert steps_by_rank(received) == {0: 10, 1: 5}
    assert received.left_out == ("the last line is torn, the one before it was read: rank1.jsonl",)


def test_a_rank_that_ended_without_a_summary_is_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, sends=False, is_ended=False)
    received = read_ranks(tmp_path)
    assert steps_by_rank(received) == {0: 10}
    assert received.left_out == (
        "killed before the end, or still running: rank 1",
        "no data of ranks that ended before they sent any: rank1.jsonl",
    )


def test_ranks_that_have_not_ended_are_named(tmp_path):
    here = {"host": socket.gethostname(), "wall_ns": time.time_ns()}
    for rank, process in enumerate(({}, {"pid": os.getpid(), **here}, {"pid": 2**22 + 1, **here}, {})):
        write_rank(tmp_path, rank, is_ended=rank == 0, **process)
    assert read_ranks(tmp_path).left_out == (
        "killed before the end: rank 2 (last at step 10, after 10.0 s)",
        "still running: rank 1 (last at step 10, after 10.0 s)",
        "killed before the end, or still running: rank 3 (last at step 10, after 10.0 s)",
    )


def test_no_rank_is_named_while_all_run(tmp_path):
    for rank in range(4):
        write_rank(tmp_path, rank, is_ended=False)
    assert read_ranks(tmp_path).left_out == ()


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
def test_a_garbled_summary_is_replaced_by_the_one_before(tmp_path, garbage):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1, steps=5, is_ended=False)
    data = summary_by(1, 8, 8).to_data()
    for key, value in garbage.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data[key], dict) else value
    with path.open("a") as file:
        file.write(json.dumps({"kind": "rank", **data}, separators=(",", ":")) + "\n")
    assert steps_by_rank(read_ranks(tmp_path))[1] == 5


def test_a_missing_attempt_is_rejected_with_those_available(tmp_path):
    write_rank(tmp_path, 0)
    with pytest.raises(RunFolderError, match=r"has no attempt 1; it has attempt 0 alone; example: .* --attempt 0$"):
        read_ranks(tmp_path, attempt=1)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_journal_without_permission_is_named(tmp_path):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1).chmod(0)
    assert read_ranks(tmp_path).left_out == ("left out: rank1.jsonl cannot be read (Permission denied)",)


def test_a_single_rank_has_no_summaries_and_no_messages(tmp_path):
    write_rank(tmp_path, 0, sends=False, who={"world_size": 1, "attempt": 0})
    received = read_ranks(tmp_path)
    assert (received.summaries, received.world_size, received.left_out, received.stats()) == ((), 1, (), None)
