"""Rules about hooks that run in forward and backward passes."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.places import places_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import BETWEEN, Snapshot
from training_profiler.tables.pass_phases import BACKWARD_HOOK, FORWARD_HOOK
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS

BACKWARD_HOOKS: Final = "backward-hooks"
FORWARD_HOOKS: Final = "forward-hooks"
SAMPLES_NEEDED: Final = 10  # of lines in hooks; fewer may be chance
NAMED_FROM: Final = 0.25  # of the time in hooks
MOST_NAMED: Final = 3


@RULES.rule(BACKWARD_HOOKS, threshold=0.10)  # of step time
def backward_hooks(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag hooks of the program that take over 10 % of step time in backward passes; None below 10 samples of them.

    Whether the training needs them is not known: some change gradients, others only watch them.
    """
    fix = (
        "Hooks that only watch gradients can do so every n-th step (remove them meanwhile), or read .grad after "
        "backward(); let the others compute with whole tensors instead of loops in Python"
    )
    return _finding(snapshot, threshold, BACKWARD_HOOKS, BACKWARD_PASS, BACKWARD_HOOK, fix)


@RULES.rule(FORWARD_HOOKS, threshold=0.10)  # of step time
def forward_hooks(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag hooks of the program that take over 10 % of step time in forward passes; None below 10 samples of them.

    Whether the training needs them is not known: some change outputs, others only watch them.
    """
    fix = (
        "Hooks that only watch outputs can do so every n-th step (remove them meanwhile), and keep tensors instead of "
        "reading numbers out of each; let the others compute with whole tensors instead of loops in Python"
    )
    return _finding(snapshot, threshold, FORWARD_HOOKS, FORWARD_PASS, FORWARD_HOOK, fix)


def _finding(snapshot: Snapshot, threshold: float, code: str, name: str, phase: str, fix: str) -> Finding | None:
    step, section, passes_s = snapshot.step, snapshot.sections.get(name), snapshot.total_of_step_s(name)
    lines = [line for line in snapshot.lines_of_steps(name) if phase in line.phase.split(BETWEEN)]
    if step is None or not has_enough_steps(snapshot) or not step.settled_s or section is None or not section.share:
        return None
    if sum(line.samples for line in lines) < SAMPLES_NEEDED or not passes_s or snapshot.is_by_device(name):
        return None
    whole = sum(line.share for line in lines)
    spent_s = min(1.0, whole / section.share) * passes_s
    share = spent_s / step.settled_s
    if share <= threshold or spent_s < MIN_SAVING_S:
        return None
    texts = places_text([line for line in lines if line.share >= NAMED_FROM * whole][:MOST_NAMED], whole)
    above_all = f", above all in {texts}" if texts else ""
    passes = name.replace("_pass", " passes")
    return Finding(
        code=code,
        message=f"Hooks take {share:.0%} of step time in {passes} ({ms_text(spent_s / step.settled_count)} per "
        f"step){above_all}",
        evidence={"share_of_step": share, "threshold": threshold, "seconds": spent_s, "lines": texts},
        potential_saving_s=spent_s,
        fix=fix,
    )
