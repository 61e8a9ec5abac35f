"""Whether Python waits for an accelerator, and whether it does so in each step or in some of them."""

from typing import Final

from training_profiler.snapshot.snapshot import Snapshot, StepStats

MOSTLY: Final = 0.5  # of a section's time, or of what long steps take beyond the median
IN_SOME_STEPS: Final = 1.25  # of the latter: where more is waited, it is in each step, as far as samples tell


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
