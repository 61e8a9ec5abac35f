from dataclasses import replace

import numpy as np
import pytest

from training_profiler.model.series import RankSeries, Stretch
from training_profiler.statistics.compare import FASTER, NOT_SHOWN, SLOWER, NoComparisonError, compare
from training_profiler.statistics.run_series import settle


def noise(steps, random, spread=0.05, memory=0.5):
    """Return autocorrelated factors around 1."""
    shocks = random.standard_normal(steps + 50)
    values = np.zeros(steps + 50)
    for i in range(1, steps + 50):
        values[i] = memory * values[i - 1] + shocks[i]
    return np.exp(spread * values[50:] * np.sqrt(1 - memory**2))


def stretch_of(step_s, sections=None, **options):
    blocks_ns = {name: 1e9 * seconds for name, seconds in (sections or {}).items()}
    return Stretch(0, 0, 0, 1e9 * step_s, (), 1, blocks_ns, 0, {}, **options)


def series_of(stretches, warmup=0):
    return RankSeries(0, "", 0, 0, tuple(stretches), (), {}, {}, warmup=warmup)


def run_of(step_s, loading=0.3, stretch=50, **options):
    """Return a run whose steps load data for a part of their time, and compute for the rest."""
    loading_s = loading * step_s
    stretches = [
        stretch_of(
            step_s[begin : begin + stretch],
            sections={
                "data_loading": loading_s[begin : begin + stretch],
                "forward_pass": (step_s - loading_s)[begin : begin + stretch],
            },
            **options,
        )
        for begin in range(0, len(step_s), stretch)
    ]
    return series_of(stretches)


def test_equal_runs_seldom_differ():
    random = np.random.default_rng(1)
    wrong = sum(
        compare(run_of(0.1 * noise(300, random)), run_of(0.1 * noise(300, random))).verdict != NOT_SHOWN
        for _ in range(100)
    )
    assert wrong <= 5


def test_three_percent_in_500_noisy_steps_are_found():
    random = np.random.default_rng(2)
    found = sum(
        compare(run_of(0.1 * noise(500, random)), run_of(0.103 * noise(500, random))).verdict == SLOWER
        for _ in range(50)
    )
    assert found >= 40


def of_sections(loading_s, forward_s):
    """Return a run of steps that load data for so long, and compute for so long."""
    step_s = loading_s + forward_s
    return series_of([stretch_of(step_s, sections={"data_loading": loading_s, "forward_pass": forward_s})])


def test_a_section_that_changed_is_named_where_no_difference_of_the_steps_is_shown():
    random = np.random.default_rng(3)
    loading_s = [0.005 * noise(400, random, spread=0.01) * factor for factor in (1, 2)]
    forward_s = [0.1 * noise(400, random, spread=0.6, memory=0.95) for _ in range(2)]
    runs = list(map(of_sections, loading_s, forward_s))
    comparison = compare(*runs)
    assert comparison.verdict == NOT_SHOWN
    assert comparison.changed_most is not None
    assert comparison.changed_most.name == "data_loading"
    assert comparison.changed_most.seconds == pytest.approx(0.005, rel=0.05)
    assert compare(runs[0], runs[0]).changed_most is None
    few = [of_sections(loading[:14], forward[:14]) for loading, forward in zip(loading_s, forward_s, strict=True)]
    assert compare(*few).changed_most is None


def test_the_section_that_carries_the_difference_is_named():
    random = np.random.default_rng(3)
    before, after = 0.1 * noise(300, random), 0.1 * noise(300, random)
    slower = run_of(after + 0.02, loading=0.3)
    slower = series_of(
        [
            replace(part, blocks_ns={"data_loading": part.steps_ns - 0.7 * (part.steps_ns - 0.02e9),
                                     "forward_pass": 0.7 * (part.steps_ns - 0.02e9)})
            for part in slower.stretches
        ]
    )  # fmt: skip
    comparison = compare(run_of(before), slower)
    assert (comparison.verdict, comparison.carriers) == (SLOWER, ("data_loading",))
    assert comparison.sections[0].seconds == pytest.approx(0.02, abs=0.002)
    assert compare(slower, run_of(before)).verdict == FASTER


def test_the_sections_add_up_to_the_typical_step():
    random = np.random.default_rng(4)
    comparison = compare(run_of(0.1 * noise(300, random)), run_of(0.12 * noise(300, random)))
    assert sum(row.after_s for row in comparison.sections) == pytest.approx(comparison.typical.after_s, rel=0.003)


def test_rare_long_steps_are_found_by_the_mean_alone():
    random = np.random.default_rng(5)
    before, after = 0.1 * noise(400, random), 0.1 * noise(400, random)
    after[::20] += 1.0
    comparison = compare(run_of(before), run_of(after))
    assert (comparison.verdict, comparison.is_by_mean) == (SLOWER, True)


def test_warm_up_and_steps_slowed_by_captures_are_left_out():
    random = np.random.default_rng(7)
    step_s = 0.1 * noise(300, random)
    slow = step_s.copy()
    slow[:30] *= 20
    slow[120:125] *= 10
    run = run_of(slow)
    stretches = [replace(part, slowed=tuple(range(20, 25))) if i == 2 else part for i, part in enumerate(run.stretches)]
    settled = settle(series_of(stretches, warmup=30))
    assert (settled.count, settled.warmup, settled.slowed) == (265, 30, 5)
    assert settled.step_s.max() < 1


def test_with_twice_the_samples_a_step_the_time_of_a_sample_counts():
    random = np.random.default_rng(8)
    before = run_of(0.1 * noise(300, random), samples=50 * 32)
    after = run_of(0.2 * noise(300, random), samples=50 * 64)
    comparison = compare(before, after)
    assert (comparison.verdict, comparison.work_ratio, comparison.is_by_work) == (NOT_SHOWN, 2.0, True)
    unknown = compare(run_of(0.1 * noise(300, random)), after)
    assert (unknown.verdict, unknown.work_ratio) == (SLOWER, None)


def test_the_batch_of_the_first_step_may_be_fetched_before_its_stretch_begins():
    step_s = np.full(38, 0.1)
    stretches = [stretch_of(step_s[:1], samples=2 * 8), stretch_of(step_s[1:], samples=36 * 8)]
    assert settle(series_of(stretches, warmup=4)).samples_a_step == 8.0


def test_batches_of_different_sizes_in_the_same_order_are_compared_pair_by_pair():
    random = np.random.default_rng(9)
    sizes = random.uniform(0.2, 2.0, 300)
    before = run_of(0.1 * sizes * noise(300, random, 0.02))
    after = run_of(0.104 * sizes * noise(300, random, 0.02))
    comparison = compare(before, after)
    assert (comparison.is_paired, comparison.verdict) == (True, SLOWER)
    shuffled = run_of(0.104 * random.permutation(sizes) * noise(300, random, 0.02))
    comparison = compare(before, shuffled)
    assert (comparison.is_paired, comparison.verdict) == (False, NOT_SHOWN)


def test_what_a_busy_machine_explains_makes_no_difference():
    random = np.random.default_rng(10)
    before = run_of(0.1 * noise(300, random), lost=0.02)
    after = run_of(0.15 * noise(300, random), lost=0.30)
    comparison = compare(before, after)
    assert comparison.verdict == NOT_SHOWN
    assert "the machine was busy: others took 30% of the time" in comparison.reasons[0]
    assert not any(row.is_shown for row in comparison.sections)
    slower = compare(before, run_of(0.3 * noise(300, random), lost=0.30))
    assert (slower.verdict, slower.carriers) == (SLOWER, ("forward_pass", "data_loading"))


def test_busy_stretches_are_set_aside_where_enough_is_left():
    random = np.random.default_rng(11)
    step_s = 0.1 * noise(400, random)
    step_s[100:200] *= 3
    run = run_of(step_s)
    parts = [replace(part, lost=0.6 if i in (2, 3) else 0.0) for i, part in enumerate(run.stretches)]
    comparison = compare(run_of(0.1 * noise(400, random), lost=0.0), series_of(parts))
    assert (comparison.verdict, comparison.after.busy) == (NOT_SHOWN, 100)
    assert comparison.mean.relative == pytest.approx(0, abs=0.03)


def test_stretches_set_aside_say_that_the_others_may_be_slower_as_well():
    random = np.random.default_rng(13)
    before = run_of(0.1 * noise(400, random), lost=0.0)
    run = run_of(0.118 * noise(400, random))
    busy = series_of([replace(part, lost=0.6 if i in (2, 3) else 0.03) for i, part in enumerate(run.stretches)])
    comparison = compare(before, busy)
    assert (comparison.verdict, comparison.after.busy) == (NOT_SHOWN, 100)
    assert "others took 17% of the time" in comparison.reasons[0]
    quiet = series_of([replace(part, lost=0.03) for part in run.stretches])
    assert compare(before, quiet).verdict == SLOWER


def test_a_few_steps_show_nothing_and_one_cannot_be_compared():
    random = np.random.default_rng(12)
    run = run_of(0.1 * noise(300, random))
    few = compare(run, run_of(0.5 * noise(15, random)))
    assert few.verdict == NOT_SHOWN
    assert few.reasons[0].startswith("14 steps after warm-up are too few")
    with pytest.raises(NoComparisonError, match="the second run has 1 step so far"):
        compare(run, run_of(np.array([0.1])))


def test_runs_without_a_common_section_cannot_be_compared():
    random = np.random.default_rng(13)
    run = run_of(0.1 * noise(60, random))
    other = series_of([replace(part, blocks_ns={"mine": part.steps_ns}) for part in run.stretches])
    with pytest.raises(NoComparisonError, match="no section in common"):
        compare(run, other)


def test_runs_of_a_second_show_no_difference_that_the_machine_may_have_made():
    random = np.random.default_rng(15)
    before, after = (run_of(step_s * noise(500, random)) for step_s in (0.0022, 0.0022 * 1.056))
    comparison = compare(before, after)
    assert comparison.verdict == NOT_SHOWN
    assert comparison.typical.low < 0 < comparison.typical.high
    (reason,) = comparison.reasons
    assert reason.startswith(
        "runs of 1.08 s are too short to show 5.6%: the machine's drift does as much (needs about "
    )
    assert 3 < comparison.typical.needed_s < 30
    assert not any(row.is_shown for row in comparison.sections)
    long = compare(*(run_of(step_s * noise(500, random)) for step_s in (0.1, 0.1056)))
    assert (long.verdict, long.typical.needed_s) == (SLOWER, None)
    much = compare(before, run_of(0.0033 * noise(500, random)))
    assert (much.verdict, much.reasons) == (SLOWER, ())


def test_short_runs_on_a_machine_that_was_in_another_state_seldom_differ():
    random = np.random.default_rng(16)
    wrong = sum(
        compare(
            *(run_of(0.002 * np.exp(0.025 * random.standard_normal()) * noise(500, random)) for _ in range(2))
        ).verdict
        != NOT_SHOWN
        for _ in range(100)
    )
    assert wrong <= 8
