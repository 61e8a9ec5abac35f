"""On an accelerator the rules go by the device's time where it is known."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.model.snapshot import GpuStats, Level, LineStats, MachineStats, Snapshot, Throughput


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
SAYS = {
    "full-precision": {"of a host that waits in a copy": busy_for(AHEAD, 0.97)},
    "gpu-utilization": {
        "what the host queues": busy_for(on_device(MANY, MANY), 0.25),
        "what the host queues beside long work": busy_for(on_device(MANY, MANY), 0.7),
        "a host that waits in passes": busy_for(on_device({"forward_pass": 0.2, "backward_pass": 0.2}, MANY), 0.3),
        "without device time": busy_for(snapshot_of(MANY, steps=64, step_s=0.125), 0.25),
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
}
SILENT = {
    "step-time-varies": {"as long as the device computes": queueing(0.125)},
    "data-loading-bound": {
        "hidden from the device": on_device({"data_loading": 0.5, **QUEUED}, {"data_loading": 0.0, **BUSY})
    },
    "backward-slow": {
        "times of two clocks": on_device({"forward_pass": 0.01, "backward_pass": 0.5}, {"backward_pass": 0.5}),
        "on a device that waits for the host": busy_for(UNEQUAL, 0.4),
    },
}
