"""Rules about how busy accelerators are."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.memory import LOOKS_NEEDED
from training_profiler.diagnosis.registry import RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot

CPU_BOTTLENECK: Final = 0.70
SERIOUS: Final = 0.50
CAUSES: Final = (  # of an idle device, by their codes
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


@RULES.rule("gpu-utilization", threshold=0.80)
def gpu_utilization(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag devices with a kernel running in less than 80 % of the time; None below 5 looks of the monitor."""
    machine, step = snapshot.machine, snapshot.step
    if machine is None or machine.samples < LOOKS_NEEDED or step is None or not has_enough_steps(snapshot):
        return None
    known = [(gpu.utilization.mean, gpu.index) for gpu in machine.gpus if gpu.utilization is not None]
    if not known or min(known)[0] >= threshold:
        return None
    utilization, index = min(known)
    if utilization < SERIOUS:
        how = "which is serious"
    elif utilization < CPU_BOTTLENECK:
        how = "likely because the CPU does not keep up"
    else:
        how = "worth a look"
    return Finding(
        code="gpu-utilization",
        message=f"GPU {index} is busy {utilization:.0%} of the time, {how}",
        evidence={"gpu": index, "utilization": utilization, "threshold": threshold},
        potential_saving_s=(1 - utilization) * step.settled_s,
        fix="a larger batch, torch.compile or CUDA graphs give it more to do at a time",
    )


def with_cause(found: list[Finding]) -> list[Finding]:
    """Return the insights; that of an idle device names the costliest of its likely causes among the others."""
    causes = sorted((other for other in found if other.code in CAUSES), key=lambda other: -other.potential_saving_s)
    if not causes:
        return found
    fix = f"first what keeps it waiting ({causes[0].code}): {causes[0].fix}"
    return [replace(one, fix=fix) if one.code == "gpu-utilization" else one for one in found]
