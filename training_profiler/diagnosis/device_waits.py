"""Whether Python waits for an accelerator, in each step or in some, and what the host's time costs while it works."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.memory import SAMPLES_NEEDED
from training_profiler.diagnosis.registry import MIN_SAVING_S
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot, StepStats

MOSTLY: Final = 0.5  # of a section's time, or of what long steps take beyond the median
IN_SOME_STEPS: Final = 1.25  # of the latter: where more is waited, it is in each step, as far as samples show
IDLE_AT_LEAST: Final = 0.1  # share of the host's time; what it does while the device works costs nothing
# Findings about time of the host in which it queues nothing. Whatever else a host does may be work of the device, too.
OF_THE_HOST: Final = frozenset(
    (
        *("machine-busy", "cpu-oversubscribed", "garbage-collection", "page-faults", "data-generation-bound"),
        *("data-loading-bound", "sampler-slow", "first-batch-slow", "workers-restarted", "loader-restarted"),
        *("logging-heavy", "checkpointing-heavy", "recompiles"),
    )
)


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
        if finding.code not in OF_THE_HOST or lost_s <= idle_s:
            left.append(finding)
        elif idle_s >= max(MIN_SAVING_S, IDLE_AT_LEAST * lost_s):
            left.append(replace(finding, potential_saving_s=min(finding.potential_saving_s, idle_s)))
    return left
