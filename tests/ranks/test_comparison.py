"""Stats of all ranks: spread, work, causes, hosts, silent ranks."""

import json
import random
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ranks import MS, buckets, summary_of
from training_profiler.ranks.comparison import (
    History,
    all_ranks_stats,
    clock_offsets,
    clock_stats,
    history_of,
    medians_of_others,
    waiting_parts,
)
from training_profiler.ranks.summary import RankSection, RankSummary, RankSyncPoint, StepTimeBucket
from training_profiler.recording.gradient_sync import block_stride
from training_profiler.reports.layout import Layout
from training_profiler.reports.ranks import rank_lines
from training_profiler.reports.report_json import as_data
from training_profiler.snapshot.ranks import ClockStats, RankId
from training_profiler.snapshot.snapshot import Snapshot

SECTIONS = {"data_loading": 1.0, "forward_pass": 10.0, "backward_pass": 15.0, "other": 2.0}


def slow_in(section: str, extra_ms: float, rank: int = 3, **more) -> list[RankSummary]:
    """Return four ranks in lock-step, where one takes longer in a section and the others wait for it."""
    return [
        summary_of(
            one,
            step_ms=31.0 + extra_ms,
            sync_ms=3.0 + (0 if one == rank else extra_ms),
            sections={**SECTIONS, section: SECTIONS[section] + (extra_ms if one == rank else 0.0)},
            **more,
        )
        for one in range(4)
    ]


def test_a_single_rank_or_no_summary_has_no_stats():
    assert all_ranks_stats([summary_of(0)], 1) is None
    assert all_ranks_stats([], 4) is None


@pytest.mark.parametrize("section", ["data_loading", "forward_pass", "backward_pass", "other"])
def test_the_cause_is_the_section_with_excess_time(section):
    stats = all_ranks_stats(slow_in(section, 20.0, hottest_lines={section: "train.py:31 fetch"}), 4)
    slow = stats.ranks[3]
    assert (slow.cause, slow.place) == (section, "train.py:31 fetch")
    assert slow.cause_s == pytest.approx(0.020)
    assert slow.work_s == pytest.approx(0.048)
    assert slow.against_best == pytest.approx(48 / 28)
    assert [one.cause for one in stats.ranks[:3]] == ["", "", ""]


def test_a_nested_section_can_be_the_cause():
    def nested(ms: float) -> dict[str, RankSection]:
        own_ns = round(100 * ms * MS)
        return {
            "forward_pass": RankSection(100, 1000 * MS + own_ns, 1000 * MS + own_ns, 1000 * MS),
            "attention": RankSection(100, own_ns, own_ns, own_ns),
        }

    ranks = [summary_of(0, others=nested(5.0), sync_ms=10.0), summary_of(1, others=nested(12.0), sync_ms=3.0)]
    assert all_ranks_stats(ranks, 2).ranks[1].cause == "attention"


def test_without_known_sync_there_is_no_work():
    stats = all_ranks_stats(slow_in("backward_pass", 20.0, knows_sync=False), 4)
    assert {(one.work_s, one.sync_s, one.against_best, one.cause) for one in stats.ranks} == {(None, None, None, "")}
    assert (stats.sync_share, stats.waiting_share, stats.transfer_share) == (None, None, None)
    assert {one.step_s for one in stats.ranks} == {0.051}


def test_work_between_steps_is_per_span_and_names_ranks_without_it():
    save = {"checkpointing": RankSection(4, 2000 * MS)}
    ranks = [summary_of(one, sections=SECTIONS, others=save if one == 0 else {}) for one in range(3)]
    spread = {one.name: one for one in all_ranks_stats(ranks, 3).sections}["checkpointing"]
    assert (spread.ranks, spread.max_s, spread.is_of_step) == (1, 0.5, False)
    assert spread.never_on == (1, 2)
    assert spread.slowest_total_s == 2.0


def test_device_times_are_used_if_all_ranks_have_them():
    def on(device_ms: float) -> dict[str, RankSection]:
        ns = round(100 * device_ms * MS)
        return {"forward_pass": RankSection(100, 100 * MS, 100 * MS, 100 * MS, 100, ns, ns, ns)}

    by_device = all_ranks_stats([summary_of(0, others=on(10), sync_ms=8), summary_of(1, others=on(15))], 2)
    assert (by_device.sections[0].is_device, by_device.sections[0].max_s) == (True, 0.015)
    assert (by_device.ranks[1].cause, by_device.ranks[1].cause_s) == ("forward_pass", pytest.approx(0.005))
    host = all_ranks_stats([summary_of(0, others=on(10)), summary_of(1, sections={"forward_pass": 1.5})], 2)
    assert (host.sections[0].is_device, host.sections[0].max_s) == (False, 0.0015)


def test_missing_and_silent_ranks_are_listed():
    ranks = [summary_of(0), summary_of(1, inside=["backward_pass"]), summary_of(3, is_final=True, ended_by="SIGTERM")]
    stats = all_ranks_stats(ranks, 4, age_s={0: 0.0, 1: 35.0, 3: 35.0}, silent_after_s=30.0)
    assert (stats.missing, stats.silent) == ((2,), (1,))
    assert (stats.ranks[1].heard_s_ago, stats.ranks[1].inside) == (35.0, ("backward_pass",))
    assert stats.ranks[2].ended_by == "SIGTERM"


def test_a_rank_without_a_step_after_warmup_has_no_stats():
    stats = all_ranks_stats([*slow_in("forward_pass", 5.0)[:3], summary_of(3, steps=2, warmup=2)], 4)
    assert (stats.ranks[3].step_s, stats.ranks[3].work_s) == (None, None)
    assert all(one.never_on == () or one.ranks == 3 for one in stats.sections)


def test_hosts_are_grouped_and_scored_against_the_best():
    ranks = [summary_of(one, sync_ms=13.0 if one < 2 else 3.0) for one in range(4)]
    hosts = all_ranks_stats(ranks, 4).hosts
    assert [(one.host, one.ranks) for one in hosts] == [("node0", (0, 1)), ("node1", (2, 3))]
    assert [one.against_best for one in hosts] == [1.0, pytest.approx(28 / 18)]


def test_machines_of_one_name_differ_by_node_number():
    ranks = [summary_of(one, who=RankId(one, 2, "localhost", node=one)) for one in range(2)]
    assert [one.host for one in all_ranks_stats(ranks, 2).hosts] == ["localhost (node 0)", "localhost (node 1)"]


def test_interval_stats_leave_out_earlier_steps():
    before = {one.who.rank: one for one in slow_in("data_loading", 0.0)}
    after = [
        summary_of(
            one,
            steps=200,
            number=2,
            step_ms=(31 + 51) / 2,
            sync_ms=(3 + 3 + (0 if one == 3 else 20)) / 2,
            sections={**SECTIONS, "data_loading": (1 + 1 + (20 if one == 3 else 0)) / 2},
        )
        for one in range(4)
    ]
    stats = all_ranks_stats(after, 4, before=before)
    assert (stats.ranks[3].step_s, stats.ranks[3].work_s) == (pytest.approx(0.051), pytest.approx(0.048))
    assert stats.ranks[3].cause == "data_loading"
    assert stats.ranks[3].cause_s == pytest.approx(0.020)
    assert stats.sync_share == pytest.approx((3 * 23 + 3) / 4 / 51)


def test_a_section_entered_before_is_not_never_entered():
    fetch = {"first_fetch": RankSection(1, 5 * MS)}
    before = {0: summary_of(0, others=fetch)}
    ranks = [summary_of(0, steps=200, number=2, others=fetch), summary_of(1, steps=200, number=2, others=fetch)]
    (spread,) = [one for one in all_ranks_stats(ranks, 2, before=before).sections if one.name == "first_fetch"]
    assert (spread.ranks, spread.never_on) == (1, ())


def test_a_rank_that_became_slower_has_the_step():
    one = summary_of(1, steps=600, sync_ms=2.0, step_times=buckets(*[30.0] * 6, *[45.0] * 6))
    slow = all_ranks_stats([summary_of(0, steps=600), one], 2).ranks[1]
    assert (slow.slower_since_step, slow.against_itself) == (300, 1.5)


rows = st.integers(2, 9).flatmap(
    lambda ranks: st.lists(
        st.lists(st.floats(0, 100, allow_nan=False), min_size=ranks, max_size=ranks), min_size=1, max_size=4
    )
)


@given(values=rows)
def test_medians_of_others_match_brute_force(values):
    expected = [[median(row[:i] + row[i + 1 :]) for i in range(len(row))] for row in values]
    assert np.allclose(medians_of_others(np.array(values)), expected)


@given(ms=st.lists(st.integers(1, 1000), min_size=2, max_size=12))
def test_the_spread_matches_brute_force(ms):
    ranks = [summary_of(at, step_ms=2000, sections={"forward_pass": one}) for at, one in enumerate(ms)]
    (spread,) = all_ranks_stats(ranks, len(ms)).sections
    assert spread.min_s == pytest.approx(min(ms) / 1000)
    assert spread.median_s == pytest.approx(median(ms) / 1000)
    assert spread.max_s == pytest.approx(max(ms) / 1000)
    assert spread.imbalance == pytest.approx(max(ms) / (sum(ms) / len(ms)) - 1, abs=1e-9)
    assert spread.slowest.rank == ms.index(max(ms))


counts = st.integers(0, 5) | st.integers(0, 2**62)
sections = st.dictionaries(
    st.sampled_from(["data_loading", "synchronization", "other"]), st.builds(RankSection, *[counts] * 8), max_size=3
)
blocks = st.dictionaries(
    st.sampled_from([0, 16, 32]), st.lists(st.integers(-1, 3), min_size=16, max_size=16), max_size=3
)
any_sums = st.builds(
    RankSummary,
    who=st.builds(RankId, rank=st.integers(0, 3), world_size=st.just(4), host=st.sampled_from("ab")),
    number=counts,
    steps=counts,
    settled_steps=counts,
    settled_ns=counts,
    sync_ns=counts,
    knows_sync=st.booleans(),
    sections=sections,
    step_times=st.lists(st.builds(StepTimeBucket, counts, counts, counts), max_size=12),
    blocks=blocks,
    sync_points=st.lists(st.builds(RankSyncPoint, st.sampled_from("xy"), counts, counts), max_size=2),
)


@pytest.mark.filterwarnings("error")
@given(ranks=st.lists(any_sums, max_size=5), before=st.dictionaries(st.integers(0, 3), any_sums, max_size=2))
def test_any_summaries_give_stats_without_warnings(ranks, before):
    with np.errstate(all="warn"):
        stats = all_ranks_stats(ranks, 4, before=before)
    assert (stats is None) == (not ranks)
    if stats is not None:
        json.dumps(as_data(Snapshot(ranks=stats), []), allow_nan=False)
        rank_lines(Snapshot(ranks=stats), Layout())


@pytest.mark.parametrize(
    ("means_ms", "warmup", "history"),
    [
        ([30.0] * 7, 0, None),  # too few
        ([0.0] * 12, 0, None),
        ([30.0] * 10, 1000, None),
        ([30.0] * 4 + [45.0] * 8, 0, History(1.5, 200)),
        ([45.0] * 4 + [30.0] * 8, 0, History(pytest.approx(2 / 3))),  # for the better
        ([30.0] * 6 + [32.7] * 6, 0, History(pytest.approx(1.09))),  # less than a tenth
        ([30.0] * 6 + [300.0] + [30.0] * 5, 0, None),  # one slow bucket
        ([3.0, 3.0] + [30.0] * 10, 60, None),  # warm-up
    ],
)
def test_a_clear_change_has_its_step_and_other_changes_have_none(means_ms, warmup, history):
    found = history_of(buckets(*means_ms), warmup)
    assert found == history or (history is None and found.slower_since_step is None)


def test_noise_seldom_looks_like_a_change():
    chance = random.Random(7)
    noisy = [history_of(buckets(*(chance.uniform(24, 36) for _ in range(12)))) for _ in range(500)]
    assert sum(one.slower_since_step is not None for one in noisy) < 25


def blocks_of(steps: int, sync_ms) -> dict[int, list[int]]:
    """Return the complete blocks of a rank with this many steps, from ``sync_ms(step)``."""
    blocks = (steps + 15) // 16
    firsts = [16 * block for block in range(steps // 16) if block % block_stride(blocks) == 0]
    return {first: [round(sync_ms(step) * MS) for step in range(first, first + 16)] for first in firsts}


def test_steps_unknown_to_one_rank_are_not_compared():
    unknown = {0: [-1] * 4 + [2 * MS] * 12}
    found = waiting_parts([summary_of(0, blocks=unknown, steps=16), summary_of(1, blocks={0: [MS] * 16}, steps=16)])
    assert (found.part, found.steps) == ({0: 0.5, 1: 0.0}, 12)


def test_warmup_is_not_compared():
    slow_start = {0: [900 * MS] * 3 + [2 * MS] * 13}
    found = waiting_parts(
        [summary_of(0, blocks=slow_start, steps=16), summary_of(1, blocks={0: [MS] * 16}, steps=16)], 3
    )
    assert (found.part, found.steps) == ({0: 0.5, 1: 0.0}, 13)


def test_ranks_are_compared_after_another_has_ended():
    ranks = [summary_of(r, steps=1000, blocks=blocks_of(1000, lambda _, r=r: r + 1)) for r in (0, 1)]
    dead = summary_of(2, steps=40, blocks=blocks_of(40, lambda _: 1))
    assert waiting_parts([*ranks, dead]).steps == waiting_parts(ranks).steps > 16


def test_a_block_missing_from_a_rank_is_not_compared():
    ranks = [summary_of(0, blocks={0: [MS] * 16, 16: [MS] * 16}), summary_of(1, blocks={16: [MS] * 16}, steps=100)]
    assert waiting_parts(ranks).steps == 16


def test_too_few_steps_or_a_single_rank_have_no_waiting():
    assert waiting_parts([summary_of(0, blocks=blocks_of(100, lambda _: 1))]) is None
    assert waiting_parts([summary_of(0), summary_of(1)]) is None
    unknown = {0: [-1] * 9 + [MS] * 7}
    assert waiting_parts([summary_of(0, blocks=unknown), summary_of(1, blocks={0: [MS] * 16})]) is None


def test_ranks_with_unknown_sync_are_left_out():
    blocks = blocks_of(32, lambda _: 1)
    found = waiting_parts(
        [summary_of(0, blocks=blocks), summary_of(1, blocks=blocks), summary_of(2, blocks=blocks, knows_sync=False)]
    )
    assert found.part == {0: 0.0, 1: 0.0}


@given(st.lists(st.lists(st.integers(0, 50), min_size=32, max_size=32), min_size=2, max_size=5))
def test_waiting_and_transfer_add_up_to_synchronization(sync_ms):
    ranks = [
        summary_of(
            rank,
            steps=32,
            step_ms=100,
            sync_ms=sum(ms) / 32,
            blocks={0: [one * MS for one in ms[:16]], 16: [one * MS for one in ms[16:]]},
        )
        for rank, ms in enumerate(sync_ms)
    ]
    stats = all_ranks_stats(ranks, len(ranks))
    transfer_ms = sum(min(step) for step in zip(*sync_ms, strict=True)) / 32
    if stats.sync_share is None:
        assert sum(map(sum, sync_ms)) == 0
        return
    assert stats.waiting_share + stats.transfer_share == pytest.approx(stats.sync_share, rel=1e-12)
    assert stats.transfer_share == pytest.approx(transfer_ms / 100, abs=1e-9)
    for row, ms in zip(stats.ranks, sync_ms, strict=True):
        assert row.waiting_s * 1000 == pytest.approx(sum(ms) / 32 - transfer_ms, abs=1e-6)


def on(host: str, rank: int, *meetings: tuple[str, int, int]):
    return summary_of(rank, who=RankId(rank, 4, host), sync_points=[RankSyncPoint(*one) for one in meetings])


def test_one_machine_has_one_clock():
    assert clock_stats([on("a", 0, ("all:0", 1, 2)), on("a", 1, ("all:0", 1, 2))]) is None


def test_each_sync_point_narrows_the_offset():
    ranks = [
        on("a", 0, ("all:0", 100, 200), ("all:1", 300, 340)),
        on("b", 1, ("all:0", 1100, 1200), ("all:1", 1310, 1350)),
    ]
    (_, offset) = clock_offsets(ranks).values()
    assert (offset.low_ns, offset.high_ns, offset.sync_points) == (-1050, -970, 2)
    assert clock_stats(ranks) == ClockStats(hosts=2, aligned_hosts=2, error_s=40e-9, meetings=2)


def test_a_clock_that_was_set_is_not_aligned():
    ranks = [
        on("a", 0, ("all:0", 100, 200), ("all:1", 300, 400)),
        on("b", 1, ("all:0", 100, 200), ("all:1", 9300, 9400)),
    ]
    assert clock_stats(ranks) == ClockStats(hosts=2, aligned_hosts=0)


def test_without_a_common_sync_point_a_clock_is_not_aligned():
    ranks = [on("a", 0, ("all:0", 100, 200)), on("b", 1, ("all:0", 100, 200)), on("c", 2, ("all:9", 1, 2))]
    assert clock_stats(ranks) == ClockStats(hosts=3, aligned_hosts=2, error_s=100e-9, meetings=1)


@given(
    offset=st.integers(-(10**9), 10**9),
    meetings=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**6)),
        min_size=1,
        max_size=20,
    ),
)
def test_the_true_offset_is_always_within_the_interval(offset, meetings):
    first, other = [], []
    for at, (late_a, late_b, stays_a, stays_b) in enumerate(meetings):
        begin = at * 10**8
        together = begin + max(late_a, late_b)
        first.append((f"all:{at}", begin + late_a, together + stays_a))
        other.append((f"all:{at}", begin + late_b - offset, together + stays_b - offset))
    known = clock_offsets([on("a", 0, *first), on("b", 1, *other)])["b", None]
    assert known.low_ns <= offset <= known.high_ns
    assert clock_stats([on("a", 0, *first), on("b", 1, *other)]).error_s == pytest.approx(
        (known.high_ns - known.low_ns) / 2e9
    )
