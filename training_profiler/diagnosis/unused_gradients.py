"""The rule about gradients of parameters that no optimizer has."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import BACKWARD_PASS

UNUSED_GRADIENTS: Final = "unused-gradients"
# A layer multiplies once for the gradient of its weight and once for that of its input.
OF_WEIGHTS: Final = 0.5


@RULES.rule(UNUSED_GRADIENTS, threshold=0.05)  # of step time
def unused_gradients(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag gradients of parameters that are in no optimizer, for what is over 5 % of step time.

    Their part of the backward pass is taken as that of their modules of the forward pass, and within a module as that
    of the parameters. A module whose input needs a gradient passes it on in any case.
    """
    step, facts = snapshot.step, snapshot.program.unused_gradients
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS)
    if step is None or facts is None or not has_enough_steps(snapshot) or not backward_s or not step.settled_s:
        return None
    potential_saving_s = backward_s * (facts.part - (1 - OF_WEIGHTS) * facts.passed_on)
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    at = f", called at {facts.place}" if facts.place else ""
    return Finding(
        code=UNUSED_GRADIENTS,
        message=f"Backward passes compute gradients of {facts.numbers:,} parameters that are in no optimizer, "
        f"{facts.numbers / facts.of:.0%} of all with gradients: of {facts.module}{at}; a step's backward passes take "
        f"{ms_text(backward_s / step.settled_count)}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "parameters": facts.numbers,
            "of_parameters": facts.of,
            "part_of_forward": facts.part,
            "module": facts.module,
            "lines": facts.place,  # those of the backward pass start that of all parameters
        },
        potential_saving_s=potential_saving_s,
        fix=(
            "Call it under torch.no_grad() if it only gives targets, or set requires_grad_(False) on these parameters"
            if facts.is_whole
            else "Set requires_grad_(False) on these parameters"
        )
        + ", unless you read their gradients; if they are to be trained, give them to the optimizer",
    )
