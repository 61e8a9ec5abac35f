""""""

import numpy as np
import pytest

from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.step_totals import StepBlocks
from training_profiler.model.interval import MOST_BLOCKS
from training_profiler.statistics.histogram import BIN_COUNT


def added(sums, ids, durations_ns, steps=None, is_measured=None):
    array = np.array(ids, np.int64)
    steps = np.array(steps if steps is not None else [0] * len(ids), np.int64)
    every = np.ones(len(ids), np.bool_)
    is_measured = every if is_measured is None else is_measured
    sums.add_spans(array, np.array(durations_ns, np.int64), np.zeros_like(array), steps, is_measured, every)
    return sums


def test_warmup_spans_count_for_totals_alone_and_the_first_of_equal_extremes_gives_the_step():
    measured = np.array([False, True, True, True, True])
    sums = added(SectionSums(), [1] * 5, [1000, 10, 20, 10, 20], steps=[1, 2, 3, 4, 5], is_measured=measured)
    assert (sums.count[1], sums.total_ns[1], sums.min_step[1], sums.max_step[1]) == (5, 1060, 2, 3)
    assert (sums.measured[1], sums.mean_ns[1], sums.max_ns[1], sums.bins[1].sum()) == (4, 15, 20, 4)


def test_growing_keeps_sums():
    sums = added(SectionSums(16), [1, 15], [10, 20])
    sums.grow(64)
    assert (sums.rows, sums.bins.shape) == (64, (64, BIN_COUNT))
    assert (sums.total_ns[1], sums.total_ns[15], sums.min_ns[15], sums.max_ns[1]) == (10, 20, 20, 10)


def test_adding_sums_equals_adding_their_spans():
    random = np.random.default_rng(1)
    ids, durations_ns = random.integers(1, 40, 300), random.integers(1, 10**9, 300)
    steps = np.arange(300)
    together = added(SectionSums(48), ids, durations_ns, steps)
    first = added(SectionSums(48), ids[:100], durations_ns[:100], steps[:100])
    first.add(added(SectionSums(48), ids[100:], durations_ns[100:], steps[100:]))
    for column in ("count", "total_ns", "min_ns", "max_ns", "min_step", "max_step", "bins", "measured"):
        assert np.array_equal(getattr(first, column), getattr(together, column)), column
    assert first.mean_ns == pytest.approx(together.mean_ns, rel=1e-12)
    assert first.m2 == pytest.approx(together.m2, rel=1e-9)
    assert first.parents == together.parents


@pytest.mark.parametrize(("rows", "later_rows"), [(16, 48), (48, 16)])
def test_sums_of_different_sizes_add_up(rows, later_rows):
    sums = added(SectionSums(rows), [1], [10])
    sums.add(added(SectionSums(later_rows), [1, 15], [20, 30]))
    assert (sums.rows, sums.total_ns[1], sums.total_ns[15]) == (48, 30, 30)


def series_of(*batches):
    series = StepBlocks()
    for batch in batches:
        series.add(np.array(batch, np.int64))
    return series


def test_few_steps_are_kept_one_by_one_and_a_later_section_had_no_time_before():
    series = series_of([[1, 10], [2, 20]], [[3, 30, 5]])
    assert series.steps_a_block == 1
    assert series.sums_ns.tolist() == [[1, 10, 0], [2, 20, 0], [3, 30, 5]]


def test_blocks_double_and_no_time_is_lost():
    steps = np.arange(2 * (MOST_BLOCKS * 5 + 3)).reshape(-1, 2)
    series = StepBlocks()
    for begin in range(0, len(steps), 7):
        series.add(steps[begin : begin + 7])
    assert series.steps == len(steps)
    assert series.steps_a_block == 8
    expected = np.add.reduceat(steps, np.arange(0, len(steps), 8))
    assert series.sums_ns.tolist() == expected.tolist()
