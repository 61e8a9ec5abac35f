"""Rules about how busy accelerators are."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.memory import SAMPLES_NEEDED
from training_profiler.diagnosis.registry import RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot

CPU_BOTTLENECK: Final = 0.70
SERIOUS: Final = 0.50
GPU_UTILIZATION: Final = "gpu-utilization"
CAUSES: Final = (  # codes of findings that explain an idle device
    "data-loading-bound",
    "data-generation-bound",
    "data-transfer",
    "waits-for-device",
    "unexplained",
    "metrics-heavy",
    "logging-heavy",
    "ema-heavy",
    "checkpointing-heavy",
    "synchronization-heavy",
)


@RULES.rule(GPU_UTILIZATION, threshold=0.80)
def gpu_utilization(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag devices that run a kernel less than 80 % of the time; None below 5 samples of the system monitor."""
    machine, step = snapshot.machine, snapshot.step
    if machine is None or machine.samples < SAMPLES_NEEDED or step is None or not has_enough_steps(snapshot):
        return None
    known = [(gpu.utilization.mean, gpu.index) for gpu in machine.gpus if gpu.utilization is not None]
    if not known or min(known)[0] >= threshold:
        return None
    utilization, index = min(known)
    if utilization < SERIOUS:
        verdict = "serious"
    elif utilization < CPU_BOTTLENECK:
        verdict = "the CPU probably cannot keep up"
    else:
        verdict = "could be higher"
    return Finding(
        code=GPU_UTILIZATION,
        message=f"GPU {index} is busy {utilization:.0%} of the time ({verdict})",
        evidence={"gpu": index, "utilization": utilization, "threshold": threshold},
        potential_saving_s=(1 - utilization) * step.settled_s,
        fix="Use a larger batch, torch.compile or CUDA graphs to give it more work at a time",
    )


def with_cause(findings: list[Finding]) -> list[Finding]:
    """Return the findings; the fix for an idle device starts with the costliest of its likely causes."""
    causes = [finding for finding in findings if finding.code in CAUSES]
    if not causes:
        return findings
    cause = max(causes, key=lambda finding: finding.potential_saving_s)
    fix = f"First fix what keeps it waiting ({cause.code}): {cause.fix}"
    return [replace(finding, fix=fix) if finding.code == GPU_UTILIZATION else finding for finding in findings]
