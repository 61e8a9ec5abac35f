"""Rules about how busy accelerators are."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.memory import SAMPLES_NEEDED
from training_profiler.diagnosis.registry import RULES, has_enough_steps
from training_profiler.findings.finding import Finding, brief
from training_profiler.snapshot.snapshot import PROFILER, Snapshot

CPU_BOTTLENECK: Final = 0.70
SERIOUS: Final = 0.50
MOST_OF_IT: Final = 0.5  # of the idle time
GPU_UTILIZATION: Final = "gpu-utilization"
SHARED_GPU: Final = "shared-gpu"
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
    "recompiles",
    "garbage-collection",
    "lock-held-by-thread",
    "python-in-forward",
    "small-operators",
    "time-step-loop",
    "parameter-loop",
    "forward-hooks",
    "backward-hooks",
    "anomaly-detection",
)


@RULES.rule(GPU_UTILIZATION, threshold=0.80)
def gpu_utilization(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag devices that run a kernel less than 80 % of the time; None below 5 samples of the system monitor.

    Work between steps may leave the device idle for all of its time. Only what is left of the idle time is in steps.
    """
    machine, step = snapshot.machine, snapshot.step
    if machine is None or machine.samples < SAMPLES_NEEDED or step is None or not has_enough_steps(snapshot):
        return None
    if machine.least_busy is None:
        return None
    utilization, index = machine.least_busy
    idle = (1 - utilization) - utilization * _between_steps_s(snapshot) / step.total_s
    if min(1 - utilization, idle) <= 1 - threshold:
        return None
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
        potential_saving_s=idle * step.settled_s,
        fix='Use a larger batch, torch.compile(mode="reduce-overhead") or CUDA graphs to give it more work at a time',
    )


@RULES.rule(SHARED_GPU, threshold=0.10)
def shared_gpu(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a device of which processes of other programs take over 10 % of the time; None below 5 samples.

    One process after the other has the device, so work on it waits for theirs: for that share at most, if this one had
    work for it all the time, and not at all if their work fell into its pauses.
    """
    machine, step = snapshot.machine, snapshot.step
    if machine is None or machine.samples < SAMPLES_NEEDED or step is None or not has_enough_steps(snapshot):
        return None
    if machine.most_shared is None or machine.most_shared[0] <= threshold:
        return None
    others, gpu = machine.most_shared
    most = 2 if gpu.processes is None else max(2, round(gpu.processes.max))
    return Finding(
        code=SHARED_GPU,
        message=f"Other programs use GPU {gpu.index}, too: their kernels run {others:.0%} of the time "
        f"({most} processes in all), and work on it waits for them",
        evidence={"gpu": gpu.index, "others": others, "processes": most, "threshold": threshold},
        potential_saving_s=others * step.settled_s,
        fix="Run it again on a GPU that no other program uses, before changing code: nvidia-smi lists the programs, "
        "CUDA_VISIBLE_DEVICES chooses the GPU",
    )


def _between_steps_s(snapshot: Snapshot) -> float:
    """Return the time from the first step on that is in no step, without the profiler's own."""
    assert snapshot.step is not None
    profiler = snapshot.sections.get(PROFILER)
    own_s = 0.0 if profiler is None else profiler.total_s
    return max(0.0, snapshot.wall_s - (snapshot.step.before_s or 0.0) - snapshot.step.total_s - own_s)


def with_cause(findings: list[Finding]) -> list[Finding]:
    """Return the findings; the fix for an idle device is that for its cause, where one makes up most of it."""
    idle = next((finding for finding in findings if finding.code == GPU_UTILIZATION), None)
    causes = [finding for finding in findings if finding.code in CAUSES]
    if idle is None or not causes:
        return findings
    cause = max(causes, key=lambda finding: finding.potential_saving_s)
    if cause.potential_saving_s < MOST_OF_IT * idle.potential_saving_s:
        return findings
    # The whole fix stands beside the cause, which is listed as well.
    fix = f"First fix what keeps it waiting: {brief(cause.message)}"
    return [replace(finding, fix=fix) if finding.code == GPU_UTILIZATION else finding for finding in findings]
