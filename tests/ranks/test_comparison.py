"""Stats of all ranks: spread, work, causes, hosts, silent ranks."""

import json
import random
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.ranks import MS, buckets, summary_of
from training_profiler.model.lines import StreamRepeats
from training_profiler.model.loader_workers import SamplePrints
from training_profiler.model.ranks import RankId
from training_profiler.model.snapshot import Snapshot
from training_profiler.ranks.comparison import (
    all_ranks_stats,
    clock_offsets,
    clock_stats,
    history_of,
    medians_of_others,
)
from training_profiler.ranks.summary import RankSection, RankSummary, RankSyncPoint, StepTimeBucket
from training_profiler.reports.layout import Layout
from training_profiler.reports.ranks import rank_lines
from training_profiler.reports.report_json import as_data


def test_a_single_rank_or_no_summary_has_no_stats():
    assert all_ranks_stats([summary_of(0)], 1) is None
    assert all_ranks_stats([], 4) is None


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
        ([30.0] * 4 + [45.0] * 8, 0, (1.5, 200)),
        ([45.0] * 4 + [30.0] * 8, 0, (pytest.approx(2 / 3), None)),  # for the better
        ([30.0] * 6 + [32.7] * 6, 0, (pytest.approx(1.09), None)),  # less than a tenth
        ([30.0] * 6 + [300.0] + [30.0] * 5, 0, None),  # one slow bucket
        ([3.0, 3.0] + [30.0] * 10, 60, None),  # warm-up
    ],
)
def test_a_clear_change_has_its_step_and_other_changes_have_none(means_ms, warmup, history):
    found = history_of(buckets(*means_ms), warmup)
    assert found == history or (history is None and found[1] is None)


def test_noise_seldom_looks_like_a_change():
    chance = random.Random(7)
    noisy = [history_of(buckets(*(chance.uniform(24, 36) for _ in range(12)))) for _ in range(500)]
    assert sum(since is not None for _, since in noisy) < 25


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


def test_samples_are_compared_once_those_of_all_ranks_are_known():
    def trained(first: int) -> SamplePrints:
        return SamplePrints(tuple((first + at, at + 1) for at in range(64)), 64)

    ranks = [replace(summary_of(rank), trained=trained(32 * rank)) for rank in range(3)]
    assert all_ranks_stats(ranks, 3).repeats == StreamRepeats(3, 128, 1.5, 0.0, False, 64)
    assert all_ranks_stats(ranks, 4).repeats is None
    assert all_ranks_stats([*ranks, summary_of(3)], 4).repeats is None
    assert all_ranks_stats([*ranks, replace(summary_of(3), trained=SamplePrints())], 4).repeats is None
