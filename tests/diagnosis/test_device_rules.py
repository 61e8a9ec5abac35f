"""The rule about idle devices, and the cause it names."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.compute_fixes import busy_part
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
