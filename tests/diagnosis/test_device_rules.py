"""Rules about idle and shared devices, and what the time of the host costs while a device works."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.compute_fixes import busy_part
from training_profiler.diagnosis.device import within_idle_time
from training_profiler.model.program import OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import PROFILER, GpuStats, Level, MachineStats, Snapshot


def run_at(utilization: float | None, samples: int = 5, **shares: float) -> Snapshot:
    busy = None if utilization is None else Level(mean=utilization, max=1.0, last=0.5)
    gpus = (GpuStats(index=0, loop_utilization=Level(0.95, 1.0, 0.9)), GpuStats(index=1, loop_utilization=busy))
    run = snapshot_of(shares or {"forward_pass": 0.4, "backward_pass": 0.55})
    return replace(run, machine=MachineStats(samples=samples, gpus=gpus))


def shared_run(others: float | None, samples: int = 5) -> Snapshot:
    taken, three = None if others is None else Level(mean=others, max=1.0, last=others), Level(3.0, 3.0, 3.0)
    gpu = GpuStats(0, loop_utilization=Level(0.9, 1.0, 0.9), processes=three, others_utilization=taken)
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.55})
    return replace(run, machine=MachineStats(samples=samples, gpus=(gpu,)))


def test_a_device_that_others_keep_busy_is_not_this_programs_busy_device():
    assert busy_part(shared_run(None)) == 0.9
    assert busy_part(shared_run(0.05)) == pytest.approx(0.85)
    assert busy_part(shared_run(0.61)) is None


def of_the_host(code: str, saving_s: float, **evidence: float) -> Finding:
    return Finding(code, "", {"share": 0.5, **evidence}, potential_saving_s=saving_s, fix="")


@pytest.mark.parametrize(
    ("busy", "saving_s"),
    [(0.2, 3.0), (0.8, 2.0), (0.975, None), (1.0, None)],
    ids=["idle enough", "idle for less", "a trifle is left", "busy"],
)
@pytest.mark.parametrize("code", ["machine-busy", "garbage-collection", "data-loading-bound"])
def test_time_of_the_host_costs_no_more_than_the_device_is_idle(code, busy, saving_s):
    """100 steps of 0.1 s: a host that is ahead queues work before the device needs it, whatever it lost before."""
    left = within_idle_time([of_the_host(code, 3.0)], run_at_all(busy))
    assert [finding.potential_saving_s for finding in left] == ([] if saving_s is None else [pytest.approx(saving_s)])


def test_work_of_the_device_costs_its_time_although_it_is_busy():
    found = [of_the_host("full-precision", 3.0), of_the_host("metrics-heavy", 3.0)]
    assert within_idle_time(found, run_at_all(1.0)) == found


def test_a_training_on_the_cpu_is_not_limited_by_a_device_that_others_use():
    facts = ProgramFacts(OptimizerFacts("SGD", 12, ("float32",), ("cpu",)))
    found = [of_the_host("machine-busy", 3.0)]
    assert within_idle_time(found, replace(run_at_all(1.0), program=facts)) == found
    assert within_idle_time(found, snapshot_of({"forward_pass": 0.4})) == found


def test_a_few_samples_of_a_busy_device_limit_nothing():
    found = [of_the_host("data-loading-bound", 3.0)]
    assert within_idle_time(found, run_at_all(1.0, samples=4)) == found
    assert within_idle_time(found, run_at_all(1.0, samples=5)) == []


def run_at_all(busy: float, samples: int = 20) -> Snapshot:
    """Return a run of 10 s with one device that is busy for a part of it."""
    gpu = GpuStats(index=0, loop_utilization=Level(busy, 1.0, busy))
    machine = MachineStats(samples=samples, gpus=(gpu,))
    return replace(snapshot_of({"forward_pass": 0.4}), machine=machine, wall_s=10.0)


HALF = run_at(0.5)  # 10 s in steps
OWN = {PROFILER: section_stats(PROFILER, 2 / 12, total_s=2.0)}


def lasting(wall_s: float) -> Snapshot:
    return replace(HALF, wall_s=wall_s, step=replace(HALF.step, before_s=5.0))


SAYS = {
    "gpu-utilization": {
        "busy for most of it": run_at(0.75),
        "the CPU cannot keep up": run_at(0.65),
        "idle for most of it": run_at(0.45),
        "just below": run_at(0.79),
        "its costliest cause": run_at(0.4, data_loading=0.4, optimizer_step=0.2, data_transfer=0.3),
        "6 of 12 s, at least 4 s in steps": lasting(17.0),
        "the profiler is not between steps": replace(HALF, wall_s=12.0, sections=HALF.sections | OWN),
        "no cause of most of it": run_at(0.1, data_loading=0.16, forward_pass=0.3, backward_pass=0.5),
        "no cause": run_at(0.4),
    },
    "shared-gpu": {"comes first": shared_run(0.61), "just over a tenth": shared_run(0.11)},
}
SILENT = {
    "gpu-utilization": {
        "at the threshold": run_at(0.8),
        "unknown": run_at(None),
        "few samples": run_at(0.2, samples=4),
        "no monitor": snapshot_of({"forward_pass": 0.5}),
        "10 of 20 s, all of them in steps": lasting(25.0),
    },
    "shared-gpu": {
        "a tenth": shared_run(0.1),
        "unknown": shared_run(None),
        "its own": shared_run(0.0),
        "few samples": shared_run(0.6, samples=4),
    },
}
