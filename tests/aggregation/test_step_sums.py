"""What grows in each step."""

import math
import random
import statistics as exact

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.aggregation.step_change import explained_by_calls, work_growth
from training_profiler.aggregation.step_totals import CaptureAffectedSteps, Coupling, InputWork, StepPoint, StepSums
from training_profiler.statistics.trend import Series

MS = 1_000_000
durations = st.lists(st.integers(1, 10**9), min_size=1, max_size=200)


def sums_of(durations_ns, chunk=7):
    sums = StepSums()
    for begin in range(0, len(durations_ns), chunk):
        sums.add(durations_ns[begin : begin + chunk])
    return sums


def series(sums):
    return [(step, ns) for step, ns, _ in sums.work_series()]


@given(durations, st.integers(1, 80))
def test_mean_and_deviation_cover_all_steps(durations_ns, chunk):
    spread = sums_of(durations_ns, chunk).spread()
    assert spread.count == len(durations_ns)
    assert spread.mean_ns == pytest.approx(exact.fmean(durations_ns), rel=1e-12)
    std = exact.stdev(durations_ns) if len(durations_ns) > 1 else 0.0
    assert spread.std_ns == pytest.approx(std, rel=1e-9, abs=1e-3)


@given(durations, st.integers(1, 64))
def test_mean_and_deviation_leave_out_first_steps(durations_ns, without_first):
    spread = sums_of(durations_ns).spread(without_first)
    rest = durations_ns[without_first:]
    assert (spread is None) == (not rest)
    if rest:
        assert spread.count == len(rest)
        assert spread.mean_ns == pytest.approx(exact.fmean(rest), rel=1e-12)


@given(durations, st.integers(1, 80))
def test_the_longest_step_has_its_number(durations_ns, chunk):
    sums = sums_of(durations_ns, chunk)
    assert sums.longest() == (max(durations_ns), durations_ns.index(max(durations_ns)) + 1)


def test_a_million_steps_are_kept_in_bounded_memory():
    sums = StepSums()
    for _ in range(1_000):
        sums.add([1_000] * 1_000)
    assert len(sums.first_ns) == 64
    assert 512 <= len(series(sums)) <= 1024


@given(st.integers(1, 20_000), st.integers(1, 3_000))
def test_the_series_covers_every_step_once(count, chunk):
    sums = sums_of(list(range(1, count + 1)), chunk)
    total = 0.0
    before = 0.0
    for middle, mean in series(sums):
        steps = 2 * (middle - before) - 1  # a point's steps follow the previous point's
        total += steps * mean
        before += steps
    assert before == count
    assert math.isclose(total, count * (count + 1) / 2)


@pytest.mark.parametrize(
    ("durations_ns", "configured", "warmup"),
    [
        ([50, 40, *[10] * 20], None, 2),
        ([29_000, *[10_000] * 20], None, 0),  # less than 3 medians
        ([10, 50, *[10] * 20], None, 0),  # after a fast one
        ([500, *[10] * 8], None, 0),  # too few steps
        ([500, *[10] * 9], None, 1),
        ([10] * 20, 3, 3),
        ([10] * 2, 3, 2),
    ],
)
def test_slow_first_steps_are_warm_up(durations_ns, configured, warmup):
    assert sums_of(durations_ns).warmup_steps(configured) == warmup


@pytest.mark.parametrize(
    ("inspected", "long"),
    [(12, 10), (9, 9), (8, 0), (0, 0), (30, 10), (31, 0)],
    ids=["two of them", "one of them", "none of them", "nothing was inspected", "ten others remain", "fewer remain"],
)
def test_first_steps_that_inspections_made_long(inspected, long):
    assert sums_of([20_000] * 8 + [21_000] * 2 + [10_000] * 30).steps_made_long(inspected) == long


@pytest.mark.parametrize(
    ("durations_ns", "slowed", "without_first", "p95_ns"),
    [
        ([90_000] * 5 + list(range(1_000, 101_000, 1_000)), [], 5, 95_000),
        ([50_000, *[1_000] * 40, 70_000, 60_000, 80_000], [0, 41, 42, 43], 1, 1_000),
        ([1_000] * 21, [], 1, 1_000),
        ([1_000] * 20, [], 1, None),
    ],
)
def test_p95_is_the_nearest_rank_of_twenty_steps_that_neither_warm_up_nor_a_capture_slowed(
    durations_ns, slowed, without_first, p95_ns
):
    sums = StepSums()
    sums.add(durations_ns, slowed)
    assert sums.p95_ns(without_first) == (p95_ns and pytest.approx(p95_ns, rel=0.01))


def test_without_steps_there_are_no_stats():
    sums = StepSums()
    assert sums.p95_ns() is None
    assert (sums.median_ns(), sums.spread(), sums.warmup_steps(), series(sums)) == (None, None, 0, [])


def test_the_median_of_few_steps_is_exact():
    sums = StepSums()
    sums.add([37_588_000_001, 47_744_000_000])
    assert sums.median_ns() == (37_588_000_001 + 47_744_000_000) / 2
    sums.add([37_588_000_003], slowed=[0])
    assert sums.median_ns() == (37_588_000_001 + 47_744_000_000) / 2


def coupling_of(self_ns, chunk=9):
    coupling = Coupling(rows=1)
    for begin in range(0, len(self_ns), chunk):
        part = Coupling(rows=self_ns.shape[1])
        part.add_steps(begin, self_ns[begin : begin + chunk])
        coupling.add(part)
    return coupling


@given(st.integers(0, 2**31), st.integers(1, 50))
def test_explained_parts_add_up_to_one(seed, chunk):
    self_ns = np.random.default_rng(seed).integers(10**6, 10**9, (50, 4))
    assert coupling_of(self_ns, chunk).explained().sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(slice(None, None, 3), 1, 5)], [0, 1, 0]),
        ([(slice(None, None, 2), 1, 4), (slice(None, None, 2), 2, -2)], [0, 2, -1]),
        ([(slice(10), 1, 890), (50, 2, 10)], [0, 0, 1]),
    ],
    ids=["with the step", "against it", "the first ten explain nothing"],
)
def test_sections_explain_steps_as_they_vary_with_them(changes, expected):
    self_ns = np.full((100, 3), 10 * MS)
    for steps, section, more_ms in changes:
        self_ns[steps, section] += more_ms * MS
    assert coupling_of(self_ns).explained().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("steps", "step_ns"), [(1000, 100_000_000), (1000, 333_333_333), (1000, 7), (11, 10)])
def test_equal_steps_or_a_single_one_have_nothing_to_explain(steps, step_ns):
    assert coupling_of(np.full((steps, 3), step_ns)).explained().tolist() == [0, 0, 0]


def test_steps_slowed_by_capture_enter_count_and_total_only():
    sums = StepSums()
    sums.add([10] * 40)
    sums.add([10, 50, 50, 10], slowed=[1, 2])
    sums.add([10] * 40)
    sums.add([12, 70, 10, 10], slowed=[1])
    all_steps, own = sums.spread(1), sums.normal_spread(1)
    assert (sums.count, sums.total_ns) == (88, 1022)
    assert (all_steps.count, all_steps.total_ns) == (87, pytest.approx(1012))
    assert (own.count, own.mean_ns) == (84, pytest.approx(842 / 84))
    assert sums.longest(1) == (12, 85)
    assert sums.median_ns() == pytest.approx(10, rel=0.01)
    assert max(ns for _, ns in series(sums)) == 12


def test_if_most_steps_are_slowed_stats_cover_all():
    sums = StepSums()
    sums.add([500, 20, 30, 20, 20], slowed=[1, 2, 3, 4])
    assert sums.normal_spread(1) == sums.spread(1)
    assert sums.longest(1) == (30, 3)
    assert sums.slowed_count == 4
    assert sums.median_ns() == pytest.approx(20, rel=0.01)


def test_slowed_steps_explain_nothing():
    with_window, without = Coupling(), Coupling()
    rows = np.array([[0, 100 + i % 3, 50] for i in range(30)], np.int64) * 1000
    slow = np.array([[0, 100, 5000]], np.int64) * 1000
    without.add_steps(10, rows)
    with_window.add_steps(10, np.concatenate([rows[:9], slow, rows[9:]]), slowed=[9])
    assert with_window.count == 30
    assert with_window.explained().tolist() == pytest.approx(without.explained().tolist())


def points(calls_of, ns_of, steps=200):
    draw = random.Random(0)
    return [StepPoint(step, ns_of(step) * draw.uniform(0.95, 1.05), calls_of(step)) for step in range(1, steps + 1)]


def sizes_of(elements_of, steps=200, every=8):
    sizes = Series()
    for step in range(1, steps + 1, every):
        sizes.add(step, elements_of(step))
    return sizes


@pytest.mark.parametrize(
    ("calls_of", "ns_of", "sizes", "unit", "rise", "unit_rise"),
    [
        (lambda step: 10 + step, lambda step: 1e6 * (10 + step), Series(), "forward passes", 10, 0),
        (lambda _: 1, lambda step: 1e6 * step, sizes_of(lambda step: 32 * (20 + step)), "input elements", 10, 0.513),
        # Sizes by update, where a step has two of them.
        (lambda _: 2, lambda step: 1e6 * (20 + step), sizes_of(lambda at: 40 + at, steps=400), "input elements", 9, 0),
    ],
)
def test_longer_episodes_and_larger_inputs_are_more_work(calls_of, ns_of, sizes, unit, rise, unit_rise):
    growth = work_growth(points(calls_of, ns_of), sizes)
    assert growth.unit == unit
    assert growth.rise == pytest.approx(rise, rel=0.3)
    assert growth.unit_rise == pytest.approx(unit_rise, rel=0.3, abs=0.15)


@pytest.mark.parametrize(
    ("calls", "ns_of", "elements_of"),
    [
        (4, lambda step: 1e6 * step, lambda step: 640),
        (1, lambda step: 1e6, lambda step: random.Random(step).randint(10, 100)),
        (0, lambda step: 1e6 * step, None),
    ],
    ids=["the same", "of random length", "unknown"],
)
def test_other_work_does_not_grow(calls, ns_of, elements_of):
    sizes = Series() if elements_of is None else sizes_of(elements_of)
    assert work_growth(points(lambda step: calls, ns_of), sizes) is None
    assert work_growth([], Series()) is None


@pytest.mark.parametrize("chunk", [1, 7, 5000])
def test_forward_passes_stay_with_their_steps(chunk):
    sums = StepSums()
    calls = [step // 100 for step in range(5000)]
    for begin in range(0, 5000, chunk):
        sums.add([1000] * len(calls[begin : begin + chunk]), (), calls[begin : begin + chunk])
    series = sums.work_series()
    assert len(series) <= 1024
    assert sum(point.calls for point in series) / len(series) == pytest.approx(sum(calls) / 5000, rel=0.05)
    assert [point.calls for point in series] == sorted(point.calls for point in series)


def test_episodes_of_different_length_explain_step_times_and_equal_ones_nothing():
    draw = random.Random(1)
    lengths = [draw.randint(10, 300) for _ in range(201)]
    assert explained_by_calls(points(lambda step: lengths[step], lambda step: 1e6 * lengths[step])) > 0.9
    assert explained_by_calls(points(lambda step: lengths[step], lambda step: 1e6 * lengths[-step])) < 0.1
    for calls in (0, 4):
        assert explained_by_calls(points(lambda step, calls=calls: calls, lambda step: 1e6 * step)) == 0
    assert explained_by_calls([]) == 0


LENGTHS = [random.Random(step).randint(10, 300) for step in range(200)]


def work_of(durations_ns, sizes, stretch=50):
    """Return the work of steps that arrive in stretches, with the inputs of updates counted from 1."""
    work = InputWork()
    for first in range(0, len(durations_ns), stretch):
        seen = [(1, float(step + 1), float(size)) for step, size in sizes if first <= step < first + stretch]
        work.add(first, durations_ns[first : first + stretch], seen)
    return work


@pytest.mark.parametrize("power", [1, 2])
def test_inputs_of_any_length_explain_step_times(power):
    durations = [5 * MS + MS * length**power // 100 for length in LENGTHS]
    some = [(step, LENGTHS[step]) for step in range(200) if step < 64 or step % 16 == 0]
    assert work_of(durations, some).explained() > 0.9


def test_inputs_of_several_forward_passes_are_work_of_their_step_and_means_of_several_steps_are_left_out():
    durations = [MS * length for length in LENGTHS]
    halves = [(step, part) for step in range(60) for part in (LENGTHS[step] // 3, LENGTHS[step] - LENGTHS[step] // 3)]
    assert work_of(durations, halves).explained() == pytest.approx(1.0)
    means = InputWork()
    means.add(0, durations, [(2, 2.0 * step, 2.0 * LENGTHS[step]) for step in range(1, 99)])
    assert means.explained() == 0.0


@pytest.mark.parametrize(
    ("durations", "sizes"),
    [
        ([MS * length for length in LENGTHS], [(step, 64) for step in range(64)]),
        ([MS * (40 if step % 10 == 0 else 5) for step in range(200)], list(enumerate(LENGTHS[:64]))),
        ([5 * MS] * 200, list(enumerate(LENGTHS[:64]))),
        ([MS * length for length in LENGTHS], list(enumerate(LENGTHS[:19]))),
        ([MS * length for length in LENGTHS], []),
        (
            [(90 if step < 10 else 5) * MS for step in range(200)],
            [(step, 99 if step < 10 else 64) for step in range(64)],
        ),
    ],
    ids=["inputs of one size", "stalls", "steps of one length", "few are known", "none is known", "warm-up"],
)
def test_other_steps_are_not_explained_by_their_inputs(durations, sizes):
    assert work_of(durations, sizes).explained() < 0.1


def test_steps_are_slowed_from_begin_to_end_or_until_there_is_one():
    slowed = CaptureAffectedSteps()
    slowed.begin(5)
    assert slowed.among(before=0, count=6) == [4, 5]
    slowed.end(8)
    slowed.end(9)  # without a window
    assert slowed.among(before=0, count=10) == [4, 5, 6, 7]
    assert slowed.among(before=6, count=10) == [0, 1]
    assert slowed.among(before=8, count=10) == []
    slowed.begin(11)
    assert slowed.among(before=4, count=7) == [0, 1, 2, 3, 6]


def test_steps_are_settled_after_the_fifth_but_not_beside_a_capture_window():
    run = FakeRun()
    settled_ns = []
    for number in range(1, 9):
        run.step(forward_pass=0.5)
        if number == 5:
            fifth_ns = run.clock()
        if number == 6:
            run.accumulator.slowed_by_capture.begin(7)
        if number == 7:
            run.accumulator.slowed_by_capture.end(8)
        if number in (4, 6, 7, 8):
            run.drain()
            settled_ns.append(run.accumulator.settled_ns())
            run.accumulator.pop_totals()
    assert settled_ns == [None, fifth_ns, None, None]
    run.step(forward_pass=0.5)
    run.drain()
    assert run.accumulator.settled_ns() == fifth_ns
