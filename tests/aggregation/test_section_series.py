import numpy as np

from tests.support.recording import FakeRun
from training_profiler.aggregation.section_series import SectionSeries
from training_profiler.model.interval import MOST_BLOCKS, IntervalRecord
from training_profiler.storage.journal_codec import interval_of


def series_of(*batches):
    series = SectionSeries()
    for batch in batches:
        series.add(np.array(batch, np.int64))
    return series


def test_few_steps_are_kept_one_by_one():
    series = series_of([[1, 10], [2, 20]], [[3, 30]])
    assert series.steps_a_block == 1
    assert series.sums_ns.tolist() == [[1, 10], [2, 20], [3, 30]]


def test_blocks_double_and_no_time_is_lost():
    steps = np.arange(2 * (MOST_BLOCKS * 5 + 3)).reshape(-1, 2)
    series = SectionSeries()
    for begin in range(0, len(steps), 7):
        series.add(steps[begin : begin + 7])
    assert series.steps == len(steps)
    assert series.steps_a_block == 8
    expected = np.add.reduceat(steps, np.arange(0, len(steps), 8))
    assert series.sums_ns.tolist() == expected.tolist()


def test_a_section_that_comes_later_had_no_time_before():
    series = series_of([[1, 2]], [[3, 4, 5]])
    assert series.sums_ns.tolist() == [[1, 2, 0], [3, 4, 5]]


def test_the_journal_has_the_series_of_each_section_in_microseconds():
    run = FakeRun()
    for seconds in (0.1, 0.2):
        run.spend("forward_pass", seconds)
        run.step(optimizer_step=0.05)
    run.drain()
    totals, step_ns = run.accumulator.pop_totals()
    record = interval_of(IntervalRecord, totals, step_ns, run.names)
    assert record.steps_a_block == 1
    assert record.sections["forward_pass"].series_us == [100_000, 200_000]
    assert record.sections["optimizer_step"].series_us == [50_000, 50_000]


def test_without_steps_the_journal_has_no_series():
    run = FakeRun()
    run.spend("forward_pass", 0.1)
    run.drain()
    totals, step_ns = run.accumulator.pop_totals()
    record = interval_of(IntervalRecord, totals, step_ns, run.names)
    assert record.steps_a_block is None
    assert record.sections["forward_pass"].series_us == []
