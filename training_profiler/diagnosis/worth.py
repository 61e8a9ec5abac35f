"""How uncertain a finding's saving is: what a fix of its kind achieves, and how much steps vary."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.machine import MACHINE_BUSY
from training_profiler.diagnosis.registry import RULES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import Snapshot

CONFIDENCE: Final = 2.0  # standard errors of the mean step

# The least and the most of the estimate that a fix saves; of others, the estimate is the most.
_PARTS: Final[dict[str, tuple[float, float]]] = {
    "data-loading-bound": (0.5, 1.0),
    "first-batch-slow": (0.5, 1.0),
    "workers-restarted": (0.6, 1.1),
    "validation-workers-restarted": (0.6, 1.1),
    "loader-restarted": (0.5, 1.0),
    "few-threads": (0.2, 1.25),
    "sampler-slow": (0.5, 1.0),
    "data-generation-bound": (0.5, 1.0),
    "data-transfer": (0.3, 1.0),
    "forward-dominates": (0.0, 1.5),
    "backward-hooks": (0.3, 1.1),
    "backward-slow": (0.0, 1.5),
    "optimizer-heavy": (0.4, 1.3),
    "validation-heavy": (0.5, 1.1),
    "validation-with-gradients": (0.2, 2.3),
    "sampling-heavy": (0.5, 1.8),
    "checkpointing-heavy": (0.5, 1.1),
    "batch-norm-update-heavy": (0.8, 1.1),
    "parameter-loop": (0.4, 1.2),
    "needless-create-graph": (0.3, 2.8),
    "unused-gradients": (0.5, 1.5),
    "small-operators": (0.5, 1.1),
    "python-in-forward": (0.3, 1.1),
    "double-precision": (0.6, 1.3),
    "tiny-batches": (0.5, 1.1),
    "repeated-backward": (0.0, 1.4),
    "repeated-forward": (0.8, 1.2),
    "frozen-forward": (0.6, 1.3),
    "anomaly-detection": (0.8, 2.0),
    "dense-embedding": (0.7, 1.3),
    "unexplained": (0.5, 1.1),
    "slowing-down": (0.5, 1.1),
    "outside-steps": (0.0, 1.0),
    "recompiles": (0.7, 1.2),
    "lock-held-by-thread": (0.7, 1.5),
    "garbage-collection": (0.0, 1.0),
    "page-faults": (0.3, 1.5),
    MACHINE_BUSY: (0.7, 1.1),
}
_UNLISTED: Final = (0.5, 1.0)


def _all_waiting_s(finding: Finding) -> float:
    """Return the time waiting for batches, which a faster data set saves where more workers save a part; else 0."""
    per_step_s, steps = finding.evidence.get("seconds_per_step"), finding.evidence.get("steps")
    if finding.code != "data-loading-bound" or not isinstance(per_step_s, float) or not isinstance(steps, int):
        return 0.0
    return per_step_s * steps


def _of_unexplained(finding: Finding, least: float, most: float) -> tuple[float, float]:
    """Return the parts for time in no section: beside what it is spent on there may be more, and less without lines."""
    if "spent_on" in finding.evidence:
        return least, max(most, float(finding.evidence["seconds"]) / finding.potential_saving_s)
    return (least if "lines" in finding.evidence else 0.0), most


def with_uncertainty(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with the range of its saving; as it is without one."""
    saving_s, step = finding.potential_saving_s, snapshot.step
    if not saving_s or not snapshot.wall_s:
        return finding
    error = 0.0
    if RULES[finding.code].saving is Saving.STEPS and step is not None and step.settled_count > 1 and step.avg_s:
        error = CONFIDENCE * step.std_s / step.avg_s / step.settled_count**0.5
    least, most = _PARTS.get(finding.code, _UNLISTED)
    if finding.code == "unexplained":
        least, most = _of_unexplained(finding, least, most)
    if finding.code == MACHINE_BUSY and step is not None:
        # Threads of an operation wait for one without a CPU, which no counter shows: such steps take longer.
        most = max(most, (step.avg_s - step.median_s) * step.settled_count / saving_s)
    most = max(most, _all_waiting_s(finding) / saving_s)
    low_s, high_s = saving_s * max(0.0, least - error), min(snapshot.wall_s, saving_s * (most + error))
    return replace(finding, saving_range_s=(low_s, max(low_s, high_s)))
