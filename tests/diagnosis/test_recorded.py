"""A profiler of torch that records while the training goes on."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.snapshot import Level, MachineStats, Snapshot


def run_with(recorded: float | None, samples: int = 9, steps: int = 100) -> Snapshot:
    level = None if recorded is None else Level(recorded, 1.0, 1.0)
    run = snapshot_of({"forward_pass": 0.2, "optimizer_step": 0.6}, steps=steps)
    return replace(run, machine=MachineStats(samples=samples, recorded=level))


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "profiler-records"), None)


def test_a_profiler_that_records_all_steps_is_the_verdict() -> None:
    run = run_with(1.0)
    findings = diagnose(run)
    assert findings[0].code == "profiler-records"
    assert findings[0].message.startswith("A profiler of torch that the program starts records 100% of the time")
    assert "torch.profiler.schedule(" in findings[0].fix
    assert verdict(run, findings).headline.startswith("UNDER A PROFILER: A profiler of torch")


@pytest.mark.parametrize(
    "run", [run_with(0.5), run_with(0.03), run_with(None), run_with(1.0, samples=4), run_with(1.0, steps=9)]
)
def test_a_window_of_some_steps_is_left_alone(run: Snapshot) -> None:
    assert found(run) is None
