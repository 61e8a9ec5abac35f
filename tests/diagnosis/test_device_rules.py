"""Rules about accelerators, about precision, and rules whose figures depend on the device."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.base.peaks import peak_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.compute_fixes import busy_part
from training_profiler.diagnosis.device import within_idle_time
from training_profiler.model.program import CompileFacts, CpuSpeed, OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import PROFILER, GpuStats, Level, LineStats, MachineStats, Snapshot, Throughput
from training_profiler.model.snapshot import StepChange as StepChange


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


def gpu_run(busy: float = 0.9, samples: int = 10, copies: float = 0.1, **levels: float) -> Snapshot:
    """Return a run on a device with these levels, each all the time."""
    known = {name: Level(value, value, value) for name, value in levels.items()}
    gpu = GpuStats(0, loop_utilization=Level(busy, 1.0, busy), **known)
    run = snapshot_of({"forward_pass": 0.3, "backward_pass": 0.55, "data_transfer": copies})
    return replace(run, machine=MachineStats(samples=samples, gpus=(gpu,)))


def hot_since(step: int, before: float) -> Snapshot:
    run = gpu_run(throttled_heat=0.6)
    then = gpu_run(throttled_heat=before).machine
    assert run.step is not None
    change = StepChange(step, step, step, 0.1, 0.2, is_abrupt=True, machine=(then, run.machine))
    return replace(run, step=replace(run.step, change=change))


def counted(dtype: str = "bfloat16", compiled: CompileFacts | None = None, **levels: float) -> Snapshot:
    """Return a run on a device with these counters, whose arithmetic is mostly of this type."""
    levels = {"sm_active": 0.9, "tensor_active": 0.4, "dram_active": 0.3, **levels}
    rates = Throughput(10.0, dtype=dtype, device="NVIDIA H200")
    return replace(gpu_run(samples=25, **levels), throughput=rates, program=ProgramFacts(ON_GPU, compiled=compiled))


ON_GPU = OptimizerFacts("AdamW", 40, ("float32",), ("cuda",))
IN_USE = {"sm_active": 0.1, "pcie_width": 16.0, "pcie_generation": 4.0}
MOVES = {"dram_active": 0.75, "tensor_active": 0.1}
LINK = {"pcie_width": 16.0, "pcie_most_width": 16.0, "pcie_generation": 5.0, "pcie_most_generation": 5.0}


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


def on_device(shares: dict[str, float], device_shares: dict[str, float], spans: int = 64) -> Snapshot:
    """Return a run of 64 steps of 0.125 s: ``shares`` of the host's time, ``device_shares`` of the device's."""
    run = snapshot_of(shares, steps=64, step_s=0.125)
    sections = {
        name: replace(section, device_count=spans, device_total_s=device_shares[name] * 0.125 * spans)
        if name in device_shares
        else section
        for name, section in run.sections.items()
    }
    return replace(run, sections=sections)


def found(run: Snapshot, code: str) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == code), None)


BUSY = {"forward_pass": 0.25, "backward_pass": 0.625, "optimizer_step": 0.0625}
QUEUED = {"forward_pass": 0.03125, "backward_pass": 0.03125, "optimizer_step": 0.0625}


def test_long_first_compilation_does_not_change_device_time():
    run = on_device(QUEUED, BUSY)
    forward = run.sections["forward_pass"]
    # It is in the host's mean, and no part of the steps after warm-up.
    slow = replace(forward, avg_s=10 * forward.avg_s, total_s=forward.total_s + 60, step_total_s=forward.total_s + 60)
    run = replace(run, sections={**run.sections, "forward_pass": slow})
    assert run.total_of_step_s("forward_pass") == pytest.approx(0.25 * 8.0)
    assert run.idle_device_s() == pytest.approx(0.0625 * 8.0)


def test_spans_outside_steps_do_not_count_as_device_time_of_steps():
    run = on_device({"forward_pass": 0.5}, {"forward_pass": 0.25})
    forward = run.sections["forward_pass"]
    twice = replace(forward, count=128, total_s=2 * forward.total_s)
    run = replace(run, sections={**run.sections, "forward_pass": twice})
    assert run.total_of_step_s("forward_pass") == pytest.approx(0.25 * 8.0)


def test_idle_device_time_is_unknown_inside_a_section_around_the_step():
    run = on_device({"train_step": 1.0, **QUEUED}, {"train_step": 1.0, **BUSY})
    inside = {name: replace(run.sections[name], parent="train_step") for name in QUEUED}
    lines = {"train_step": (LineStats("train.py", 9, "main", 0.8, 800, waiting_share=0.8, waits_in="item"),)}
    run = replace(run, sections={**run.sections, **inside}, lines=lines)
    assert run.idle_device_s() is None
    assert found(run, "waits-for-device") is not None


def test_a_finding_has_the_devices_time_of_a_section_and_not_only_the_hosts():
    """67% of the time at 0.85 of the peak, of which bfloat16 leaves 7%; the host's passes take 6% of the step."""
    finding = found(busy_for(AHEAD, 0.97), "full-precision")
    assert finding is not None
    assert finding.potential_saving_s == pytest.approx(8.0 * 0.67 / 0.85 * (1 - 66.9 / 989.4))
    assert finding.actions[0].part == pytest.approx((1 - 66.9 / 494.7) / (1 - 66.9 / 989.4))


def test_a_replayed_forward_and_backward_pass_leave_the_rest_of_the_hosts_step():
    """Of 125 ms the host queues passes for 100 ms; the device works for 31.25: 31.25 to 56.25 ms are left."""
    finding = found(busy_for(on_device(MANY, MANY), 0.25), "gpu-utilization")
    assert finding is not None
    assert finding.potential_saving_s == pytest.approx(64 * 0.125 * 0.75)
    assert finding.actions[0].part == pytest.approx((125 - (31.25 + 56.25) / 2) / (125 * 0.75))


def test_idle_device_time_is_unknown_without_device_time_of_forward():
    assert on_device(QUEUED, {"backward_pass": 0.625}).idle_device_s() is None
    assert on_device({"backward_pass": 0.5}, {"backward_pass": 0.625}).idle_device_s() == pytest.approx(0.375 * 8.0)


WAITING = {"other": (LineStats("train.py", 9, "main", 0.8, 800, waiting_share=0.8, waits_in="item"),)}
IDLE = {"forward_pass": 0.25, "backward_pass": 0.375, "optimizer_step": 0.0625}
FETCHED = {"data_loading": 0.25, "forward_pass": 0.25, "backward_pass": 0.4375, "optimizer_step": 0.0625}
UNEQUAL = on_device({"forward_pass": 0.1, "backward_pass": 0.2}, {"forward_pass": 0.125, "backward_pass": 0.625})
FORWARD = on_device({"forward_pass": 0.7, "backward_pass": 0.2}, {"forward_pass": 0.7, "backward_pass": 0.2})


def busy_for(run: Snapshot, busy: float) -> Snapshot:
    return replace(run, machine=MachineStats(samples=9, gpus=(GpuStats(0, loop_utilization=Level(busy, busy, busy)),)))


def queueing(avg_s: float) -> Snapshot:
    """Return a run whose forward and backward pass take the device 125 ms of each step, whatever call waits."""
    run = snapshot_of(QUEUED, steps=64, step_s=avg_s, std_s=0.2, median_s=0.01)
    device = {"forward_pass": 0.025, "backward_pass": 0.1}
    sections = {
        name: replace(section, device_count=64, device_total_s=64 * device[name]) if name in device else section
        for name, section in run.sections.items()
    }
    return replace(run, sections=sections)


H200 = Throughput(8.0, dtype="float32", device="NVIDIA H200", tflops=44.8, peak_tflops=66.9, mfu=0.67)
# Both the passes are queued in 6% of the step; the host waits for the device in a copy from pageable memory.
AHEAD = replace(on_device({"data_transfer": 0.9, **QUEUED}, {"data_transfer": 0.02, **BUSY}), throughput=H200)
MANY = {"forward_pass": 0.3, "backward_pass": 0.5, "optimizer_step": 0.15}  # of the host; the device waits between


SLOW = CpuSpeed("bfloat16", 2.0, 3e-6, 80.0)


def run_with(cpu: CpuSpeed, dtype: str = "bfloat16", flops: float = 4e8, autocast: str = "bfloat16") -> Snapshot:
    """Return 100 steps of 100 ms, 90 of them in forward and backward passes."""
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.5})
    rates = Throughput(10.0, flops_per_step=flops, dtype=dtype)
    return replace(run, program=ProgramFacts(cpu=cpu, autocast=autocast), throughput=rates, wall_s=10.0)


def on_gpu(
    dtype: str = "float32", mfu: float = 0.6, busy: float | None = 0.97, device: str = "NVIDIA H200", **program: str
) -> Snapshot:
    """Return 100 steps of 100 ms on a GPU."""
    run = snapshot_of({"forward_pass": 0.3, "backward_pass": 0.6})
    peak = peak_of(device, dtype)
    tflops, most = (None, None) if peak is None else (mfu * peak[0], peak[0])
    share = None if peak is None else mfu
    rates = Throughput(
        10.0, flops_per_step=1e12, dtype=dtype, device=device, tflops=tflops, peak_tflops=most, mfu=share
    )
    gpu = GpuStats(0, device, loop_utilization=None if busy is None else Level(busy, 1.0, busy))
    return replace(
        run,
        program=ProgramFacts(**program),
        throughput=rates,
        machine=MachineStats(samples=9, gpus=(gpu,)),
        wall_s=10.0,
    )


NOT_HALF = CpuSpeed("float32", 80.0, 3e-6)


SAYS = {
    "gpu-bound": {
        "memory": counted("tf32", **MOVES),
        "memory, in half precision": counted(**MOVES),
        "idle tensor cores": counted("float32", tensor_active=0.0),
        "idle tensor cores in half precision": counted(tensor_active=0.02),
        "small kernels": counted(sm_active=0.15, tensor_active=0.1, dram_active=0.05),
        "its link": counted(**IN_USE, pcie_rx_bytes_per_s=25e9),
    },
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
        "what the host queues": busy_for(on_device(MANY, MANY), 0.25),
        "what the host queues beside long work": busy_for(on_device(MANY, MANY), 0.7),
        "a host that waits in passes": busy_for(on_device({"forward_pass": 0.2, "backward_pass": 0.2}, MANY), 0.3),
        "without device time": busy_for(snapshot_of(MANY, steps=64, step_s=0.125), 0.25),
    },
    "shared-gpu": {"comes first": shared_run(0.61), "just over a tenth": shared_run(0.11)},
    "gpu-throttled": {
        "by heat": gpu_run(throttled_heat=0.4, throttled_hardware=0.4, temperature_c=88.0, clock_mhz=1100.0),
        "by its power supply": gpu_run(throttled_heat=0.0, throttled_hardware=0.5),
        "since a step": hot_since(60, 0.0),
    },
    "gpu-faults": {
        "memory": gpu_run(ecc_errors=3.0, rows_to_remap=1.0),
        "few lanes": gpu_run(**LINK | {"pcie_width": 4.0}),
        "all of it": gpu_run(**LINK | {"pcie_width": 1.0}, ecc_errors=1.0),
    },
    "full-precision": {
        "of a host that waits in a copy": busy_for(AHEAD, 0.97),
        "float32": on_gpu(),
        "tf32": on_gpu("tf32", 0.5),
        "just over a tenth": on_gpu("tf32", 0.171),
    },
    "healthy": {"a host waits for a busy device": replace(on_device(QUEUED, BUSY), lines=WAITING)},
    "step-time-varies": {"beyond what the device computes": queueing(0.25)},
    "waits-for-device": {"at most the idle time": replace(on_device(QUEUED, IDLE), lines=WAITING)},
    "data-loading-bound": {
        "the device waits": on_device({"data_loading": 0.5, **QUEUED}, FETCHED),
        "nine spans do not stand for all": on_device(
            {"data_loading": 0.5, **QUEUED}, {"data_loading": 0.0, **BUSY}, spans=9
        ),
    },
    "slowest-component": {"by device time": on_device({**QUEUED, "logging": 0.04}, BUSY)},
    "backward-slow": {"on a busy device": busy_for(UNEQUAL, 0.95)},
    "forward-dominates": {"on a busy device": busy_for(FORWARD, 0.95), "on an idle device": busy_for(FORWARD, 0.4)},
    "slow-precision": {
        "a quarter of the speed in float32": run_with(SLOW),
        "parameters in half precision": run_with(SLOW, autocast=""),
        "the ratio of products, without counted operations": run_with(SLOW, flops=0.0),
        "just twice as fast": run_with(SLOW._replace(float32_gflops=4.0), flops=0.0),
    },
}
SILENT = {
    "gpu-bound": {
        "no counters": gpu_run(samples=25),
        "three units in balance": counted(),
        "memory, where all is done": counted(**MOVES, compiled=CompileFacts(1, 1.0)),
        "memory as busy as tensor cores": counted(dram_active=0.7, tensor_active=0.5),
        "few samples": replace(counted(**MOVES), machine=replace(counted(**MOVES).machine, samples=24)),
        "an idle device": replace(counted(**MOVES), machine=gpu_run(busy=0.5, samples=25, **MOVES).machine),
        "beside another program": replace(
            counted(**MOVES), machine=gpu_run(samples=25, others_utilization=0.3, processes=2.0, **MOVES).machine
        ),
        "idle tensor cores in float64": counted("float64", tensor_active=0.0),
        "idle tensor cores, unknown type": counted("", tensor_active=0.0),
        "half of its link": counted(**IN_USE, pcie_rx_bytes_per_s=15e9),
        "a link of unknown width": counted(sm_active=0.9, pcie_rx_bytes_per_s=25e9),
    },
    "gpu-utilization": {
        "at the threshold": run_at(0.8),
        "unknown": run_at(None),
        "few samples": run_at(0.2, samples=4),
        "no monitor": snapshot_of({"forward_pass": 0.5}),
        "10 of 20 s, all of them in steps": lasting(25.0),
    },
    "gpu-throttled": {
        "a tenth": gpu_run(throttled_heat=0.1),
        "full load at the power limit, as in a laptop": gpu_run(throttled_power=1.0, throttled_heat=0.0),
        "idle clocks at low use": gpu_run(busy=0.05, throttled_heat=0.5),
        "few samples": gpu_run(samples=4, throttled_heat=0.9),
        "unknown": gpu_run(temperature_c=90.0),
    },
    "gpu-faults": {
        "none": gpu_run(**LINK, ecc_errors=0.0, rows_to_remap=0.0),
        "three quarters of the lanes": gpu_run(**LINK | {"pcie_width": 12.0}),
        "the link of a device without work": gpu_run(busy=0.1, **LINK | {"pcie_generation": 1.0}),
        "nothing is copied": gpu_run(copies=0.01, **LINK | {"pcie_width": 4.0}),
        "a virtual machine hides it": gpu_run(**LINK | {"pcie_width": 0.0, "pcie_generation": 0.0}),
        "unknown": gpu_run(),
    },
    "shared-gpu": {
        "a tenth": shared_run(0.1),
        "unknown": shared_run(None),
        "its own": shared_run(0.0),
        "few samples": shared_run(0.6, samples=4),
    },
    "step-time-varies": {"as long as the device computes": queueing(0.125)},
    "data-loading-bound": {
        "hidden from the device": on_device({"data_loading": 0.5, **QUEUED}, {"data_loading": 0.0, **BUSY})
    },
    "backward-slow": {
        "times of two clocks": on_device({"forward_pass": 0.01, "backward_pass": 0.5}, {"backward_pass": 0.5}),
        "on a device that waits for the host": busy_for(UNEQUAL, 0.4),
    },
    "slow-precision": {
        "not twice as fast": run_with(SLOW._replace(float32_gflops=3.9)),
        "units for it": run_with(SLOW._replace(gflops=160.0)),
        "not measured": run_with(SLOW._replace(float32_gflops=0.0)),
        "float32": run_with(NOT_HALF, dtype="float32"),
        "another type was measured": run_with(NOT_HALF),
        "as much as float32 takes": run_with(SLOW, flops=1.7e9),
        "on an accelerator": replace(run_with(SLOW), program=ProgramFacts(autocast="bfloat16")),
    },
    "full-precision": {
        "autocast": on_gpu(autocast="bfloat16"),
        "parameters in half precision": on_gpu("bfloat16"),
        "idle device": on_gpu(busy=0.6),
        "unknown utilization": on_gpu(busy=None),
        "little arithmetic": on_gpu(mfu=0.09),
        "little arithmetic in tf32": on_gpu("tf32", 0.169),
        "unknown device": on_gpu(device="NVIDIA Unheard-of"),
        "no bfloat16": on_gpu(device="Tesla T4"),
    },
}
