"""On an accelerator the rules go by the device's time where it is known."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.steps import step_time_varies
from training_profiler.snapshot.snapshot import GpuStats, Level, LineStats, MachineStats, Snapshot


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


def test_host_waiting_for_busy_device_has_no_finding():
    lines = {"other": (LineStats("train.py", 9, "main", 0.8, 800, waiting_share=0.8, waits_in="item"),)}
    run = replace(on_device(QUEUED, BUSY), lines=lines)
    assert [finding.code for finding in diagnose(run)] == ["healthy", "slowest-component"]


@pytest.mark.parametrize(("avg_s", "saving_s"), [(0.125, None), (0.25, 8.0)])
def test_steps_that_mostly_queue_work_are_as_long_as_the_device_computes(avg_s, saving_s):
    """Whatever call waits, as one of a full queue: forward and backward pass take the device 125 ms of each step."""
    run = snapshot_of(QUEUED, steps=64, step_s=avg_s, std_s=0.2, median_s=0.01)
    device = {"forward_pass": 0.025, "backward_pass": 0.1}
    sections = {
        name: replace(section, device_count=64, device_total_s=64 * device[name]) if name in device else section
        for name, section in run.sections.items()
    }
    finding = step_time_varies(replace(run, sections=sections))
    assert (finding and finding.potential_saving_s) == pytest.approx(saving_s)


def test_waits_save_at_most_the_idle_time_of_the_device():
    lines = {"other": (LineStats("train.py", 9, "main", 0.8, 800, waiting_share=0.8, waits_in="item"),)}
    idle = {"forward_pass": 0.25, "backward_pass": 0.375, "optimizer_step": 0.0625}
    finding = found(replace(on_device(QUEUED, idle), lines=lines), "waits-for-device")
    assert finding.potential_saving_s == pytest.approx(0.3125 * 8.0)


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


def test_idle_device_time_is_unknown_without_device_time_of_forward():
    assert on_device(QUEUED, {"backward_pass": 0.625}).idle_device_s() is None
    assert on_device({"backward_pass": 0.5}, {"backward_pass": 0.625}).idle_device_s() == pytest.approx(0.375 * 8.0)


def test_fetch_hidden_from_the_device_costs_nothing():
    run = on_device({"data_loading": 0.5, **QUEUED}, {"data_loading": 0.0, **BUSY})
    assert found(run, "data-loading-bound") is None


def test_fetch_that_the_device_waits_for_is_found():
    device = {"data_loading": 0.25, "forward_pass": 0.25, "backward_pass": 0.4375, "optimizer_step": 0.0625}
    finding = found(on_device({"data_loading": 0.5, **QUEUED}, device), "data-loading-bound")
    assert finding.message == (
        "25.0% of step time is spent waiting for the next batch "
        "(data_loading: 31.2 ms per step in which the device has no work)"
    )
    assert finding.potential_saving_s == pytest.approx(2.0)


def test_slowest_section_is_by_device_time():
    finding = found(on_device({**QUEUED, "logging": 0.04}, BUSY), "slowest-component")
    assert finding.message == "Slowest component: backward_pass (78.1 ms avg on the device)"


def test_nine_spans_do_not_stand_for_all():
    run = on_device({"data_loading": 0.5, **QUEUED}, {"data_loading": 0.0, **BUSY}, spans=9)
    assert found(run, "data-loading-bound") is not None


def test_passes_are_not_compared_across_clocks():
    run = on_device({"forward_pass": 0.01, "backward_pass": 0.5}, {"backward_pass": 0.5})
    assert found(run, "backward-slow") is None


@pytest.mark.parametrize(("busy", "is_found"), [(0.4, False), (0.95, True)])
def test_passes_of_a_device_that_waits_for_the_host_are_not_compared(busy, is_found):
    run = on_device({"forward_pass": 0.1, "backward_pass": 0.2}, {"forward_pass": 0.125, "backward_pass": 0.625})
    gpu = GpuStats(0, loop_utilization=Level(busy, busy, busy))
    run = replace(run, machine=MachineStats(samples=9, gpus=(gpu,)))
    assert (found(run, "backward-slow") is not None) == is_found


@pytest.mark.parametrize(("busy", "is_advised"), [(0.4, False), (0.95, True)])
def test_mixed_precision_is_not_advised_where_the_device_waits_for_the_host(busy, is_advised):
    run = on_device({"forward_pass": 0.7, "backward_pass": 0.2}, {"forward_pass": 0.7, "backward_pass": 0.2})
    gpu = GpuStats(0, loop_utilization=Level(busy, busy, busy))
    run = replace(run, machine=MachineStats(samples=9, gpus=(gpu,)))
    assert ("mixed precision" in found(run, "forward-dominates").fix) == is_advised
