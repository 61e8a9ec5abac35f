"""The rule about what is computed of each parameter alone, such as a penalty in the loss."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.places import places_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS

PARAMETER_LOOP: Final = "parameter-loop"
LEAST: Final = 8  # operations a step; of fewer tensors a loop is short
MOST_TENSORS: Final = 0.5  # of the optimizer's: with fewer it may be a layer


@RULES.rule(PARAMETER_LOOP, threshold=0.10)  # of step time
def parameter_loop(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag losses with operations on most parameters, one by one, that take over 10 % of step time.

    Their part of the backward pass is that of the counted step, and they take as much unattributed time at most. None
    where operators were not counted, and where no module computes the forward pass.
    """
    step, program = snapshot.step, snapshot.program
    outside, optimizer = program.outside, program.optimizer
    if step is None or not has_enough_steps(snapshot) or not step.settled_s or optimizer is None or not outside.all_s:
        return None
    if outside.of_parameters < max(LEAST, MOST_TENSORS * optimizer.tensors) or snapshot.is_by_device(BACKWARD_PASS):
        return None
    if not snapshot.total_of_step_s(FORWARD_PASS):
        return None
    backward_s = outside.seconds / outside.all_s * (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
    forward_s = min(backward_s, snapshot.total_of_step_s(OTHER) or 0.0)
    share = (backward_s + forward_s) / step.settled_s
    if share <= threshold or backward_s + forward_s < MIN_SAVING_S:
        return None
    each_s = (backward_s + forward_s) / step.settled_count
    places = snapshot.hottest(OTHER, of_steps=True)
    other = snapshot.sections.get(OTHER)
    lines = "" if other is None or not places else places_text(places[:1], other.share)
    return Finding(
        code=PARAMETER_LOOP,
        message=f"The loss is computed of parameters one by one, as a penalty is: {outside.of_parameters} operations a "
        f"step, which take about {share:.0%} of step time with their part of the backward pass ({ms_text(each_s)} per "
        "step)" + (f"; unattributed time is above all in {lines}" if lines else ""),
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "operations": outside.of_parameters,
            "backward_s": backward_s,
            "lines": lines,
        },
        potential_saving_s=backward_s + forward_s,
        fix="Use weight_decay of the optimizer for the sum of squares; otherwise compute it of all parameters at once "
        "(torch._foreach_norm, torch._foreach_mul)",
    )
