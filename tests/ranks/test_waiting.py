"""Waiting and transfer: the last rank to arrive only transfers, the excess of the others is waiting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ranks import MS, summary_of
from training_profiler.ranks.comparison import all_ranks_stats, waiting_parts
from training_profiler.recording.gradient_sync import block_stride


def blocks_of(steps: int, sync_ms) -> dict[int, list[int]]:
    """Return the complete blocks of a rank with this many steps, from ``sync_ms(step)``."""
    blocks = (steps + 15) // 16
    firsts = [16 * block for block in range(steps // 16) if block % block_stride(blocks) == 0]
    return {first: [round(sync_ms(step) * MS) for step in range(first, first + 16)] for first in firsts}


def test_the_last_rank_to_arrive_does_not_wait():
    ranks = [
        summary_of(0, sync_ms=4, blocks=blocks_of(100, lambda _: 4)),
        summary_of(1, sync_ms=1, blocks=blocks_of(100, lambda _: 1)),
    ]
    found = waiting_parts(ranks)
    assert (found.part, found.steps) == ({0: 0.75, 1: 0.0}, 96)
    stats = all_ranks_stats(ranks, 2)
    assert [one.waiting_s for one in stats.ranks] == [pytest.approx(0.003), 0.0]
    assert stats.sync_share == pytest.approx(2.5 / 31)
    assert stats.waiting_share == pytest.approx(1.5 / 31)
    assert stats.transfer_share == pytest.approx(1 / 31)
    assert stats.compared_steps == 96


def test_ranks_that_are_late_in_turn_all_wait():
    ranks = [
        summary_of(r, sync_ms=3, blocks=blocks_of(64, lambda step, r=r: 5 if step % 2 == r else 1)) for r in (0, 1)
    ]
    assert waiting_parts(ranks).part == {0: pytest.approx(4 / 6), 1: pytest.approx(4 / 6)}


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
