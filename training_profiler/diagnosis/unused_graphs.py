"""The rule about forward passes that record a graph which nothing uses."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.validation import RECORDING_COSTS
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import FORWARD_PASS

UNUSED_GRAPHS: Final = "unused-graphs"
STEPS_NEEDED: Final = 10
CALLS_A_STEP: Final = 0.25  # fewer may be chance, or a log entry now and then


@RULES.rule(UNUSED_GRAPHS, threshold=0.1)  # of step time
def unused_graphs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag forward passes that record a graph which no backward pass uses, from 10 % of step time on.

    What recording costs is not measured in the run: the saving is that of a usual model on a CPU. A GPU that is the
    bottleneck records while it computes. Validation has a rule of its own.
    """
    step, facts = snapshot.step, snapshot.program.unused_graphs
    if step is None or facts is None or not has_enough_steps(snapshot) or not step.settled_s:
        return None
    if facts.steps < STEPS_NEEDED or facts.calls < CALLS_A_STEP * facts.steps:
        return None
    if snapshot.with_grad_count or snapshot.is_by_device(FORWARD_PASS):
        return None
    spent_s = min(step.settled_s, facts.part * (snapshot.total_of_step_s(FORWARD_PASS) or 0.0))
    share = spent_s / step.settled_s
    if share <= threshold or RECORDING_COSTS * spent_s < MIN_SAVING_S:
        return None
    at = f" at {facts.place}" if facts.place else ""
    return Finding(
        code=UNUSED_GRAPHS,
        message=f"Forward passes record gradients that no backward pass uses: {facts.calls / facts.of:.0%} of them, "
        f"above all {facts.module}{at} ({ms_text(spent_s / step.settled_count)} per step, {share:.0%} of step time)",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "calls": facts.calls,
            "of_calls": facts.of,
            "steps": facts.steps,
            "module": facts.module,
            "lines": facts.place,
        },
        potential_saving_s=RECORDING_COSTS * spent_s,
        fix="Call it under torch.no_grad(), as for acting, targets and metrics: it takes less memory, too",
    )
