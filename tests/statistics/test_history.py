import numpy as np
import pytest

from benchmarks.comparison import KINDS, simulated
from training_profiler.statistics.history import MOST_BLOCKS, RunBlocks, change_since

HISTORIES = 200
RUNS = 5


def blocks_of(step_s, loading=0.3, size=8, **options):
    """Return a run whose steps load data for a part of their time, and compute for the rest."""
    begins = np.arange(0, len(step_s), size)
    block_ns = np.add.reduceat(1e9 * np.asarray(step_s), begins).astype(np.int64)
    loading_ns = (loading * block_ns).astype(np.int64)
    steps = np.diff(begins, append=len(step_s))
    given = {"samples_a_step": None, "lost": 0.0} | options
    return RunBlocks(steps, {"data_loading": loading_ns, "forward_pass": block_ns - loading_ns}, **given)


def runs(random, factors, steps=400, **options):
    """Return runs, the newest first."""
    return [blocks_of(0.1 * f * np.exp(0.05 * random.standard_normal(steps)), **options) for f in factors]


def simulated_runs(kind, random, factors):
    made = [simulated(kind, random, factor) for factor in factors]
    return [blocks_of(np.concatenate([part.steps_ns for part in run.stretches]) / 1e9) for run in made]


def says(earlier, run):
    change = change_since(earlier, run)
    return None if change is None else ("slower" if change.relative > 0 else "faster")


def test_histories_without_a_change_say_nothing_and_one_of_ten_percent_is_found():
    # All kinds of noise and drift by which `compare` is judged; the machine's state is that of benchmarks/RESULTS.md.
    random, alarms, found, tried = np.random.default_rng(0), 0, 0, 0
    for number in range(HISTORIES):
        kind = KINDS[number % len(KINDS)]
        history = simulated_runs(kind, random, [1.0] * RUNS)[::-1]
        alarms += any(says(history[at + 1 :], history[at]) for at in range(RUNS - 2))
        if kind.run_s >= 20:  # shorter ones are at the mercy of the machine, and `compare` says so
            tried += 1
            found += says(history[1:], *simulated_runs(kind, random, [1.1])) == "slower"
    assert alarms <= 0.05 * HISTORIES
    assert found >= 0.9 * tried


def test_the_statement_has_the_interval_over_all_earlier_runs_and_the_section():
    random = np.random.default_rng(1)
    earlier = runs(random, [1.0, 1.01, 0.99, 1.0, 1.0])
    slower = blocks_of(0.112 * np.exp(0.05 * random.standard_normal(400)), loading=0.37)
    change = change_since(earlier, slower)
    assert (change.runs, change.section) == (4, "data_loading")
    assert change.low < change.relative < change.high
    assert change.relative == pytest.approx(0.12, abs=0.02)
    assert change.section_s == pytest.approx(0.37 * 0.112 - 0.03, abs=0.001)
    assert change.text.startswith("12% slower a step than your last 4 runs (")


@pytest.mark.parametrize(
    ("earlier", "run"),
    [
        ([], {}),  # the first run
        ([{}], {}),  # one earlier run may be the exception
        ([{}, {}, {"factor": 1.2}], {}),  # an earlier run was as slow: nothing new
        ([{}, {}], {"lost": 0.2}),  # the machine was busy
        ([{}, {"lost": 0.2}], {}),  # and before
        ([{"samples_a_step": 32}, {"samples_a_step": 32}], {"samples_a_step": 64}),  # another batch size
        ([{"steps": 30}, {"steps": 30}], {}),  # too few steps in common
    ],
)  # fmt: skip
def test_silence(earlier, run):
    random = np.random.default_rng(2)

    def made(options, factor):
        options = {"factor": factor} | options
        (one,) = runs(random, [options.pop("factor")], **options)
        return one

    assert change_since([made(each, 1.0) for each in earlier], made(run, 1.2)) is None


def test_runs_of_different_lengths_are_compared_by_blocks_of_the_same_length():
    random = np.random.default_rng(3)

    def pausing(steps, factor=1.0):
        step_s = 0.1 * factor * np.exp(0.02 * random.standard_normal(steps))
        step_s[random.random(steps) < 0.02] += 1.0
        return step_s

    earlier = [blocks_of(pausing(800), size=2), blocks_of(pausing(800), size=2)]
    assert change_since(earlier, blocks_of(pausing(3200), size=50)) is None
    assert says(earlier, blocks_of(pausing(3200, 1.3), size=50)) == "slower"


def test_steps_that_take_longer_and_longer_are_compared_over_the_same_steps():
    def growing(steps):
        return 0.1 * (1 + np.arange(steps) / 400) * np.exp(0.01 * np.random.default_rng(steps).standard_normal(steps))

    assert change_since([blocks_of(growing(400)), blocks_of(growing(401))], blocks_of(growing(800))) is None


def test_a_damaged_row_of_no_blocks_says_nothing():
    random = np.random.default_rng(4)
    empty = RunBlocks(np.zeros(0, np.int64), {}, None, None)
    assert change_since([empty, *runs(random, [1.0, 1.0])], *runs(random, [1.3])) is None
    assert change_since(runs(random, [1.0, 1.0]), empty) is None
    assert len(runs(random, [1.0])[0].steps) <= MOST_BLOCKS
