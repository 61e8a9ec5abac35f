"""Since when memory grows, or is more than before."""

import numpy as np
import pytest

from tests.aggregation.test_change_point import wandering
from tests.support.recording import FakeRun
from training_profiler.aggregation.history import MemoryPoint
from training_profiler.aggregation.run import memory_change
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.run_reader import read_run

MIB = 2**20
COUNT, AT = 120, 70
RNG = np.random.default_rng(19)
NOISE = RNG.normal(size=COUNT)


def points(mib):
    """Return memory at every tenth step."""
    return [MemoryPoint(10 * at + 9, float(value) * MIB) for at, value in enumerate(mib)]


def _is_found(mib):
    return memory_change(points(mib)) is not None


def test_at_most_one_in_twenty_stationary_runs_has_a_change():
    rng = np.random.default_rng(20)
    found = 0
    for run in range(200):
        correlation, tail = (0.0, 0.5, 0.8, 0.9)[run % 4], (np.inf, 3)[run // 4 % 2]
        found += _is_found(1000 + 50 * wandering(rng, (60, 120, 250)[run % 3], correlation, tail))
    assert found <= 10


def test_leak_that_begins_is_found_with_its_step():
    leaked = np.concatenate([np.zeros(AT), 3.0 * np.arange(COUNT - AT)])
    change = memory_change(points(1000 + leaked + NOISE))
    assert change.grows
    assert change.first_step <= 10 * AT + 10 <= change.last_step
    assert change.last_step - change.first_step < 200
    assert change.before_bytes == pytest.approx(1000 * MIB, rel=0.01)
    assert change.after_bytes == pytest.approx(1147 * MIB, rel=0.01)


def test_jump_is_found_with_both_levels():
    change = memory_change(points(np.where(np.arange(COUNT) < AT, 1000, 1600) + NOISE), device=1)
    assert (change.grows, change.device) == (False, 1)
    assert change.first_step <= 10 * AT + 10 <= change.last_step
    assert (change.before_bytes, change.after_bytes) == (
        pytest.approx(1000 * MIB, rel=0.01),
        pytest.approx(1600 * MIB, rel=0.01),
    )


@pytest.mark.parametrize(
    "mib",
    [
        1000 + 3.0 * np.arange(COUNT) + NOISE,  # a leak from the first step on: memory-growth
        1000 + 500 * (1 - np.exp(-np.arange(COUNT) / 10)) + NOISE,  # a cache that fills
        np.where(np.arange(COUNT) < AT, 1600, 1000) + NOISE,  # falls
        1000 + 200 * (np.arange(COUNT) % 10 == 9) + NOISE,  # validation
        np.where(np.arange(COUNT) < AT, 1000, 1010) + 0.1 * NOISE,  # too little to matter
        np.full(COUNT, 1000.0),
        np.full(20, 1000.0),
        np.array([1000.0]),
        np.array([]),
    ],
    ids=["steady leak", "cache", "fall", "validation", "little", "constant", "short", "one", "none"],
)
def test_others_have_no_change(mib):
    assert memory_change(points(mib)) is None


def test_run_knows_since_when_its_memory_grows_and_so_does_its_journal(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    for i in range(300):
        own = {"ram_own_bytes": (1000.0 + max(0, i - 180)) * MIB}
        run.accumulator.totals.machine.add_samples([MachineSample(run.clock(), own)])
        run.step(forward_pass=0.1)
        if i % 3 == 2:
            run.flush()
    (change,) = run.snapshot().memory_changes
    assert change.grows
    assert change.first_step <= 181 <= change.last_step
    assert read_run(tmp_path).memory_changes == (change,)
