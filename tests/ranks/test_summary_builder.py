"""The summary of a rank: sums after warm-up, compared steps, step times, hottest lines, gradient sync."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.model.ranks import GradientSyncTotals, RankId
from training_profiler.ranks.summary import (
    MOST_BUCKETS,
    ComparedBlocks,
    RankSection,
    RankSummary,
    RankSummaryBuilder,
    RankSyncPoint,
    rank_summary_from_data,
)

MS = 1_000_000
NOTHING = GradientSyncTotals()
WHO = RankId(3, 4, "node1")


class RankRun:
    """A run on a fake clock, and the summary of its rank."""

    def __init__(self, warmup: int | None = None) -> None:
        self.run = FakeRun(warmup)
        self.builder = RankSummaryBuilder(self.run.names)
        self.builder.warmup_steps = warmup

    def flush(self, synced: GradientSyncTotals = NOTHING, of_steps: list[tuple[int, int]] | None = None) -> None:
        self.run.drain()
        totals, step_ns = self.run.accumulator.pop_totals()
        self.run.sums.add(totals, step_ns)
        self.builder.add(totals, step_ns, synced._replace(of_steps=tuple(of_steps or synced.of_steps)))

    def summary(self, **rest) -> RankSummary:
        return self.builder.summary(WHO, self.run.sums.run, self.run.names.names, **rest)


@given(steps=st.integers(0, 3000), flush_every=st.integers(1, 700))
def test_complete_blocks_match_brute_force(steps, flush_every):
    rank = ComparedBlocks()
    for first in range(0, steps, flush_every):
        end = min(steps, first + flush_every)
        rank.add({step: [0, step] for step in range(first, end) if reads(step)}, 1, [])
    whole = steps // 16
    begun = (steps + 15) // 16
    stride = 1
    while begun / stride > 8:
        stride *= 2
    blocks = rank.complete_blocks()
    kept = {16 * block for block in range(whole) if block % stride == 0}
    assert blocks.keys() >= kept
    assert len(blocks) <= 8
    assert all(ns == list(range(first, first + 16)) for first, ns in blocks.items())


def reads(step: int) -> bool:
    stride = 1
    while (step + 1) / (16 * stride) > 8:
        stride *= 2
    return step // 16 % stride == 0


def test_buckets_are_bounded_and_lose_nothing():
    rank = RankRun()
    for _ in range(300):
        rank.run.step(forward_pass=0.01)
        rank.flush()
    buckets = rank.summary().step_times
    assert len(buckets) <= MOST_BUCKETS
    assert sum(bucket.steps for bucket in buckets) == 300
    assert sum(bucket.step_ns for bucket in buckets) == 300 * 10 * MS
    assert max(bucket.steps for bucket in buckets) <= 16


def test_a_summary_survives_json():
    rank = RankRun()
    for _ in range(40):
        rank.run.step(forward_pass=0.01, synchronization=0.001)
    rank.flush(GradientSyncTotals(1, 1, MS, 0))
    summary = rank.summary(
        sent_ns=5,
        sync_points=[RankSyncPoint("all:0", 1, 2)],
        inside=["forward_pass"],
        is_final=True,
        ended_by="SIGTERM",
    )
    assert rank_summary_from_data(json.loads(json.dumps(summary.to_data(), allow_nan=False))) == summary
    assert rank.summary().number == summary.number + 1


def test_names_of_other_processes_are_made_printable_and_what_a_later_version_adds_is_ignored():
    data = RankSummary(RankId(1, 2, "a\x1b[31mb"), steps=5, sections={"x\n": RankSection(*range(8))}).to_data()
    data["sections"]["x\n"] = list(range(12))
    summary = rank_summary_from_data({"kind": "rank", **json.loads(json.dumps(data))})
    assert (summary.who.host, summary.steps) == ("a\\x1b[31mb", 5)
    assert summary.sections == {"x\\n": RankSection(*range(8))}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"who": {"rank": "x", "world_size": 2}},
        {"who": None},
        {"who": {"rank": 1}},
        {"who": {"rank": -1, "world_size": 2}},
        {"who": {"rank": 1, "world_size": 2**63}},
        {"knows_sync": "yes"},
        {"sections": None},
        {"paces": [[1, 2, 3, 4]]},
        {"sections": {"a": ["b"]}},
        {"steps": float("inf")},
        {"blocks": {"a": [0] * 16}},
        {"blocks": {"0": [0] * 15}},
        {"steps": -1},
        {"steps": 1.5},
        {"settled_ns": 2**63},
        {"ended_by": 5},
        {"meetings": [["all:0", 1]]},
    ],
)
def test_data_of_another_form_is_refused(change):
    data = {**RankSummary(who=WHO).to_data(), **change}
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, OverflowError)):
        rank_summary_from_data(data)
