"""Which steps ranks compare: this depends on the step's number only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.model.ranks import (
    BLOCK_STEPS,
    MOST_BLOCKS,
    GradientSyncTotals,
    block_stride,
    compared_blocks,
    is_compared,
)


def test_the_first_128_steps_and_every_second_block_of_the_next_128_are_compared():
    later = (*range(128, 144), *range(160, 176), *range(192, 208), *range(224, 240))
    assert [step for step in range(256) if is_compared(step)] == [*range(128), *later]


@pytest.mark.parametrize("first", [0, 1, 15, 16, 127, 128, 129, 300, 4_095, 4_096, 100_003])
@pytest.mark.parametrize("count", [1, 16, 200, 5_000])
def test_compared_blocks_among_steps_are_those_of_each_step(first, count):
    compared = {step - step % BLOCK_STEPS for step in range(first, first + count) if is_compared(step)}
    assert list(compared_blocks(first, first + count)) == sorted(compared)


@given(blocks=st.integers(1, 10**7))
def test_the_stride_is_the_smallest_power_of_two_that_leaves_eight_blocks(blocks):
    stride = 1
    while blocks / stride > MOST_BLOCKS:
        stride *= 2
    assert block_stride(blocks) == stride


@given(step=st.integers(0, 10**8))
def test_the_block_number_decides_whether_a_step_is_compared(step):
    stride = 1
    while (step + 1) / (BLOCK_STEPS * stride) > MOST_BLOCKS:
        stride *= 2
    assert is_compared(step) == (step // BLOCK_STEPS % stride == 0)


@given(steps=st.integers(1, 50_000), other=st.integers(1, 50_000))
def test_ranks_at_different_steps_keep_blocks_in_common(steps, other):
    kept = [{block for block in range(n) if block % block_stride(n) == 0} for n in (steps, other)]
    assert min(map(len, kept)) >= 1
    assert 0 in kept[0] & kept[1]
    assert max(map(len, kept)) <= MOST_BLOCKS
    if steps <= other < 2 * steps:  # ranks in lock-step are much closer
        assert len(kept[0] & kept[1]) >= min(3, steps)


def test_exposed_time_is_total_minus_hidden():
    assert [GradientSyncTotals(1, 1, *ns).exposed_ns for ns in ((300, 100), (100, 300))] == [200, 0]
