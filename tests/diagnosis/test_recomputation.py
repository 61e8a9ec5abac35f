"""The rule about forward passes that activation checkpointing repeats."""

from dataclasses import replace

import pytest

from tests.diagnosis.test_backward_rules import CALL, SGD, findings_of, run_with
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.program import ProgramFacts
from training_profiler.snapshot.snapshot import LineStats, Snapshot

BLOCKS = LineStats("model.py", 12, "Model.forward", 0.18, 90, called={"checkpoint": 0.18})
HEAD = LineStats("model.py", 13, "Model.forward", 0.02, 10, called={"self.head": 0.02})


def repeating(used: float = 0.3, part: float = 0.25, samples: int = 10, phase: str = "recomputation") -> Snapshot:
    """Return a run of 100 ms a step, of which backward passes take half, and ``part`` is in this phase."""
    machine = MachineStats(samples, cores=4.0, ram_share=Level(used, used, used))
    run = run_with(CALL)
    return replace(run, machine=machine, phases={phase: part}, lines={**run.lines, "forward_pass": (BLOCKS, HEAD)})


def test_what_checkpointing_repeats_is_found_with_the_line_that_calls_it():
    found = findings_of(repeating())
    assert next(iter(found)) == "recomputation"
    finding = found["recomputation"]
    assert finding.message == (
        "Backward passes compute parts of the forward pass again, for 25% of step time (25.0 ms per step): activation "
        "checkpointing, called at model.py:12 Model.forward (100% of it, in checkpoint()). At most 30% of the memory "
        "was used"
    )
    assert finding.potential_saving_s == pytest.approx(2.5)
    assert finding.losses == "same bit for bit"


def test_hooks_in_what_is_repeated_are_part_of_it():
    found = findings_of(repeating(phase="recomputation > forward hook"))
    assert found["recomputation"].potential_saving_s == pytest.approx(2.5)


@pytest.mark.parametrize(
    "run",
    [
        repeating(used=0.6),
        repeating(samples=4),
        replace(repeating(), machine=None),
        repeating(part=0.1),
        repeating(phase="custom backward"),
        replace(repeating(), program=ProgramFacts(SGD._replace(devices=("cuda",)))),
        replace(repeating(), phases={}),
    ],
    ids=["memory is short", "few samples", "no memory known", "at the threshold", "a reversible layer", "a GPU", ""],
)
def test_other_backward_passes_repeat_nothing_needless(run):
    assert "recomputation" not in findings_of(run)
