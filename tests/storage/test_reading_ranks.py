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


HERE = {"host": socket.gethostname(), "wall_ns": time.time_ns(), "is_ended": False}
KILLED = "killed before the end, or still running: "
RECEIVED = {  # what the journal of each rank is, and what is read of them
    "a rank that began late is not unresponsive": (
        [{"sent_s": 1000.0}, {"sent_s": 300.0, "off_s": 700.0}],
        {"age_s": {0: 0.0, 1: 0.0}},
    ),
    "the place of a killed rank is named": (
        [{}, {"is_ended": False, "inside": ("forward_pass", "attention")}],
        {"left_out": (f"{KILLED}rank 1 (last at step 10 in forward_pass > attention, after 10.0 s)",)},
    ),
    "with thousands of ranks summaries are rarer": (
        [{"who": {"world_size": 16_384, "attempt": 0}}],
        {"world_size": 16_384, "silent_after_s": pytest.approx(491.52)},
    ),
    "a rank that ended without a summary is named": (
        [{}, {"sends": False, "is_ended": False}],
        {"left_out": (f"{KILLED}rank 1", "no data of ranks that ended before they sent any: rank1.jsonl")},
    ),
    "ranks that have not ended are named": (
        [{}, {"pid": os.getpid(), **HERE}, {"pid": 2**22 + 1, **HERE}, {"is_ended": False}],
        {
            "left_out": tuple(
                f"{which} (last at step 10, after 10.0 s)"
                for which in ("killed before the end: rank 2", "still running: rank 1", f"{KILLED}rank 3")
            )
        },
    ),
    "no rank is named while all run": ([{"is_ended": False}] * 4, {"left_out": ()}),
    "a single rank has no summaries and no messages": (
        [{"sends": False, "who": {"world_size": 1, "attempt": 0}}],
        {"summaries": (), "world_size": 1, "left_out": ()},
    ),
}


@pytest.mark.parametrize(("ranks", "expected"), RECEIVED.values(), ids=RECEIVED)
def test_what_ranks_said_last_is_read_from_their_journals(tmp_path, ranks, expected):
    for rank, options in enumerate(ranks):
        write_rank(tmp_path, rank, **options)
    received = read_ranks(tmp_path)
    assert {name: getattr(received, name) for name in expected} == expected
    said = [rank for rank, options in enumerate(ranks) if options.get("sends", True)]
    assert steps_by_rank(received) == dict.fromkeys(said, 10)
    assert (received.stats() is None) == (not said)


def test_a_rank_is_silent_after_three_missing_summaries(tmp_path):
    write_rank(tmp_path, 0)
    (tmp_path / "meta.json").write_text(json.dumps({"settings": {"flush_s": 100}}))
    assert read_ranks(tmp_path).silent_after_s == 300.0


def test_a_torn_end_is_replaced_by_the_summary_before(tmp_path):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1, steps=10, is_ended=False)
    path.write_bytes(path.read_bytes()[:-5])
    received = read_ranks(tmp_path)
    assert steps_by_rank(received) == {0: 10, 1: 5}
    assert received.left_out == ("the last line is torn, the one before it was read: rank1.jsonl",)


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
