import pytest

from training_profiler.model.ranks import GradientSyncTotals, is_compared


def blocks_before(steps):
    return [first for first in range(0, steps, 16) if is_compared(first)]


def test_the_first_128_steps_are_compared():
    assert all(is_compared(step) for step in range(128))


def test_later_every_other_block_of_16_is_compared():
    assert [step for step in range(128, 256) if is_compared(step)] == [
        step for first in (128, 160, 192, 224) for step in range(first, first + 16)
    ]


@pytest.mark.parametrize("step", [300, 5_000, 1_000_000])
def test_at_most_8_blocks_are_kept(step):
    every = 1
    while step + 1 > 128 * every:
        every *= 2
    held = [first for first in range(0, step + 1, 16) if first // 16 % every == 0]
    assert len(held) <= 8
    assert all(is_compared(first) for first in held)


def test_blocks_are_compared_as_a_whole():
    for first in range(0, 3_000, 16):
        assert len({is_compared(step) for step in range(first, first + 16)}) == 1


def test_dropped_blocks_stay_dropped():
    # 8 blocks twice as far apart, of which all later compared steps are part.
    assert blocks_before(4096)[-4:] == [2048, 2560, 3072, 3584]


def test_exposed_time_is_total_minus_hidden():
    assert GradientSyncTotals(1, 1, 300, 100).exposed_ns == 200
    assert GradientSyncTotals(1, 1, 100, 300).exposed_ns == 0
