"""The limits at small and large world sizes, written out."""

import pytest

from training_profiler.ranks.liveness import message_interval_s, outdated_after_s, unresponsive_after_s


@pytest.mark.parametrize(("world_size", "interval_s"), [(1, 1.0), (100, 1.0), (1024, 10.24), (16_384, 163.84)])
def test_all_ranks_together_send_at_most_100_messages_per_second(world_size, interval_s):
    assert message_interval_s(world_size) == interval_s


@pytest.mark.parametrize(("interval_s", "limit_s"), [(1.0, 10.0), (2.0, 10.0), (10.24, 51.2)])
def test_rank_is_unresponsive_after_five_intervals_and_ten_seconds(interval_s, limit_s):
    assert unresponsive_after_s(interval_s) == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("flush_s", "world_size", "limit_s"), [(10.0, 8, 60.0), (100.0, 8, 300.0), (10.0, 16_384, 491.52)]
)
def test_journal_is_outdated_after_three_flushes_and_a_minute(flush_s, world_size, limit_s):
    assert outdated_after_s(flush_s, world_size) == pytest.approx(limit_s)
