"""The rule about forward passes that activation checkpointing repeats, although memory is left."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.places import places_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.time_steps import is_on_cpu
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import BETWEEN, LineStats, Snapshot
from training_profiler.tables.pass_phases import RECOMPUTATION
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS

NEEDLESS_RECOMPUTATION: Final = "recomputation"
MEMORY_LEFT: Final = 0.5  # of all; activations that are kept may take as much again as everything else
MEMORY_SAMPLES: Final = 5  # of the system monitor
CALLS: Final = ("checkpoint", "checkpoint_sequential")
MOST_NAMED: Final = 2


@RULES.rule(NEEDLESS_RECOMPUTATION, threshold=0.10)  # of step time
def recomputation(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU that computes parts of the forward pass again, for over 10 % of step time.

    Silent where the machine or the container had less than half of its memory left at any time: then this is needed.
    """
    step, section, machine = snapshot.step, snapshot.sections.get(BACKWARD_PASS), snapshot.machine
    if step is None or not has_enough_steps(snapshot) or not step.settled_s or section is None or not section.share:
        return None
    if not is_on_cpu(snapshot.program) or machine is None or machine.ram_share is None:
        return None
    if machine.samples < MEMORY_SAMPLES or machine.ram_share.max > 1 - MEMORY_LEFT:
        return None
    of_run = sum(share for phase, share in snapshot.phases.items() if RECOMPUTATION in phase.split(BETWEEN))
    spent_s = min(1.0, of_run / section.share) * (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
    share = spent_s / step.settled_s
    if share <= threshold or spent_s < MIN_SAVING_S:
        return None
    lines = _checkpointed(snapshot)
    texts = places_text(lines[:MOST_NAMED], sum(line.share for line in lines))
    return Finding(
        code=NEEDLESS_RECOMPUTATION,
        message=f"Backward passes compute parts of the forward pass again, for {share:.0%} of step time "
        f"({ms_text(spent_s / step.settled_count)} per step): activation checkpointing"
        f"{f', called at {texts}' if texts else ''}. At most {machine.ram_share.max:.0%} of the memory was used",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "seconds": spent_s,
            "ram_share": machine.ram_share.max,
            "lines": texts,
        },
        potential_saving_s=spent_s,
        fix="As far as memory allows, call blocks of the model without activation checkpointing: all, or some of them",
    )


def _checkpointed(snapshot: Snapshot) -> list[LineStats]:
    """Return the lines of the forward pass that call blocks by torch's function for it."""
    return [
        line
        for line in snapshot.lines_of_steps(FORWARD_PASS)
        if any(name.rpartition(".")[2] in CALLS for name in line.called)
    ]
