"""The summary of a rank: sums after warm-up, compared steps, step times, hottest lines, gradient sync."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.model.location import Location
from training_profiler.ranks.summary import (
    MOST_BUCKETS,
    UNKNOWN_NS,
    ComparedBlocks,
    RankSection,
    RankSummary,
    RankSummaryBuilder,
    RankSyncPoint,
    StepTimeBucket,
    rank_summary_from_data,
)
from training_profiler.recording.gradient_sync import GradientSyncTotals
from training_profiler.snapshot.ranks import GradientSyncStats, RankId

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


def test_sections_are_summed_with_and_without_nested_ones():
    rank = RankRun()
    for step in range(20):
        with rank.run.section("forward_pass"):
            rank.run.clock.advance(1.0 if step == 0 else 0.002)
            rank.run.spend("attention", 0.003)
        rank.run.clock.advance(0.001)
        rank.run.step(synchronization=0.004)
    rank.flush()
    summary = rank.summary()
    assert (summary.steps, summary.settled_steps, summary.settled_ns) == (20, 19, 19 * 10 * MS)
    assert summary.sections["forward_pass"] == RankSection(
        20, 1000 * MS + 19 * 2 * MS + 60 * MS, 19 * 5 * MS, 19 * 2 * MS
    )
    assert summary.sections["attention"] == RankSection(20, 60 * MS, 19 * 3 * MS, 19 * 3 * MS)
    assert summary.sections["other"] == RankSection(0, 0, 19 * MS, 19 * MS)
    assert summary.sync_ns == 19 * 4 * MS
    assert summary.knows_sync


def test_work_between_steps_has_spans_and_total():
    rank = RankRun()
    for _ in range(12):
        rank.run.step(forward_pass=0.01)
        rank.run.spend("checkpointing", 0.5)
    rank.flush()
    assert rank.summary().sections["checkpointing"] == RankSection(12, 12 * 500 * MS)


def test_blocks_hold_single_steps():
    rank = RankRun()
    for step in range(33):
        rank.run.step(forward_pass=0.01, synchronization=0.001 * (step + 1))
    rank.flush()
    assert rank.summary().blocks == {0: [MS * (i + 1) for i in range(16)], 16: [MS * (i + 17) for i in range(16)]}


def test_a_block_continues_over_flushes():
    rank = RankRun()
    for step in range(16):
        rank.run.step(forward_pass=0.01, synchronization=0.001)
        if step % 5 == 1:
            rank.flush()
    assert rank.summary().blocks == {}
    rank.flush()
    assert rank.summary().blocks == {0: [MS] * 16}


def test_late_ddp_sync_is_added_to_its_step():
    rank = RankRun()
    for _ in range(16):
        rank.run.step(backward_pass=0.01, synchronization=0.001)
    rank.flush(GradientSyncTotals(15, 15, 30 * MS, 0), [(step, 2 * MS) for step in range(15)])
    assert rank.summary().blocks == {}, "gradient sync of the last step is known after the next"
    rank.flush(GradientSyncTotals(1, 1, 2 * MS, 0), [(15, 2 * MS)])
    assert rank.summary().blocks == {0: [3 * MS] * 16}


def test_a_step_without_ddp_sync_is_unknown_and_not_zero():
    rank = RankRun()
    for _ in range(16):
        rank.run.step(backward_pass=0.01)
    rank.flush(GradientSyncTotals(15, 15, 30 * MS, 0), [(step, 2 * MS) for step in range(16) if step != 7])
    assert rank.summary().blocks == {0: [2 * MS] * 7 + [UNKNOWN_NS] + [2 * MS] * 8}


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


def test_buckets_hold_steps_and_their_synchronization():
    rank = RankRun()
    for ms in (10, 20):
        for _ in range(5):
            rank.run.step(forward_pass=ms / 1000, synchronization=0.001)
        rank.flush()
    assert rank.summary().step_times == [StepTimeBucket(5, 55 * MS, 5 * MS), StepTimeBucket(5, 105 * MS, 5 * MS)]


def test_sync_of_a_flush_without_steps_counts_for_the_next():
    rank = RankRun()
    rank.run.step(forward_pass=0.01)
    rank.flush()
    rank.flush(GradientSyncTotals(1, 1, 3 * MS, MS, is_on_host=False))
    rank.run.step(forward_pass=0.01)
    rank.flush()
    assert rank.summary().step_times == [StepTimeBucket(1, 10 * MS, 0), StepTimeBucket(1, 10 * MS, 2 * MS)]


def test_buckets_are_bounded_and_lose_nothing():
    rank = RankRun()
    for _ in range(1000):
        rank.run.step(forward_pass=0.01)
        rank.flush()
    buckets = rank.summary().step_times
    assert len(buckets) <= MOST_BUCKETS
    assert sum(bucket.steps for bucket in buckets) == 1000
    assert sum(bucket.step_ns for bucket in buckets) == 1000 * 10 * MS
    assert max(bucket.steps for bucket in buckets) <= 64


def test_a_hottest_line_needs_enough_samples():
    rank = RankRun()
    rank.run.step(forward_pass=0.01)
    with rank.run.section("data_loading"):
        for _ in range(29):
            rank.run.sample_line(Location("train.py", 31, "fetch"))
            rank.run.clock.advance(0.001)
        rank.flush()
        assert "data_loading" not in rank.summary().hottest_lines
        rank.run.sample_line(Location("train.py", 32, "fetch"))
        rank.run.clock.advance(0.001)
    rank.run.step()
    rank.flush()
    assert rank.summary().hottest_lines == {"data_loading": "train.py:31 fetch"}


def test_a_section_with_little_time_has_no_hottest_line():
    rank = RankRun()
    rank.run.step(forward_pass=10.0)
    with rank.run.section("data_loading"):
        for _ in range(40):
            rank.run.sample_line(Location("train.py", 31, "fetch"))
            rank.run.clock.advance(0.001)
    rank.run.step()
    rank.flush()
    assert rank.summary().hottest_lines == {}


def test_gradient_sync_stats_are_means():
    rank = RankRun()
    rank.flush(GradientSyncTotals(10, 5, 40 * MS, 10 * MS))
    rank.flush(GradientSyncTotals(10, 5, 40 * MS, 30 * MS))
    assert rank.builder.gradient_sync_stats() == GradientSyncStats(20, 10, 0.004, overlap=0.5, exposed_s=0.002)
    summary = rank.summary()
    assert (summary.exchanges, summary.sampled, summary.exchange_ns, summary.exchange_hidden_ns) == (
        20,
        10,
        80 * MS,
        40 * MS,
    )


def test_device_side_gradient_sync_counts_as_synchronization():
    rank = RankRun()
    for _ in range(20):
        rank.run.step(backward_pass=0.01)
    rank.flush(GradientSyncTotals(20, 2, 20 * 3 * MS, 20 * MS, is_on_host=False))
    summary = rank.summary()
    assert summary.knows_sync
    assert summary.sync_ns == 20 * 2 * MS


def on_device(device_ms: dict[str, int], steps: int = 20) -> RankRun:
    """Return a run whose host queues work for 1 ms per section; ``attention`` is nested in the forward pass."""
    rank = RankRun()
    for _ in range(steps):
        with rank.run.section("forward_pass"):
            rank.run.clock.advance(0.001)
            rank.run.spend("attention", 0.001)
        rank.run.step(backward_pass=0.001, synchronization=0.001)
        rank.run.clock.advance(0.05)
    rank.run.drain()
    for name, ms in device_ms.items():
        for _ in range(steps):
            rank.run.accumulator.add_device_time(rank.run.names.id_of(name), ms * MS)
    return rank


def test_device_time_is_sent_beside_host_time():
    rank = on_device({"forward_pass": 10, "attention": 4, "backward_pass": 20, "synchronization": 3})
    rank.flush()
    summary = rank.summary()
    forward = summary.sections["forward_pass"]
    assert (forward.step_ns, forward.own_step_ns) == (20 * 2 * MS, 20 * MS)
    assert (forward.device_step_ns, forward.device_own_ns) == (20 * 10 * MS, 20 * 6 * MS)
    assert summary.sync_ns == 20 * 3 * MS
    assert summary.knows_sync


def test_exposed_sync_leaves_the_backward_device_time():
    rank = on_device({"backward_pass": 20})
    rank.flush(GradientSyncTotals(20, 2, 20 * 6 * MS, 20 * MS, is_on_host=False))
    summary = rank.summary()
    assert summary.sections["backward_pass"].device_own_ns == 20 * 15 * MS
    assert summary.sync_ns == 20 * 6 * MS  # with 1 ms of synchronization on the host


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


def test_further_keys_are_ignored():
    summary = RankSummary(who=WHO, steps=5)
    read = rank_summary_from_data({"kind": "rank", **json.loads(json.dumps(summary.to_data()))})
    assert (read.who, read.steps) == (WHO, 5)


def test_names_of_other_processes_are_made_printable():
    data = RankSummary(who=RankId(1, 2, "a\x1b[31mb"), sections={"x\n": RankSection()}).to_data()
    summary = rank_summary_from_data(json.loads(json.dumps(data)))
    assert summary.who.host == "a\\x1b[31mb"
    assert list(summary.sections) == ["x\\n"]


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


def test_columns_of_a_later_version_are_ignored():
    data = {**RankSummary(who=WHO).to_data(), "sections": {"forward_pass": list(range(12))}}
    assert rank_summary_from_data(data).sections["forward_pass"] == RankSection(*range(8))


def test_the_number_of_summaries_grows():
    rank = RankRun()
    assert (rank.summary().number, rank.summary().number) == (1, 2)
