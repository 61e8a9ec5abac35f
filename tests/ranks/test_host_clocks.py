"""Offsets between machines' clocks, from sync points that no rank leaves before all have entered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ranks import summary_of
from training_profiler.ranks.comparison import clock_offsets, clock_stats
from training_profiler.ranks.summary import RankSyncPoint
from training_profiler.snapshot.ranks import ClockStats, RankId


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


def test_all_ranks_of_a_machine_narrow_its_offset():
    ranks = [on("a", 0, ("all:0", 100, 200)), on("b", 1, ("all:0", 1100, 1200)), on("b", 2, ("all:0", 1150, 1160))]
    (_, offset) = clock_offsets(ranks).values()
    assert (offset.low_ns, offset.high_ns) == (100 - 1160, 200 - 1150)


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
