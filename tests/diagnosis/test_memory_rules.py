"""Rules about memory, and about page faults: each fires, is silent just below, and without data."""

from dataclasses import replace
from typing import Any

import pytest

from tests.diagnosis.test_machine_rules import level
from tests.support.recording import snapshot_of
from training_profiler.diagnosis.pauses import page_fault_time
from training_profiler.model.program import SIZE, Grown, KeptGraphs, ProgramFacts
from training_profiler.model.snapshot import (
    GpuStats,
    Growth,
    Level,
    LineStats,
    LoaderStats,
    MachineStats,
    MemoryChange,
    Snapshot,
    StepChange,
)

GIB, MIB = 2**30, 2**20
HEALTHY = {"forward_pass": 0.4, "backward_pass": 0.5, "optimizer_step": 0.1}


def run_on(machine: MachineStats | None, steps: int = 100) -> Snapshot:
    return replace(snapshot_of(HEALTHY, steps=steps), machine=machine)


def host(share: float, **others) -> MachineStats:
    return MachineStats(samples=10, ram_share=Level(mean=0.1, max=share, last=0.1), **others)


def gpu(share: float, samples: int = 10) -> MachineStats:
    used = Level(mean=GIB, max=share * 16 * GIB, last=GIB)
    return MachineStats(samples=samples, gpus=(GpuStats(index=1, total_bytes=16 * GIB, used_bytes=used),))


def growing(bytes_: float = 100 * MIB, p_value: float = 1e-6, points: int = 10, held: float = GIB) -> MachineStats:
    return MachineStats(
        samples=100,
        ram_process_bytes=level(held),
        ram_available_bytes=level(10 * GIB),
        ram_growth=Growth(bytes=bytes_, p_value=p_value, points=points, seconds=100.0),
    )


def retrying(retries: float, steps: int = 100) -> Snapshot:
    device = GpuStats(index=1, alloc_retries=Level(mean=1.0, max=retries, last=retries))
    return run_on(MachineStats(samples=10, gpus=(device,)), steps)


def rising(after_mib: float, *, grows: bool, **others) -> Snapshot:
    change = MemoryChange(401, 390, 415, 1024.0 * MIB, after_mib * MIB, grows=grows, **others)
    return replace(run_on(None), memory_changes=(change,))


def keeping(element_bytes: float = 130_000, most: int = 0, at_the_end: int = 400, **more: Any) -> Snapshot:
    """Return a run of 1000 steps whose memory, and whose list, grow."""
    points = ((4, 4.0), (60, 60.0), (600, 600.0), (1000, 600.0 + at_the_end))
    kept = Grown(SIZE, "outputs", points, 1000, place="train.py:9", element_bytes=element_bytes, most=most, **more)
    return replace(run_on(growing(), steps=1000), program=ProgramFacts(grown=(kept,)))


BUSY = replace(gpu(0.25).gpus[0], loop_utilization=level(0.90))
RISING = rising(2000, grows=False)
WAITING = {"data_loading": 0.15, "forward_pass": 0.35, "backward_pass": 0.4, "optimizer_step": 0.1}
MORE = StepChange(401, 396, 409, 0.08, 0.12, True, input_elements=(1000.0, 1500.0))
GROWN = GpuStats(
    index=0,
    total_bytes=16 * GIB,
    allocated_bytes=level(8 * GIB),
    used_bytes=level(12 * GIB),
    allocated_growth=Growth(bytes=2 * GIB, p_value=1e-9, points=50, seconds=3600.0),
)


def held(allocated: float, reserved: float) -> MachineStats:
    (device,) = gpu(reserved / (16 * GIB)).gpus
    device = replace(device, allocated_bytes=level(allocated), reserved_bytes=level(reserved))
    return MachineStats(samples=9, gpus=(device,))


SIXTEEN = LoaderStats("train", 100, 1590, 0.1)
STEPS = {"forward_pass": 0.6, "backward_pass": 0.4}


def run(
    faults: float = 40_000, cost_s: float | None = 5e-6, kernel: float = 0.3, wall_s: float = 10.0, samples: int = 9
) -> Snapshot:
    """Return a run with 100 steps of 100 ms."""
    stats = MachineStats(samples, page_faults=level(faults), cpu_kernel=level(kernel), page_cost_s=cost_s)
    return replace(snapshot_of(STEPS, steps=100, step_s=0.1), machine=stats, wall_s=wall_s)


def test_they_take_no_longer_than_the_kernel_did() -> None:
    pause = page_fault_time(run(faults=400_000))
    assert pause is not None
    assert pause.seconds == pause.max_s == pytest.approx(3.346, abs=0.001)


def with_line(share: float, faults: float = 140_000, samples: int = 400) -> Snapshot:
    """Return a run in which one line takes this share of the steps and page faults take 70% of them."""
    line = (LineStats("model.py", 31, "enqueue", share=share, samples=samples),)
    steps = replace(run(faults=faults, kernel=0.9), lines={"forward_pass": line}, settled_lines={"forward_pass": line})
    return replace(steps, sections=snapshot_of({"forward_pass": 0.95, "backward_pass": 0.05}).sections)


FORWARD = (LineStats("model.py", 19, "forward", share=0.6, samples=400),)
UNEQUAL = snapshot_of({"forward_pass": 0.2, "backward_pass": 0.8}).sections


SAYS = {
    "host-memory": {
        "a full host": run_on(host(0.925)),
        "a full container": run_on(host(0.925, ram_limit_bytes=24 * GIB)),
    },
    "gpu-memory-high": {
        "full": run_on(gpu(0.91)),
        "near out of memory": run_on(gpu(0.985)),
        "of gaps": run_on(held(allocated=10 * GIB, reserved=15 * GIB)),
        "of tensors": run_on(held(allocated=14.5 * GIB, reserved=15 * GIB)),
    },
    "gpu-memory-low": {
        "a larger batch fits": replace(run_on(held(allocated=3 * GIB, reserved=4 * GIB)), loaders=(SIXTEEN,)),
        "never half full": run_on(gpu(0.25)),
        "just below": run_on(gpu(0.49)),
        "not full of work": run_on(MachineStats(samples=10, gpus=(BUSY,))),
    },
    "memory-growth": {
        "of the process": run_on(growing(), steps=1000),
        "just above a twentieth": run_on(growing(bytes_=52 * MIB), steps=1000),
        "in steps that take longer": replace(
            run_on(growing(), steps=1000), step=replace(run_on(None, steps=1000).step, rise=0.5, rise_p_value=0.5)
        ),
        "of no graph": replace(run_on(growing(), steps=1000), program=ProgramFacts(graphs=KeptGraphs(20, 0, 10))),
        "of a variable": keeping(),
        "of small tensors": keeping(element_bytes=404, are_tensors=True),
        "of a variable that keeps less": keeping(element_bytes=40_000),
        "of a variable whose growth has ended": keeping(at_the_end=0),
        "of a queue that does not fit": keeping(most=10**6),
        "of a device, which comes first": run_on(replace(growing(), gpus=(GROWN,)), steps=1000),
    },
    "allocator-retries": {"often": retrying(12)},
    "memory-rises-since": {
        "grows": rising(1229, grows=True),
        "just above a twentieth": rising(1076, grows=True),
        "jumps on a device": rising(1331, grows=False, device=2),
    },
    "page-faults": {
        "a fifth of the steps": run(),
        "of no line, as their number in a section is unknown": replace(
            run(), lines={"forward_pass": FORWARD}, settled_lines={"forward_pass": FORWARD}
        ),
        "of 70% at least 60% are among the 90% of a line": with_line(0.9),
        "a line with less time": with_line(0.6),
        "a line beside few faults": with_line(0.9, faults=40_000),
        "a line of few samples": with_line(0.9, samples=20),
    },
    "backward-slow": {"without faults": replace(run(cost_s=0), sections=UNEQUAL)},
}
SILENT = {
    "host-memory": {
        "no machine": run_on(None),
        "unknown": run_on(MachineStats(samples=10)),
        "at the threshold": run_on(host(0.85)),
    },
    "gpu-memory-high": {
        "no machine": run_on(None),
        "no device": run_on(MachineStats(samples=10)),
        "at the threshold": run_on(gpu(0.90)),
    },
    "gpu-memory-low": {
        "no machine": run_on(None),
        "no device": run_on(MachineStats(samples=10)),
        "at the threshold": run_on(gpu(0.50)),
        "few samples": run_on(gpu(0.25, samples=4)),
        "steps that wait for batches": replace(snapshot_of(WAITING), machine=gpu(0.25)),
        "full of work": run_on(MachineStats(samples=10, gpus=(replace(BUSY, loop_utilization=level(0.99)),))),
    },
    "memory-growth": {
        "of a replay buffer": keeping(most=2000),
        "no machine": run_on(None),
        "unknown": run_on(MachineStats(samples=100)),
        "just below a twentieth": run_on(growing(bytes_=51 * MIB)),
        "by chance": run_on(growing(p_value=0.002)),
        "few points": run_on(growing(points=9)),
        "few steps, in which allocators fill": run_on(growing(bytes_=60 * MIB), steps=29),
        "a trifle": run_on(growing(bytes_=15 * MIB, held=30 * MIB)),
        "falling": run_on(growing(bytes_=-100 * MIB)),
    },
    "allocator-retries": {
        "two": retrying(2),
        "in one of a hundred steps": retrying(10, 1000),
        "none": retrying(0),
        "few steps": retrying(5, 5),
        "not counted": run_on(gpu(0.5)),
    },
    "memory-rises-since": {
        "just below a twentieth": rising(1074, grows=True),
        "a jump below a quarter": rising(1275, grows=False),
        "a trifle": rising(1035, grows=True),
        "more work since then": replace(RISING, step=replace(RISING.step, change=MORE)),
        "more and more work": replace(RISING, step=replace(RISING.step, work_unit="input elements")),
    },
    "page-faults": {
        "9.95 %, and half of that in the least": run(faults=19_900),
        "not measured": run(cost_s=None),
        "few samples": run(samples=2),
        "all may lie before the steps": run(wall_s=20.0),
        "no machine": replace(run(), machine=None),
        "another system": replace(run(), machine=MachineStats(9, page_faults=level(40_000), page_cost_s=5e-6)),
        "no steps": replace(run(), step=None),
    },
    # 2.4 of its 8 s are faults, so 2.8 forward passes are left.
    "backward-slow": {"faults of gradients": replace(run(cost_s=6e-6), sections=UNEQUAL)},
}
