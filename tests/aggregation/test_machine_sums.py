"""Since when memory grows, or is more than before."""

import numpy as np
import pytest

from tests.aggregation.test_change_point import wandering
from tests.support.recording import FakeRun
from training_profiler.aggregation.machine import MachineSums
from training_profiler.aggregation.run import memory_change
from training_profiler.model.snapshot import Level
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.run_reader import read_run

FACTS = {
    "cores": 2.0,
    "host_cores": 8,
    "ram_host_total_bytes": 1000,
    "gpu0.name": "T4",
    "gpu0.total_bytes": 64,
    "gpu10.name": "L4",
}


def sample(at_s, weights=None, **values):
    names = {name.replace("__", "."): float(value) for name, value in values.items()}
    return MachineSample(round(at_s * 1e9), names, weights or {}, dict(FACTS))


def sums_of(*samples):
    sums = MachineSums()
    sums.add_samples(samples)
    return sums


def test_page_faults_count_from_the_first_step_on():
    weights = {"page_faults": 1.0, "cpu_wait": 1.0}
    samples = [
        sample(at_s, weights, page_faults=faults, cpu_wait=0.5) for at_s, faults in ((1, 9e6), (2, 9e6), (3, 20))
    ]
    sums = MachineSums()
    sums.add_samples(samples, loop_begin_ns=1_500_000_000)
    assert (sums.stats().page_faults, sums.stats().cpu_wait) == (Level(20, 20, 20), Level(0.5, 0.5, 0.5))
    assert sums_of(*samples).stats().page_faults is None  # no step yet


def test_utilization_of_the_loop_and_a_profiler_of_torch_count_in_settled_steps_alone():
    readings = ((1, 0, 0), (2, 0, 1), (3, 0.6, 0), (4, 0.8, 1), (5, 1.0, 1))
    sums = MachineSums()
    sums.add_samples(
        [sample(at_s, gpu0__utilization=busy, recorded=recorded) for at_s, busy, recorded in readings],
        settled_ns=2_000_000_000,
    )
    sums.add_samples([sample(6, recorded=1)])  # of a capture window of our own
    first, _ = sums.stats().gpus
    assert first.loop_utilization == Level(pytest.approx(0.8), 1.0, 1.0)
    assert first.utilization.mean == pytest.approx(0.48)
    assert sums.stats().recorded == Level(0.75, 1.0, 1.0)


def test_utilization_of_the_loop_needs_three_readings_and_settled_steps():
    samples = [sample(at_s, gpu0__utilization=0.5) for at_s in (1, 2, 3)]
    sums = MachineSums()
    sums.add_samples(samples, settled_ns=500_000_000)  # the first reading may begin before it
    sums.add_samples(samples)
    assert sums.stats().gpus[0].loop_utilization is None


def test_a_rate_counts_by_the_time_it_was_measured_over():
    stats = sums_of(
        sample(1, {"cpu_process": 1.0}, cpu_process=2), sample(4, {"cpu_process": 3.0}, cpu_process=1)
    ).stats()
    assert stats.cpu_process == Level(1.25, 2, 1)


def test_accelerators_are_sorted_by_index():
    sums = sums_of(sample(0, gpu0__allocated_bytes=5, gpu10__utilization=0.5))
    first, second = sums.stats().gpus
    assert (first.index, first.name, first.total_bytes, first.allocated_bytes) == (0, "T4", 64, Level(5, 5, 5))
    assert (second.index, second.name, second.total_bytes, second.utilization) == (10, "L4", None, Level(0.5, 0.5, 0.5))


def test_sums_of_stretches_add_up():
    samples = [sample(i, ram_own_bytes=100 + 3 * i, gpu0__allocated_bytes=i % 5, ram_share=i / 128) for i in range(40)]
    added = MachineSums()
    for begin in (0, 10, 25):
        added.add(sums_of(*samples[begin : {0: 10, 10: 25, 25: 40}[begin]]))
    assert added.stats() == sums_of(*samples).stats()
    assert added.stats().ram_growth.bytes == 93


def test_growth_covers_memory_only_and_is_optional():
    sums = sums_of(*(sample(i, ram_own_bytes=i, ram_process_bytes=i, gpu0__allocated_bytes=i) for i in range(40)))
    assert set(sums.series) == {"ram_own_bytes", "gpu0.allocated_bytes"}
    assert sums.stats().gpus[0].allocated_growth is not None
    assert sums.stats(has_growth=False).ram_growth is None


MIB = 2**20
COUNT, AT = 120, 70
RNG = np.random.default_rng(19)
NOISE = RNG.normal(size=COUNT)


def points(mib):
    """Return memory at every tenth step."""
    return [(10 * at + 9, float(value) * MIB) for at, value in enumerate(mib)]


def _is_found(mib):
    return memory_change(points(mib)) is not None


def test_at_most_one_in_twenty_stationary_runs_has_a_change():
    rng = np.random.default_rng(20)
    found = 0
    for run in range(200):
        correlation, tail = (0.0, 0.5, 0.8, 0.9)[run % 4], (np.inf, 3)[run // 4 % 2]
        found += _is_found(1000 + 50 * wandering(rng, (60, 120, 250)[run % 3], correlation, tail))
    assert found <= 10


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
