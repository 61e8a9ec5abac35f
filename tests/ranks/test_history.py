"""Whether a rank became slower over the run: the split, and noise."""

import random

import pytest

from tests.support.ranks import buckets
from training_profiler.ranks.comparison import History, history_of


def test_too_few_buckets_have_no_history():
    assert history_of(buckets(*[30.0] * 7)) is None


def test_a_clear_change_has_its_step():
    assert history_of(buckets(*[30.0] * 4, *[45.0] * 8)) == History(1.5, 200)


def test_a_change_for_the_better_has_no_step():
    assert history_of(buckets(*[45.0] * 4, *[30.0] * 8)) == History(pytest.approx(2 / 3))


def test_a_change_of_less_than_a_tenth_has_no_step():
    assert history_of(buckets(*[30.0] * 6, *[32.7] * 6)) == History(pytest.approx(1.09))


def test_one_slow_bucket_is_not_a_change():
    assert history_of(buckets(*[30.0] * 6, 300.0, *[30.0] * 5)).slower_since_step is None


def test_buckets_with_warmup_do_not_count():
    assert history_of(buckets(3.0, 3.0, *[30.0] * 10), 60).slower_since_step is None
    assert history_of(buckets(*[30.0] * 10), 1000) is None


def test_noise_seldom_looks_like_a_change():
    chance = random.Random(7)
    noisy = [history_of(buckets(*(chance.uniform(24, 36) for _ in range(12)))) for _ in range(500)]
    assert sum(one.slower_since_step is not None for one in noisy) < 25


def test_zero_work_has_no_history():
    assert history_of(buckets(*[0.0] * 12)) is None
