"""Rules about memory: each fires, is silent just below, and without data."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.snapshot import (
    GpuStats,
    Growth,
    Level,
    MachineStats,
    MemoryChange,
    Snapshot,
    StepChange,
)

GIB, MIB = 2**30, 2**20
HEALTHY = {"forward_pass": 0.4, "backward_pass": 0.5, "optimizer_step": 0.1}


def run_on(machine: MachineStats | None, steps: int = 100) -> Snapshot:
    return replace(snapshot_of(HEALTHY, steps=steps), machine=machine)


def found(snapshot: Snapshot, code: str) -> Finding | None:
    return next((finding for finding in diagnose(snapshot) if finding.code == code), None)


def level(value: float) -> Level:
    return Level(mean=value, max=value, last=value)


def host(share: float, **others) -> MachineStats:
    return MachineStats(samples=10, ram_share=Level(mean=0.1, max=share, last=0.1), **others)


def gpu(share: float, samples: int = 10) -> MachineStats:
    used = Level(mean=GIB, max=share * 16 * GIB, last=GIB)
    return MachineStats(samples=samples, gpus=(GpuStats(index=1, total_bytes=16 * GIB, used_bytes=used),))


def test_full_host_is_found_with_its_pressure():
    finding = found(run_on(host(0.925)), "host-memory")
    assert finding.message == "Peak RAM is 92.5% of the host's memory (pressure 0.50)"
    assert finding.evidence["threshold"] == 0.85


def test_full_container_is_found_with_its_limit():
    finding = found(run_on(host(0.925, ram_limit_bytes=24 * GIB)), "host-memory")
    assert finding.message.startswith("Peak RAM is 92.5% of the container's limit of 24.0 GiB")


@pytest.mark.parametrize("machine", [None, MachineStats(samples=10), host(0.85), host(0.84)])
def test_host_below_threshold_or_unsampled_has_no_finding(machine):
    assert found(run_on(machine), "host-memory") is None


def test_full_device_is_found():
    finding = found(run_on(gpu(0.91)), "gpu-memory-high")
    assert finding.message == "Peak memory of GPU 1 is 91.0% of 16.0 GiB"


def test_device_near_out_of_memory_is_found():
    finding = found(run_on(gpu(0.985)), "gpu-memory-high")
    assert finding.message.endswith("above 98% a larger batch runs out of memory")


@pytest.mark.parametrize("machine", [None, MachineStats(samples=10), gpu(0.90)])
def test_a_device_at_its_threshold_or_unknown_is_not_full(machine):
    assert found(run_on(machine), "gpu-memory-high") is None


def test_device_never_half_full_is_found():
    finding = found(run_on(gpu(0.25)), "gpu-memory-low")
    assert finding.message == "Peak memory of GPU 1 is only 25.0% of 16.0 GiB"


@pytest.mark.parametrize("machine", [None, MachineStats(samples=10), gpu(0.50), gpu(0.25, samples=4)])
def test_half_full_or_rarely_sampled_device_has_no_finding(machine):
    assert found(run_on(machine), "gpu-memory-low") is None


def test_where_steps_wait_for_batches_larger_ones_are_not_advised():
    waiting = {"data_loading": 0.15, "forward_pass": 0.35, "backward_pass": 0.4, "optimizer_step": 0.1}
    run = replace(snapshot_of(waiting), machine=gpu(0.25))
    assert found(run, "gpu-memory-low") is None


@pytest.mark.parametrize(("busy", "is_found"), [(0.90, True), (0.99, False)])
def test_for_a_device_full_of_work_larger_batches_are_not_advised(busy, is_found):
    (one,) = gpu(0.25).gpus
    machine = MachineStats(samples=10, gpus=(replace(one, loop_utilization=level(busy)),))
    assert (found(run_on(machine), "gpu-memory-low") is not None) == is_found


def test_nine_steps_are_too_few_to_call_a_device_empty():
    assert found(run_on(gpu(0.25), steps=9), "gpu-memory-low") is None


def growing(bytes_: float = 100 * MIB, p_value: float = 1e-6, points: int = 10, held: float = GIB) -> MachineStats:
    return MachineStats(
        samples=100,
        ram_process_bytes=level(held),
        ram_available_bytes=level(10 * GIB),
        ram_growth=Growth(bytes=bytes_, p_value=p_value, points=points, seconds=100.0),
    )


def test_growing_memory_is_found_with_the_time_until_full():
    finding = found(run_on(growing()), "memory-growth")
    assert finding.message == (
        "Memory of this process keeps growing: by 100.0 MiB in 100 s; at this rate the remaining 10.0 GiB last 171 min"
    )
    assert finding.evidence["growth_bytes"] == 100 * MIB
    assert ".detach()" in finding.fix


@pytest.mark.parametrize(
    "machine",
    [
        None,
        MachineStats(samples=100),
        growing(bytes_=51 * MIB),  # of 1 GiB: just below a twentieth
        growing(p_value=0.002),
        growing(points=9),
        growing(bytes_=15 * MIB, held=30 * MIB),  # a trifle
        growing(bytes_=-100 * MIB),
    ],
)
def test_uncertain_memory_growth_has_no_finding(machine):
    assert found(run_on(machine), "memory-growth") is None


def test_growth_on_a_device_comes_before_the_host():
    grown = Growth(bytes=2 * GIB, p_value=1e-9, points=50, seconds=3600.0)
    device = GpuStats(
        index=0,
        total_bytes=16 * GIB,
        allocated_bytes=level(8 * GIB),
        used_bytes=level(12 * GIB),
        allocated_growth=grown,
    )
    finding = found(run_on(replace(growing(), gpus=(device,))), "memory-growth")
    assert finding.message == (
        "Memory allocated on GPU 0 keeps growing: by 2.0 GiB in 60 min; at this rate the remaining 4.0 GiB last 120 min"
    )


def retrying(retries: float, steps: int = 100) -> Snapshot:
    device = GpuStats(index=1, alloc_retries=Level(mean=1.0, max=retries, last=retries))
    return run_on(MachineStats(samples=10, gpus=(device,)), steps)


def test_allocator_that_often_runs_out_of_memory_is_found():
    finding = found(retrying(12), "allocator-retries")
    assert finding.message.startswith("GPU 1 ran out of memory 12 times in 100 steps: ")
    assert finding.potential_saving_s == 0


@pytest.mark.parametrize(("retries", "steps"), [(2, 100), (10, 1000), (0, 100), (5, 5)])
def test_few_retries_are_no_finding(retries: float, steps: int):
    assert found(retrying(retries, steps), "allocator-retries") is None


def test_retries_that_are_not_counted_are_no_finding():
    assert found(run_on(gpu(0.5)), "allocator-retries") is None


def rising(after_mib: float, *, grows: bool, **others) -> Snapshot:
    change = MemoryChange(401, 390, 415, 1024.0 * MIB, after_mib * MIB, grows=grows, **others)
    return replace(run_on(None), memory_changes=(change,))


def test_memory_that_begins_to_grow_is_found_with_its_step():
    finding = found(rising(1229, grows=True), "memory-rises-since")
    assert finding.message == ("Memory of this process grows since step 401 (95%: 390 to 415): from 1.0 GiB to 1.2 GiB")
    assert finding.evidence["grows"] == 1


def test_memory_that_jumps_is_found_with_both_levels():
    finding = found(rising(1331, grows=False, device=2), "memory-rises-since")
    assert finding.message == "Memory allocated on GPU 2 rose at step 401 (95%: 390 to 415): from 1.0 GiB to 1.3 GiB"


@pytest.mark.parametrize(("after_mib", "grows"), [(1074, True), (1275, False), (1035, True)])
def test_small_rises_are_no_finding(after_mib: float, grows: bool):
    assert found(rising(after_mib, grows=grows), "memory-rises-since") is None


def test_longer_batches_explain_more_memory():
    run = rising(2000, grows=False)
    more = StepChange(401, 396, 409, 0.08, 0.12, True, input_elements=(1000.0, 1500.0))
    assert found(replace(run, step=replace(run.step, change=more)), "memory-rises-since") is None
    assert found(replace(run, step=replace(run.step, work_unit="input elements")), "memory-rises-since") is None
