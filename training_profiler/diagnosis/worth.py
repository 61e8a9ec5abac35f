"""How uncertain a finding's saving is: what a fix of its kind achieves, and how much steps vary."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.frozen_forward import FROZEN_FORWARD, LOADING_S
from training_profiler.diagnosis.machine import MACHINE_BUSY
from training_profiler.diagnosis.registry import RULES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import Snapshot, StepStats

UNEXPLAINED: Final = "unexplained"
CONFIDENCE: Final = 2.0  # standard errors of the mean step

# The least and the most of the estimate that a fix saves; of others, the estimate is the most.
_PARTS: Final[dict[str, tuple[float, float]]] = {
    "data-loading-bound": (0.5, 1.0),
    "first-batch-slow": (0.5, 1.0),
    "workers-restarted": (0.6, 1.1),
    "validation-workers-restarted": (0.6, 1.8),
    "slow-precision": (0.6, 1.2),
    "full-precision": (0.8, 1.3),
    "channels-first": (0.1, 1.6),
    "gpu-utilization": (0.1, 1.0),
    "shared-gpu": (0.0, 1.0),
    "validation-tiny-batches": (0.5, 1.1),
    "loader-restarted": (0.5, 1.3),
    "few-threads": (0.2, 1.25),
    "sampler-slow": (0.5, 1.0),
    "data-generation-bound": (0.5, 1.0),
    "data-transfer": (0.3, 1.0),
    "forward-dominates": (0.0, 1.5),
    "backward-hooks": (0.3, 1.1),
    "forward-hooks": (0.3, 1.1),
    "backward-slow": (0.0, 1.5),
    "optimizer-heavy": (0.4, 1.3),
    "validation-heavy": (0.5, 1.1),
    "passes-before-training": (0.0, 1.0),
    "validation-with-gradients": (0.2, 2.3),
    "sampling-heavy": (0.5, 1.8),
    "checkpointing-heavy": (0.5, 1.1),
    "batch-norm-update-heavy": (0.8, 1.1),
    "parameter-loop": (0.4, 1.2),
    "needless-create-graph": (0.3, 2.8),
    "unused-gradients": (0.5, 1.5),
    "unused-graphs": (0.2, 2.5),
    "recomputation": (0.6, 1.4),
    "small-operators": (0.5, 1.1),
    "time-step-loop": (0.4, 1.5),
    "python-in-forward": (0.3, 1.1),
    "python-in-backward": (0.3, 1.1),
    "double-precision": (0.6, 1.3),
    "tiny-batches": (0.5, 1.1),
    "repeated-backward": (0.0, 1.4),
    "repeated-forward": (0.8, 1.2),
    "frozen-forward": (0.6, 1.3),
    "anomaly-detection": (0.8, 1.6),
    "dense-embedding": (0.7, 1.3),
    UNEXPLAINED: (0.5, 1.1),
    "slowing-down": (0.5, 1.1),
    "outside-steps": (0.0, 1.0),
    "recompiles": (0.7, 1.2),
    "lock-held-by-thread": (0.7, 1.5),
    "garbage-collection": (0.0, 1.0),
    "page-faults": (0.3, 1.5),
    MACHINE_BUSY: (0.7, 1.1),
}
_UNLISTED: Final = (0.5, 1.0)


def _most_s(finding: Finding, step: StepStats | None) -> float:
    """Return an upper bound of what a fix saves, where one was measured; else 0."""
    evidence = finding.evidence
    if finding.code == "data-loading-bound":  # a faster data set saves all waiting, more workers a part
        per_step_s, steps = evidence.get("seconds_per_step"), evidence.get("steps")
        return per_step_s * steps if isinstance(per_step_s, float) and isinstance(steps, int) else 0.0
    if finding.code == UNEXPLAINED and "spent_on" in evidence:  # the rest may have a remedy, too
        return float(evidence["seconds"])
    if finding.code == FROZEN_FORWARD:
        return finding.potential_saving_s + float(evidence[LOADING_S])
    if finding.code == MACHINE_BUSY and step is not None:
        # Threads of an operation wait for one without a CPU, which no counter shows: such steps take longer.
        return (step.avg_s - step.median_s) * step.settled_count
    return 0.0


def with_uncertainty(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with the range of its saving; as it is without one."""
    saving_s, step = finding.potential_saving_s, snapshot.step
    if not saving_s or not snapshot.wall_s:
        return finding
    error, limit_s = 0.0, snapshot.wall_s
    if RULES[finding.code].saving is Saving.STEPS and step is not None and step.settled_count > 1 and step.avg_s:
        error = CONFIDENCE * step.std_s / step.avg_s / step.settled_count**0.5
        limit_s = max(saving_s, step.total_s)
    least, most = _PARTS.get(finding.code, _UNLISTED)
    if finding.code == UNEXPLAINED and "spent_on" not in finding.evidence:  # its lines may do what a step needs
        least = 0.0
    most = max(most, _most_s(finding, step) / saving_s)
    low_s, high_s = saving_s * max(0.0, least - error), min(limit_s, saving_s * (most + error))
    return replace(finding, saving_range_s=(low_s, max(low_s, high_s)))
