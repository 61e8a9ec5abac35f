"""The rule about autograd's anomaly detection, which is meant for debugging."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import ANOMALY
from training_profiler.snapshot.snapshot import BETWEEN, Snapshot
from training_profiler.tables.pass_phases import ANOMALIES
from training_profiler.tables.sections import BACKWARD_PASS

ANOMALY_DETECTION: Final = "anomaly-detection"


@RULES.rule(ANOMALY_DETECTION, threshold=0.03)  # of step time
def anomaly_detection(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training with anomaly detection, by the samples in which a forward pass keeps a stack.

    To this comes what its checks take of the backward passes: as much of them as of the operators of the counted step.
    """
    step = snapshot.step
    if step is None or not snapshot.program.finds_anomalies or not has_enough_steps(snapshot) or not step.settled_s:
        return None
    stacks = sum(share for phase, share in snapshot.phases.items() if ANOMALIES in phase.split(BETWEEN))
    spent_s = stacks * snapshot.wall_s * (step.settled_s / step.total_s if step.total_s else 0.0)
    checks_s = _checks_s(snapshot)
    spent_s = min(step.settled_s, spent_s + (checks_s or 0.0))
    share = spent_s / step.settled_s
    if share <= threshold or spent_s < MIN_SAVING_S:
        return None
    places = snapshot.program.places_of(ANOMALY)
    where = f", switched on at {places}" if places else ""
    checking = "to look for NaN in each gradient"
    more, unknown = ("", f", and more {checking}") if checks_s is None else (f" and {checking}", "")
    return Finding(
        code=ANOMALY_DETECTION,
        message=f"Autograd's anomaly detection takes {share:.0%} of step time to keep a stack for each operation{more} "
        f"({ms_text(spent_s / step.settled_count)} per step){where}{unknown}",
        evidence={"share_of_step": share, "threshold": threshold, "lines": places},
        potential_saving_s=spent_s,
        fix="Switch anomaly detection off (torch.autograd.set_detect_anomaly, detect_anomaly): use it to find the "
        "operation that makes a NaN, and not while training",
    )


def _checks_s(snapshot: Snapshot) -> float | None:
    """Return how long the checks take in backward passes within steps; None where that is unknown.

    A device's time is unknown: operators of the counted step took the host's time.
    """
    checks = snapshot.program.nan_checks
    if not checks.all_s or snapshot.is_by_device(BACKWARD_PASS):
        return None
    return checks.seconds / checks.all_s * (snapshot.total_of_step_s(BACKWARD_PASS) or 0.0)
