"""The rules about a run, and what they have in common."""

from dataclasses import replace
from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Registry, Saving
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import BACKWARD_PASS

RULES: Final[Registry[Snapshot]] = Registry()

# Steps after warm-up. A share of fewer steps means little, unless they are long: with LBFGS, or accumulated gradients.
STEPS_NEEDED: Final = 10
LONG_S: Final = 1.0  # of all these steps
PASSES_NEEDED: Final = 20  # backward passes in them
# A saving of less than this over the whole run is not reported, whatever its share.
MIN_SAVING_S: Final = 0.02
WORTH_SAYING: Final = 0.01  # of the time of steps: a few long ones among hundreds vary by much and cost nothing


def has_enough_steps(snapshot: Snapshot) -> bool:
    """Return whether shares of the step can be trusted: of many steps, or of few ones with many passes."""
    step, backward = snapshot.step, snapshot.sections.get(BACKWARD_PASS)
    if step is None or step.settled_count >= STEPS_NEEDED:
        return step is not None
    if backward is None or step.settled_s < LONG_S:
        return False
    return backward.count * step.settled_count >= PASSES_NEEDED * step.count


def threshold_of(code: str, snapshot: Snapshot) -> float:
    """Return the threshold of a rule in this run."""
    return snapshot.thresholds.get(code, RULES[code].threshold)


def with_step_time(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with the mean step now and without the cost, if the cost lies in steps."""
    step, saving_s = snapshot.step, finding.potential_saving_s
    if RULES[finding.code].saving is not Saving.STEPS or not saving_s or step is None:
        return finding
    # The saving is of all steps. The mean step leaves out those that a capture window slowed down.
    if step.disturbed_count and step.settled_s:
        saved_a_step_s = saving_s / step.settled_s * step.avg_s
    else:
        saved_a_step_s = saving_s / max(1, step.settled_count)
    return replace(finding, step_s=step.avg_s, step_if_gone_s=max(0.0, step.avg_s - saved_a_step_s))
