"""The rule about modules that run twice for the same input."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import RepeatFacts
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import FORWARD_PASS, FORWARD_WITHOUT_GRAD, ROLLOUT

REPEATED_FORWARD: Final = "repeated-forward"
STEPS_NEEDED: Final = 10
EACH_STEP: Final = 0.9  # steps with such a call
AT_TIMES: Final = 3  # steps with such a call; fewer may be chance
MOSTLY: Final = 0.5  # of the repeated calls


@RULES.rule(REPEATED_FORWARD, threshold=0.05)  # of step time
def repeated_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a module that runs again for the same input, in each step or at times; None where it was not looked for.

    Two passes with dropout and with gradients may be wanted, so they have no saving.
    """
    step, facts = snapshot.step, snapshot.program.repeats
    if step is None or facts is None or not has_enough_steps(snapshot) or facts.steps < STEPS_NEEDED:
        return None
    is_each_step = facts.steps_with >= EACH_STEP * facts.steps
    spent_s = _repeated_s(snapshot, facts)
    share = spent_s / step.settled_s if step.settled_s else 0.0
    if not (is_each_step or facts.steps_with >= AT_TIMES) or share <= threshold or spent_s < MIN_SAVING_S:
        return None
    is_metric, is_random = facts.without_grad > MOSTLY * facts.calls, facts.random > MOSTLY * facts.calls
    where = f" at {facts.place}" if facts.place else ""
    how = ", also without gradients" if is_metric else ""
    in_validation = is_metric and not {FORWARD_WITHOUT_GRAD, ROLLOUT} & snapshot.sections.keys()
    when = "" if is_each_step else f", in {facts.steps_with} of {facts.steps} steps that were looked at"
    of_a_step = "per step" if is_each_step else "per step on average"
    of_step = "outside of steps" if in_validation else f"{share:.0%} of step time"
    return Finding(
        code=REPEATED_FORWARD,
        message=f"A model runs again for the same input{where}{how}{when} "
        f"({ms_text(spent_s / step.settled_count)} {of_a_step}, {of_step})",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "repeated_a_step": facts.calls / facts.steps,
            "steps_with": facts.steps_with,
            "without_gradients": int(is_metric),
            "random": int(is_random),
            "in_validation": int(in_validation),
            "lines": facts.place,
        },
        potential_saving_s=0.0 if is_random and not is_metric else spent_s,
        fix=_fix(facts, is_metric=is_metric, is_random=is_random),
    )


def _fix(facts: RepeatFacts, *, is_metric: bool, is_random: bool) -> str:
    if is_metric and facts.after_update > MOSTLY * facts.calls:
        return "Take metrics from the output of the forward pass that is there: they are then those before the update"
    if is_metric:
        others = ", with its dropout" if is_random else ""
        return f"Call it once and use its output twice; .detach() gives the values for metrics{others}"
    if is_random:
        return (
            "Call it once and use its output twice, unless the method needs two different outputs for one input, as "
            "R-Drop and SimCSE do: it draws random numbers, such as dropout"
        )
    return "Call it once and use its output twice; .detach() is for what must not train it, such as a discriminator"


def _repeated_s(snapshot: Snapshot, facts: RepeatFacts) -> float:
    """Return the time of repeated calls in all steps: on a device, as much of it as of the forward passes."""
    step, forward = snapshot.step, snapshot.sections.get(FORWARD_PASS)
    assert step is not None
    if snapshot.is_by_device(FORWARD_PASS) and forward is not None and step.count:
        calls_a_step = forward.count / step.count
        part = min(1.0, facts.calls / facts.steps / calls_a_step) if calls_a_step else 0.0
        return part * (snapshot.total_of_step_s(FORWARD_PASS) or 0.0)
    return min(step.settled_s, facts.seconds / facts.steps * step.settled_count)
