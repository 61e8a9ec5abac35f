"""The rule about a thread of the program that has Python's lock."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.snapshot import LineStats, Snapshot

READER = "load.py:9 decode"


def line(share: float, held: float, place: str = READER, samples: int = 100) -> LineStats:
    return LineStats("train.py", 42, "main", share=share, samples=samples, held_by={place: held} if held else {})


def run_with(line: LineStats, section: str = "forward_pass", **shares: float) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.25, **shares}, steps=64, step_s=0.125)
    return replace(run, lines={section: (line,)})


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "lock-held-by-thread"), None)


def test_the_line_that_has_the_lock_is_named():
    finding = found(run_with(line(0.5, 0.25)))
    assert finding is not None
    assert finding.message == (
        "The training waits for Python's lock for 25% of step time (31.2 ms per step), "
        "which a thread of the program has at load.py:9 decode"
    )
    assert finding.potential_saving_s == 2.0


@pytest.mark.parametrize(
    "run",
    [
        run_with(line(0.5, 0.0)),
        run_with(line(0.5, 0.1)),  # a tenth is not over a tenth
        run_with(line(0.5, 0.25, samples=9)),
        # A thread that prepares batches runs while the training waits for them.
        run_with(line(0.2, 0.2), "data_loading", data_loading=0.2),
        run_with(line(0.25, 0.2), data_loading=0.15),
    ],
)
def test_silent_where_it_is_little_or_may_be_another_wait(run):
    assert found(run) is None


def test_waiting_for_a_cpu_is_not_waiting_for_the_lock():
    busy = Level(0.2, 1.0, 0.2)
    machine = MachineStats(samples=10, cores=2.0, host_cores=2, cpu_wait=busy, cpu_host=Level(1.0, 1.0, 1.0))
    assert found(replace(run_with(line(0.5, 0.25)), machine=machine)) is None


def test_a_step_outside_of_training_does_not_count():
    run = run_with(line(0.25, 0.25), "validation_epoch")
    validation = replace(run.sections["forward_pass"], name="validation_epoch", step_total_s=0.0)
    assert found(replace(run, sections={**run.sections, "validation_epoch": validation})) is None
