"""Page faults within steps: their price, with its uncertainty, and the finding."""

from dataclasses import replace

import pytest

from tests.diagnosis.test_machine_rules import level
from tests.support.recording import snapshot_of
from training_profiler.diagnosis.pauses import page_fault_time
from training_profiler.model.machine import MachineStats
from training_profiler.model.snapshot import LineStats, Snapshot

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
