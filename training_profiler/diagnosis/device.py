"""Rules about how busy accelerators are, and what the host's time costs while they work."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.memory import SAMPLES_NEEDED
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps, row_of
from training_profiler.findings.finding import Finding, brief
from training_profiler.findings.losses import Change
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import PROFILER, Snapshot, StepStats

MOSTLY: Final = 0.5  # of a section's time, or of what long steps take beyond the median
IN_SOME_STEPS: Final = 1.25  # of the latter: where more is waited, it is in each step, as far as samples show
IDLE_AT_LEAST: Final = 0.1  # share of the host's time; what it does while the device works costs nothing
CPU_BOTTLENECK: Final = 0.70
SERIOUS: Final = 0.50
MOST_OF_IT: Final = 0.5  # of the idle time
GPU_UTILIZATION: Final = "gpu-utilization"
SHARED_GPU: Final = "shared-gpu"


def trains_on_cpu(snapshot: Snapshot) -> bool:
    """Return whether it is known that no accelerator trains."""
    optimizer = snapshot.program.optimizer
    return snapshot.device is None and optimizer is not None and optimizer.devices == ("cpu",)


def waited_s(snapshot: Snapshot, name: str) -> float:
    """Return for how long Python waited for the device in a section, or in no section, by its lines; in s."""
    return sum(line.waiting_share for line in snapshot.lines.get(name, ())) * snapshot.wall_s


def host_runs_ahead(snapshot: Snapshot) -> bool:
    """Return whether steps are long where Python waits for an accelerator, in some steps and not in each.

    The others only queue their work, and the long one takes as long as the device needs for all of it: ``.item()`` in
    every tenth step. Waiting in each step is in the median, too, so it is more than what long steps take beyond it.
    """
    step = snapshot.step
    if step is None or trains_on_cpu(snapshot):
        return False
    waits_s, beyond_s = waited_s(snapshot, varies_most(step)[0]), (step.avg_s - step.median_s) * step.settled_count
    return MOSTLY * beyond_s <= waits_s <= IN_SOME_STEPS * beyond_s and waits_s > 0


def varies_most(step: StepStats) -> tuple[str, float]:
    """Return the section that explains most of the variance of step time, and that part; ("", 0.0) if unknown."""
    return max(step.explained.items(), key=lambda item: item[1], default=("", 0.0))


def idle_time_s(snapshot: Snapshot) -> float | None:
    """Return how long the accelerator of this training was idle from the first step on, in s; None if unknown."""
    if snapshot.machine is None or snapshot.machine.samples < SAMPLES_NEEDED or trains_on_cpu(snapshot):
        return None
    return snapshot.idle_loop_s()


def within_idle_time(findings: list[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings; the host's time saves no more than the time in which the accelerator was idle.

    A host that is ahead may lose time and still queue work before the device needs it. A finding is dropped when less
    than a tenth of its saving is left.
    """
    idle_s = idle_time_s(snapshot)
    if idle_s is None:
        return findings
    left = []
    for finding in findings:
        lost_s = finding.potential_saving_s or float(finding.evidence.get("lost_s", 0.0))
        if not row_of(finding).is_of_host or lost_s <= idle_s:
            left.append(finding)
        elif idle_s >= max(MIN_SAVING_S, IDLE_AT_LEAST * lost_s):
            left.append(replace(finding, potential_saving_s=min(finding.potential_saving_s, idle_s)))
    return left


def _with_cause(finding: Finding, findings: Sequence[Finding], _: Snapshot) -> Finding:
    """Return the finding; the fix for an idle device is that for its cause, where one makes up most of it."""
    causes = [each for each in findings if row_of(each).explains_idle]
    cause = max(causes, key=lambda each: each.potential_saving_s, default=None)
    if cause is None or cause.potential_saving_s < MOST_OF_IT * finding.potential_saving_s:
        return finding
    # The whole fix stands beside the cause, which is listed as well.
    return replace(finding, fix=f"First fix what keeps it waiting: {brief(cause.message)}")


def _without_causes(finding: Finding, others: Sequence[Finding], _: Snapshot) -> Finding:
    """Return the finding with what its causes leave of its saving."""
    rows = ((each, row_of(each)) for each in others)
    claimed_s = sum(each.potential_saving_s for each, row in rows if row.claims and row.explains_idle)
    return replace(finding, potential_saving_s=max(0.0, finding.potential_saving_s - claimed_s))


@RULES.rule(
    "gpu-utilization",
    threshold=0.80,
    label="GPU IDLE",
    saves=(0.1, 1.0),
    changes=(Change.COMPILE, Change.OTHER_BATCHES, Change.LARGER_COLLECTIVES),
    beside=_with_cause,
    rest=_without_causes,
)
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
        code="gpu-utilization",
        message=f"GPU {index} is busy {utilization:.0%} of the time ({verdict})",
        evidence={"gpu": index, "utilization": utilization, "threshold": threshold},
        potential_saving_s=idle * step.settled_s,
        fix='Use a larger batch, torch.compile(mode="reduce-overhead") or CUDA graphs to give it more work at a time',
    )


@RULES.rule("shared-gpu", 0.10, label="GPU SHARED", saves=(0.0, 1.0), changes=(Change.OTHER_GPU,), is_first=True)
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
        code="shared-gpu",
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


@RULES.rule(
    "profiler-records",
    threshold=0.5,  # of the samples
    saving=Saving.UNKNOWN,
    label="UNDER A PROFILER",
    changes=(Change.FEWER_RECORDED,),
    is_first=True,
    is_risk=True,
)
def profiler_records(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a program whose own torch.profiler records for more than half of the time after the first steps.

    What it costs is not known: it is in every operator, and in what is done with the events at its end.
    """
    machine = snapshot.machine
    recorded = None if machine is None or machine.samples < SAMPLES_NEEDED else machine.recorded
    if recorded is None or recorded.mean <= threshold or not has_enough_steps(snapshot):
        return None
    share = recorded.mean
    return Finding(
        code="profiler-records",
        message=f"A profiler of torch that the program starts records {share:.0%} of the time, which makes each "
        "operator longer; all times below contain that",
        evidence={"share_of_samples": share, "threshold": threshold},
        fix="Record a few steps only: torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=1, "
        "active=3, repeat=1)) with its step() after each training step; or train without torch.profiler, emit_nvtx and "
        "emit_itt",
    )
