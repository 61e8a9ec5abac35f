"""Rules about idle and shared devices, and what the time of the host costs while a device works."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.compute_fixes import busy_part
from training_profiler.diagnosis.device import within_idle_time
from training_profiler.snapshot.program import OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import PROFILER, GpuStats, Level, MachineStats, Snapshot


def run_at(utilization: float | None, samples: int = 5, steps: int = 100, **shares: float) -> Snapshot:
    busy = None if utilization is None else Level(mean=utilization, max=1.0, last=0.5)
    gpus = (GpuStats(index=0, loop_utilization=Level(0.95, 1.0, 0.9)), GpuStats(index=1, loop_utilization=busy))
    run = snapshot_of(shares or {"forward_pass": 0.4, "backward_pass": 0.55}, steps=steps)
    return replace(run, machine=MachineStats(samples=samples, gpus=gpus))


def found(snapshot: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(snapshot) if finding.code == "gpu-utilization"), None)


@pytest.mark.parametrize(
    ("utilization", "verdict"),
    [(0.75, "could be higher"), (0.65, "the CPU probably cannot keep up"), (0.45, "serious")],
)
def test_least_busy_device_is_named_with_a_verdict(utilization, verdict):
    finding = found(run_at(utilization))
    assert finding.message == f"GPU 1 is busy {utilization:.0%} of the time ({verdict})"
    assert finding.potential_saving_s == pytest.approx((1 - utilization) * 10.0)  # of 100 steps of 0.1 s


@pytest.mark.parametrize("run", [run_at(0.8), run_at(None), run_at(0.2, samples=4), run_at(0.2, steps=9)])
def test_busy_or_rarely_sampled_device_has_no_finding(run):
    assert found(run) is None


def test_without_system_monitor_there_has_no_finding():
    assert found(snapshot_of({"forward_pass": 0.5})) is None


def test_idle_device_names_its_costliest_cause():
    run = run_at(0.4, data_loading=0.4, optimizer_step=0.2, data_transfer=0.3)
    waits = "40.0% of step time is spent waiting for the next batch"
    assert found(run).fix == f"First fix what keeps it waiting: {waits}"
    assert any(finding.message.startswith(waits) for finding in diagnose(run))  # which has the whole fix


def test_time_between_steps_may_hold_all_of_its_idle_time():
    run = run_at(0.5)  # 10 s in steps
    stays_busy = replace(run, wall_s=25.0, step=replace(run.step, before_s=5.0))  # 10 s of 20 s, all of them in steps
    assert found(stays_busy) is None
    finding = found(replace(run, wall_s=17.0, step=replace(run.step, before_s=5.0)))  # 6 of 12 s, at least 4 s in steps
    assert finding.message.startswith("GPU 1 is busy 50% of the time")
    assert finding.potential_saving_s == pytest.approx(4.0)


def test_time_of_the_profiler_is_not_between_steps():
    run = run_at(0.5)
    own = {PROFILER: section_stats(PROFILER, 2 / 12, total_s=2.0)}
    run = replace(run, wall_s=12.0, sections=run.sections | own)
    assert found(run).potential_saving_s == pytest.approx(5.0)


def test_a_small_part_of_the_idle_time_is_not_its_cause():
    run = run_at(0.1, data_loading=0.16, forward_pass=0.3, backward_pass=0.5)
    codes = [finding.code for finding in diagnose(run)]
    assert "data-loading-bound" in codes
    assert found(run).fix.startswith("Use a larger batch, torch.compile(mode=")


def test_idle_device_without_cause_needs_larger_kernels():
    fix = found(run_at(0.4)).fix
    assert fix.startswith('Use a larger batch, torch.compile(mode="reduce-overhead") or CUDA graphs to give it')


def shared_run(
    others: float | None, busy: float = 0.9, processes: float = 3.0, steps: int = 100, samples: int = 5
) -> Snapshot:
    taken = None if others is None else Level(mean=others, max=1.0, last=others)
    gpu = GpuStats(
        index=0,
        loop_utilization=Level(busy, 1.0, busy),
        processes=Level(processes, processes, processes),
        others_utilization=taken,
    )
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.55}, steps=steps)
    return replace(run, machine=MachineStats(samples=samples, gpus=(gpu,)))


def test_a_device_that_other_programs_use_comes_first():
    run = shared_run(0.61)
    finding = diagnose(run)[0]
    assert (finding.code, finding.evidence["gpu"], finding.evidence["processes"]) == ("shared-gpu", 0, 3)
    assert finding.message == (
        "Other programs use GPU 0, too: their kernels run 61% of the time (3 processes in all), and work on it waits "
        "for them"
    )
    assert finding.potential_saving_s == pytest.approx(0.61 * 10.0)
    assert finding.saving_range_s[0] == 0.0  # their work may fall into the pauses of this one
    assert finding.losses == "same bit for bit, on the same kind of GPU"


@pytest.mark.parametrize(
    "run", [shared_run(0.1), shared_run(None), shared_run(0.0), shared_run(0.6, samples=4), shared_run(0.6, steps=9)]
)
def test_a_device_of_its_own_or_one_that_is_not_known_to_be_shared_has_no_finding(run):
    assert "shared-gpu" not in [finding.code for finding in diagnose(run)]


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


def test_findings_without_a_saving_go_by_what_they_lost():
    oversubscribed = of_the_host("cpu-oversubscribed", 0.0, lost_s=3.0)
    assert within_idle_time([oversubscribed], run_at_all(0.99)) == []
    assert within_idle_time([oversubscribed], run_at_all(0.5)) == [oversubscribed]


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
