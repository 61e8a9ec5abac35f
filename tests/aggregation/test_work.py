"""What grows in each step."""

import random

import pytest

from training_profiler.aggregation.step_totals import StepSums
from training_profiler.aggregation.work import InputWork, StepPoint, explained_by_calls, work_growth
from training_profiler.statistics.trend import Series


def points(calls_of, ns_of, steps=200):
    draw = random.Random(0)
    return [StepPoint(step, ns_of(step) * draw.uniform(0.95, 1.05), calls_of(step)) for step in range(1, steps + 1)]


def sizes_of(elements_of, steps=200, every=8):
    sizes = Series()
    for step in range(1, steps + 1, every):
        sizes.add(step, elements_of(step))
    return sizes


def test_longer_episodes_have_more_forward_passes():
    growth = work_growth(points(lambda step: 10 + step, lambda step: 1e6 * (10 + step)), Series())
    assert growth.unit == "forward passes"
    assert growth.rise == pytest.approx(10, rel=0.3)
    assert growth.unit_rise == pytest.approx(0, abs=0.1)


def test_larger_inputs_have_more_elements():
    growth = work_growth(points(lambda step: 1, lambda step: 1e6 * step), sizes_of(lambda step: 32 * (20 + step)))
    assert growth.unit == "input elements"
    assert growth.rise == pytest.approx(200 / 20, rel=0.3)


def test_the_same_work_does_not_grow():
    assert work_growth(points(lambda step: 4, lambda step: 1e6 * step), sizes_of(lambda step: 640)) is None


def test_inputs_of_random_length_do_not_grow():
    draw = random.Random(1)
    assert work_growth(points(lambda step: 1, lambda step: 1e6), sizes_of(lambda step: draw.randint(10, 100))) is None


def test_unknown_work_does_not_grow():
    assert work_growth([], Series()) is None
    assert work_growth(points(lambda step: 0, lambda step: 1e6 * step), Series()) is None


def test_sizes_by_update_fit_steps_of_several_updates():
    growth = work_growth(
        points(lambda step: 2, lambda step: 1e6 * (20 + step)), sizes_of(lambda update: 40 + update, steps=400)
    )
    assert growth.unit == "input elements"
    assert growth.unit_rise == pytest.approx(0, abs=0.15)


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


def test_episodes_of_different_length_explain_step_times():
    draw = random.Random(1)
    lengths = [draw.randint(10, 300) for _ in range(201)]
    assert explained_by_calls(points(lambda step: lengths[step], lambda step: 1e6 * lengths[step])) > 0.9
    assert explained_by_calls(points(lambda step: lengths[step], lambda step: 1e6 * lengths[-step])) < 0.1


LENGTHS = [random.Random(step).randint(10, 300) for step in range(200)]
MS = 1_000_000


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


def test_inputs_of_several_forward_passes_are_work_of_their_step():
    durations = [MS * length for length in LENGTHS]
    halves = [(step, part) for step in range(60) for part in (LENGTHS[step] // 3, LENGTHS[step] - LENGTHS[step] // 3)]
    assert work_of(durations, halves).explained() == pytest.approx(1.0)


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


def test_means_of_the_inputs_of_several_steps_are_left_out():
    work = InputWork()
    work.add(0, [MS * length for length in LENGTHS], [(2, 2.0 * step, 2.0 * LENGTHS[step]) for step in range(1, 99)])
    assert work.explained() == 0.0


@pytest.mark.parametrize("calls", [0, 4])
def test_the_same_number_of_calls_explains_nothing(calls):
    assert explained_by_calls(points(lambda step: calls, lambda step: 1e6 * step)) == 0
    assert explained_by_calls([]) == 0
