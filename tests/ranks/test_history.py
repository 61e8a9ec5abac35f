"""Whether a rank became slower over the run: the split, and noise."""

import random

import pytest

from tests.support.ranks import buckets
from training_profiler.ranks.comparison import History, history_of


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
