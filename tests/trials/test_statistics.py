from dataclasses import replace
from itertools import product

import msgspec
import numpy as np
import pytest

from benchmarks.tried_advice import MACHINES, simulated_session
from training_profiler.trials.statistics import (
    AGAIN,
    FEWEST_ROUNDS,
    SCREEN_ERROR,
    SCREEN_LOOKS,
    UNCHANGED,
    CpuUse,
    Effect,
    Wave,
    beyond_control,
    effect_of,
    faster_p,
    gains,
    shift_of,
    why_undecided,
)


def effect(relative, p, low=-0.9, high=-0.001):
    return Effect(relative, low, high, p, 30)


def test_a_drift_that_all_trainings_share_cancels_out_and_rounds_without_one_of_them_are_left_out():
    drift = np.linspace(1, 5, 20)
    shown = effect_of(0.6 * drift, 1.0 * drift, 1.0 * drift)
    assert (shown.relative, shown.low, shown.high) == pytest.approx((-0.4, -0.4, -0.4))
    assert effect_of([0.5, None, 0.5], [1.0, 1.0, 1.0, 1.0]).rounds == 2
    assert effect_of([None], [1.0]) is None


def test_a_faster_typical_block_does_not_count_where_all_blocks_together_are_slower():
    unchanged = np.linspace(1.0, 1.1, 30)
    changed = np.where(np.arange(30) % 5, 0.9, 3.0) * unchanged  # every fifth block has a long pause
    shown = effect_of(changed, unchanged, unchanged)
    assert shown is not None
    assert shown.relative == pytest.approx(-0.1, abs=0.01)
    assert shown.total == pytest.approx(0.32, abs=0.02)
    assert shown.p_value < 0.03
    assert gains({"a": shown}, 0.05) == set()
    assert gains({"a": replace(shown, total=-0.05)}, 0.05) == {"a"}


def test_two_unchanged_trainings_differ_beyond_their_interval_and_two_percent():
    shown = [effect(0.03, 0.98, 0.001, 0.06), effect(-0.03, 0.02), effect(0.03, 0.97, -0.001, 0.06), effect(-0.015, 0)]
    assert [each.differs for each in shown] == [True, True, False, False]


def test_slower_checkpoints_are_an_effect_on_all_steps_alone():
    typical, every_third = [1.0 + 0.001 * (at % 7) for at in range(60)], [0.5 * (at % 3 == 0) for at in range(60)]
    whole = [[a + factor * b for a, b in zip(typical, every_third, strict=True)] for factor in (3, 1, 1)]
    shown = effect_of(typical, typical, typical, all_steps=whole)
    assert (shown.relative, shown.low, shown.high, shown.of_total.p_value) == (0, 0, 0, shown.total_p)
    assert shown.claim(shown, [shown]) == shown.of_total
    assert shown.of_total.relative == pytest.approx(0.285, abs=0.005)
    same = effect_of(typical, typical, typical, all_steps=whole[1:] + whole[1:2])
    assert shown.total_p > 0.9999
    assert shown.claim(shown, [shown, same]) is None


def test_a_claim_about_one_change_needs_clear_ranks_an_interval_beyond_one_percent_and_more_than_the_control():
    control = effect(0.004, 0.5)
    for shown in (effect(0.05, 0.9999, 0.03, 0.07), effect(-0.05, 0.0001, -0.07, -0.03)):
        assert shown.claim(control, [shown, replace(shown, p_value=0.5)]) is shown
        assert shown.claim(control, [shown, effect(shown.relative, 0.5, -0.08, 0.08)]) is None
        against = replace(shown, total=-shown.relative, total_low=-shown.high, total_high=-shown.low, total_p=0.5)
        assert against.claim(control, [shown]) is None
        assert shown.claim(effect(0.06, 0.2), [shown]) is None
    for other in (effect(0.05, 0.999, 0.03, 0.07), effect(0.05, 0.9999, 0.005, 0.1), effect(0.015, 1.0, 0.012, 0.018)):
        assert other.claim(control, [other]) is None


def test_a_gain_is_named_the_less_easily_the_more_changes_there_are_and_beyond_noise_and_control():
    effects = {"a": effect(-0.1, 0.01), "b": effect(-0.1, 0.02), "c": effect(-0.1, 0.2)}
    assert gains(effects, 0.05) == {"a", "b"}
    assert gains({**effects, "d": effect(0.1, 0.9), "e": effect(0.1, 0.9), "f": effect(0.1, 0.9)}, 0.05) == set()
    assert gains({"a": effect(-0.015, 1e-9), "b": effect(-0.025, 1e-9)}, 0.05) == {"b"}  # two equal runs differ by less
    assert beyond_control(effect(-0.05, 0.0), effect(0.04, 0.5))
    assert not beyond_control(effect(-0.05, 0.0), effect(0.06, 0.5))


def test_ratios_that_go_together_count_as_fewer():
    random = np.random.default_rng(1)
    slow = np.repeat(random.standard_normal(10), 6) / 50
    fast = random.permutation(slow)
    wide, narrow = (effect_of(np.exp(values), np.ones(60)) for values in (slow, fast))
    assert wide is not None
    assert narrow is not None
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)


# One thread that computes beside another program on two CPUs: it waits for hardly anything.
ALONE_ON_A_CPU = CpuUse(wall_s=10, own_s=9.7, others_s=9.5, waited_s=0.3)
STARVED = CpuUse(wall_s=10, own_s=1.8, others_s=18, waited_s=8)  # beside ten others
AT_MOST = "it waited for a CPU, as others took {} of 2; alone it can save {}% at most: try again while they are free"


@pytest.mark.parametrize(
    ("cores", "changed", "unchanged", "why"),
    [
        (
            2,
            CpuUse(12, 16, 8, 4),
            ALONE_ON_A_CPU,
            AT_MOST.format(0.7, 50),
        ),  # a worker beside it shares a CPU with the other one
        (None, CpuUse(12, 16, 8, 4), ALONE_ON_A_CPU, None),  # how many CPUs there are is unknown
        (2, CpuUse(10, 10, 9.5, 0.4), ALONE_ON_A_CPU, None),  # it needs no other CPU
        (2, CpuUse(12, 22, 0.5, 6), CpuUse(10, 10, 0.1, 0), None),  # it takes its own CPUs from itself
        (2, CpuUse(12, 3, 20, 9.6), STARVED, None),  # the unchanged training waits as long
        (2, CpuUse(12, 3, 20, 11), STARVED, AT_MOST.format(1.7, 55)),  # alone, 1.8 s of computing in 2 s
        (2, CpuUse(), CpuUse(), None),  # nothing is known, as in a session of an earlier version
    ],
)
def test_a_change_that_waits_for_cpus_that_others_have_is_undecided(cores, changed, unchanged, why):
    assert why_undecided(cores, changed, unchanged) == why


def run_wave(factors, rounds=30, error=0.05, looks=SCREEN_LOOKS):
    wave = Wave.of([name for name in factors if name not in (UNCHANGED, AGAIN)], rounds, error, looks)
    random = np.random.default_rng(2)
    while wave.open:
        wave.add_round({name: factors.get(name, 1.0) * np.exp(random.normal(0, 0.01)) for name in wave.open})
    return wave


def test_clear_changes_are_decided_at_an_early_look_and_fresh_trials_run_all_rounds():
    wave = run_wave({"fast": 0.6, "slow": 1.5})
    assert (wave.shown, wave.futile, wave.done) == ({"fast"}, {"slow"}, 10)
    assert run_wave({"fast": 0.6, "slow": 1.5}, looks=(1.0,)).done == 30


def test_a_decided_change_runs_no_more_while_others_do_and_none_is_where_the_unchanged_training_differs():
    wave = run_wave({"fast": 0.6, "near": 0.985})
    assert len([s for s in wave.block_s["fast"] if s is not None]) == 10
    assert None not in wave.block_s["near"]
    assert wave.done > 10
    assert run_wave({"fast": 0.6, AGAIN: 1.1}).shown == set()


@pytest.mark.programs
def test_no_gain_is_named_among_changes_that_do_nothing():
    random = np.random.default_rng(3)
    sessions = [simulated_session(machine, random, {}) for machine in MACHINES for _ in range(20)]
    assert sum(map(bool, sessions)) <= 0.05 * len(sessions)


@pytest.mark.programs
def test_a_gain_of_five_percent_is_found():
    random = np.random.default_rng(4)
    machine = next(machine for machine in MACHINES if "random walk" in machine.name)
    sessions = [simulated_session(machine, random, {"change 3": 0.95}) for _ in range(60)]
    assert sum("change 3" in names for names in sessions) >= 0.8 * len(sessions)


def test_fewer_rounds_than_the_fewest_could_show_nothing():
    factors = {f"change {number}": 0.6 for number in range(8)}
    assert len(run_wave(factors, FEWEST_ROUNDS, SCREEN_ERROR).shown) == 8
    assert run_wave(factors, 3, SCREEN_ERROR).shown == set()


def from_file(wave):
    return msgspec.json.decode(msgspec.json.encode(wave), type=Wave)


def test_a_wave_goes_on_from_its_record_as_if_it_had_not_stopped():
    random = np.random.default_rng(5)
    blocks = [{name: float(np.exp(random.normal(0, 0.02))) for name in (UNCHANGED, AGAIN, "a")} for _ in range(30)]
    whole, wave = Wave.of(["a"], 30), Wave.of(["a"], 30)
    for block in blocks:
        whole.add_round(block)
        wave = from_file(wave)
        wave.add_round(block)
    assert wave == whole


@pytest.mark.programs
def test_interruptions_do_not_add_to_the_gains_that_are_none():
    random = np.random.default_rng(6)
    named, sessions = 0, 60
    for _ in range(sessions):
        wave = Wave.of(["a"], 30)
        while wave.open:
            wave.add_round({name: float(np.exp(random.normal(0, 0.1))) for name in wave.open})
            wave.pause()
            wave = from_file(wave) if wave.open else wave
        named += bool(wave.shown)
    assert named <= 0.05 * sessions


def test_a_clear_gain_is_known_after_an_interruption():
    wave = Wave.of(["a"], 30)
    for _ in range(20):
        wave.add_round({UNCHANGED: 1.0, AGAIN: 1.0, "a": 0.5})
    wave.pause()
    assert (wave.shown, wave.open) == ({"a"}, [])


# The test and interval of a shift, against all exchanges of blocks within rounds.
def exact_p(logs):
    """Return the part of all ways to take one block of each round whose ranks are at most those of the first column."""
    aligned = logs - logs.mean(axis=1, keepdims=True)
    ranks = aligned.ravel().argsort().argsort().reshape(aligned.shape)
    sums = [sum(taken) for taken in product(*ranks)]
    return np.mean(np.array(sums) <= ranks[:, 0].sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("columns", [2, 3])
def test_the_probability_is_that_of_all_exchanges(seed, columns):
    random = np.random.default_rng(seed)
    logs = random.standard_normal((9, columns))
    logs[:, 0] -= 0.5 * (seed % 3)
    assert faster_p(logs) == pytest.approx(exact_p(logs), rel=0.3, abs=0.012)


@pytest.mark.parametrize("columns", [2, 3])
def test_equal_blocks_show_nothing(columns):
    logs = np.tile(np.linspace(0, 1, 20)[:, np.newaxis], columns)
    assert faster_p(logs) == 0.5
    assert shift_of(logs, 0.05) == (0, 0, 0)


def test_few_rounds_show_no_more_than_they_can():
    logs = np.array([[0.0, 1.0, 1.1], [0.0, 1.0, 1.2], [0.0, 1.0, 1.3]])
    assert faster_p(logs) == pytest.approx(1 / 27)
    shift, low, high = shift_of(logs, 0.05)
    assert (low, high) == (-np.inf, np.inf)
    assert -1.3 < shift < -1


def test_the_interval_holds_the_shift_as_often_as_it_says():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        logs = np.log(random.exponential(size=(25, 3)) + 0.2)
        logs[:, 0] -= 0.3
        _, low, high = shift_of(logs, 0.05)
        held += low <= -0.3 <= high
    assert 0.93 <= held / 1000 <= 0.97


def test_a_few_very_slow_blocks_do_not_hide_a_shift():
    random = np.random.default_rng(1)
    logs = random.normal(0, 0.02, (30, 3))
    logs[:, 0] -= 0.05
    logs[::6, 0] += 3
    logs[3::6, 1] += 3
    shift, _, high = shift_of(logs, 0.05)
    assert shift == pytest.approx(-0.05, abs=0.015)
    assert high < 0
    assert faster_p(logs) < 0.02
    assert logs[:, 0].mean() > logs[:, 1:].mean()


def test_the_probability_and_the_interval_agree():
    random = np.random.default_rng(2)
    for _ in range(50):
        logs = random.normal(0, 0.05, (20, 3))
        logs[:, 0] -= 0.02
        assert (faster_p(logs) < 0.025) == (shift_of(logs, 0.05)[2] < 0)
