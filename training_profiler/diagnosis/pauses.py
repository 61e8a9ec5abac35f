"""Time in which the training stood still within its steps, by cause. Each second is in one of them."""

from typing import Final

from training_profiler.diagnosis.garbage import GARBAGE_COLLECTION
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss
from training_profiler.diagnosis.page_faults import page_fault_time
from training_profiler.diagnosis.registry import has_enough_steps
from training_profiler.diagnosis.threads import lock_wait
from training_profiler.snapshot.pauses import Pause
from training_profiler.snapshot.snapshot import Snapshot

LOCK: Final = "Python's lock"
DISK: Final = "disk"
CONFIDENCE: Final = 2.0  # standard errors of a number of samples


def pauses(snapshot: Snapshot) -> list[Pause]:
    """Return the pauses within steps, the longest first; none without steps.

    Collections are timed one by one. What the machine counts is known for the whole run: between nothing and all of
    the time outside steps may be a part of it, and the estimate is the share of the run. The time of the others is
    taken without that share, for they wait for a CPU as well.
    """
    step = snapshot.step
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return []
    loss = cpu_loss(snapshot.machine)
    running = 1 - loss.all
    parts = {
        "CPUs busy with other programs": loss.others,
        "CPUs busy with its own threads and processes": loss.own,
        "the container's CPU quota": loss.quota,
        "CPUs that the hypervisor gave to others": loss.hypervisor,
        "memory pages": loss.memory,
        DISK: _disk(snapshot),
    }
    found = [_of_run(cause, part, snapshot, step.total_s) for cause, part in parts.items()]
    if snapshot.garbage is not None and snapshot.garbage.steps:
        collected_s = snapshot.garbage.step_total_s * step.count / snapshot.garbage.steps
        found.append(
            Pause(GARBAGE_COLLECTION, collected_s * running, max(0.0, collected_s * (1 - 2 * loss.all)), collected_s)
        )
    faults = page_fault_time(snapshot)
    if faults is not None:
        found.append(faults)
    lock = lock_wait(snapshot)
    if lock is not None:
        error_s = CONFIDENCE * lock.seconds / lock.samples**0.5
        found.append(Pause(LOCK, lock.seconds, max(0.0, lock.seconds - error_s), lock.seconds + error_s))
    return sorted((pause for pause in found if pause.seconds), key=lambda pause: -pause.seconds)


def _disk(snapshot: Snapshot) -> float:
    """Return the part of the run in which every program waited for a disk, as long as none waited for memory."""
    machine = snapshot.machine
    if machine is None or machine.disk_stall is None or machine.samples < SAMPLES_NEEDED:
        return 0.0
    # Pages that are read back from a disk are in both figures.
    paged = 0.0 if machine.memory_stall is None else machine.memory_stall.mean
    return max(0.0, machine.disk_stall.mean - paged)


def _of_run(cause: str, part: float, snapshot: Snapshot, steps_s: float) -> Pause:
    whole_s = part * snapshot.wall_s
    outside_s = max(0.0, snapshot.wall_s - steps_s)
    return Pause(cause, part * steps_s, max(0.0, whole_s - outside_s), min(whole_s, steps_s))


def lost_in_long_steps_s(snapshot: Snapshot) -> float:
    """Return what steps took beyond the median step, in s."""
    step = snapshot.step
    return 0.0 if step is None else max(0.0, step.avg_s - step.median_s) * step.settled_count
