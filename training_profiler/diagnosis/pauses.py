"""Time in which the training stood still within its steps, by cause. Each second is in one of them."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.garbage import GARBAGE_COLLECTION
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss
from training_profiler.diagnosis.page_faults import page_fault_time
from training_profiler.diagnosis.registry import has_enough_steps
from training_profiler.diagnosis.threads import lock_wait
from training_profiler.snapshot.machine import MachineStats
from training_profiler.snapshot.pauses import Pause
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import BACKWARD_PASS

LOCK: Final = "Python's lock"
DISK: Final = "disk"
_SYNCS: Final = ("fsync", "fdatasync")  # calls that wait until a disk has what was written
SYNCS_NEEDED: Final = 10  # samples; fewer may be chance
CONFIDENCE: Final = 2.0  # standard errors of a number of samples


def pauses(snapshot: Snapshot) -> list[Pause]:
    """Return the pauses within steps, the longest first; none without steps.

    Collections are timed one by one. What the machine counts is known for the run as a whole: see ``_of_run``. The time
    of the others is taken without that share, for they wait for a CPU as well.
    """
    step = snapshot.step
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return []
    loss, surely, possibly = (cpu_loss(machine) for machine in _bounds_of_wait(snapshot.machine))
    running = 1 - loss.all
    parts = {
        "CPUs busy with other programs": "others",
        "CPUs busy with its own threads and processes": "own",
        "the container's CPU quota": "quota",
        "CPUs that the hypervisor gave to others": "hypervisor",
        "memory pages": "memory",
    }
    found = [
        _of_run(cause, getattr(loss, part), getattr(surely, part), getattr(possibly, part), snapshot, step.total_s)
        for cause, part in parts.items()
    ]
    if snapshot.garbage is not None and snapshot.garbage.steps:
        collected_s = snapshot.garbage.step_total_s * step.count / snapshot.garbage.steps
        found.append(
            Pause(GARBAGE_COLLECTION, collected_s * running, max(0.0, collected_s * (1 - 2 * loss.all)), collected_s)
        )
    found.append(_disk(snapshot, step.total_s, running))
    faults = page_fault_time(snapshot)
    if faults is not None:
        found.append(faults)
    lock = lock_wait(snapshot)
    if lock is not None:
        error_s = CONFIDENCE * lock.seconds / lock.samples**0.5
        found.append(Pause(LOCK, lock.seconds, max(0.0, lock.seconds - error_s), lock.seconds + error_s))
    return sorted((pause for pause in found if pause.seconds), key=lambda pause: -pause.seconds)


def _disk(snapshot: Snapshot, steps_s: float, running: float) -> Pause:
    """Return the waiting for disks: what the machine counts, or the samples in calls that wait for them, if more.

    The machine counts only the time in which every program waited, and none of some file systems.
    """
    stalled = _stalled(snapshot)
    counted = _of_run(DISK, stalled, stalled, stalled, snapshot, steps_s)
    lines = [
        (part * share * snapshot.wall_s, part * line.samples * share / line.share)
        for name, lines in snapshot.lines.items()
        if (part := _part_in_steps(snapshot, name)) > 0
        for line in lines
        for function, share in line.called.items()
        if share and function.rpartition(".")[2] in _SYNCS
    ]
    synced_s, samples = (sum(column) for column in zip(*lines, strict=True)) if lines else (0.0, 0.0)
    if samples < SYNCS_NEEDED or synced_s <= counted.seconds:
        return counted
    error_s = CONFIDENCE * synced_s / samples**0.5
    return Pause(DISK, min(synced_s, steps_s), max(0.0, synced_s * running - error_s), min(synced_s + error_s, steps_s))


def _part_in_steps(snapshot: Snapshot, name: str) -> float:
    """Return how much of a section's own time lies within steps; all of what is in no section does."""
    section = snapshot.sections[name] if name != OTHER else None
    if section is None:
        return 1.0
    return min(1.0, section.step_self_s / section.self_s) if section.self_s else 0.0


def _stalled(snapshot: Snapshot) -> float:
    """Return the part of the run in which every program waited for a disk, as long as none waited for memory."""
    machine = snapshot.machine
    if machine is None or machine.disk_stall is None or machine.samples < SAMPLES_NEEDED:
        return 0.0
    # Pages that are read back from a disk are in both figures.
    paged = 0.0 if machine.memory_stall is None else machine.memory_stall.mean
    return max(0.0, machine.disk_stall.mean - paged)


def _bounds_of_wait(machine: MachineStats | None) -> tuple[MachineStats | None, ...]:
    """Return the machine with the estimated wait for a CPU, with the least, and with the most.

    The training thread's own wait is lost for sure. That of a helper is lost only as far as the training thread has
    nothing else to do, so between none and all of it is; the estimate takes the thread that waits longest.
    """
    if machine is None or machine.cpu_wait is None:
        return machine, machine, machine
    own, together = machine.cpu_wait_own or machine.cpu_wait, machine.cpu_waiting or machine.cpu_wait
    most = replace(together, mean=min(1.0, max(together.mean, machine.cpu_wait.mean)))
    return machine, replace(machine, cpu_wait=own), replace(machine, cpu_wait=most)


def _of_run(cause: str, part: float, least: float, most: float, snapshot: Snapshot, steps_s: float) -> Pause:
    """Return the time within steps of what the machine counts, from its mean part of the time that samples cover.

    The counters only grow, and a mean is the difference of two readings, so what lies between the first and the last
    sample has no sampling error. Two things are not known: where the counted time ``W`` lies, and what was in the time
    that no sample covers, because the first one was late or the last one did not come in time. With a run of ``T``,
    steps of ``S`` and samples over ``C``, the sum over the steps is at least ``W - (T - S)``: so much fits in what is
    outside of steps. It is at most ``W + (T - C)``, and at most ``S`` (the bounds of Frechet for the length of what two
    sets have in common, given the lengths of both). The estimate has the same part in steps as in the run.

    Args:
        cause: of the pause.
        part: of the time that samples cover, 0 to 1.
        least: the part that is lost for sure.
        most: the part that may be lost.
        snapshot: of the run.
        steps_s: the time of all steps.
    """
    run_s, known_s = snapshot.wall_s, None if snapshot.machine is None else snapshot.machine.cpu_wait_known_s
    covered_s = run_s if known_s is None else min(run_s, known_s)
    least_s = max(0.0, least * covered_s - max(0.0, run_s - steps_s))
    most_s = min(steps_s, most * covered_s + (run_s - covered_s)) if most else 0.0
    return Pause(cause, part * steps_s, min(least_s, part * steps_s), max(most_s, part * steps_s))


def lost_in_long_steps_s(snapshot: Snapshot) -> float:
    """Return what steps took beyond as many median steps, in s; 0 where they took less.

    Where most steps only queue work for an accelerator, its time for forward and backward pass is the pace.
    """
    step = snapshot.step
    if step is None or not step.settled_count:
        return 0.0
    computing_s = snapshot.computing_s() / step.settled_count if snapshot.is_by_device(BACKWARD_PASS) else 0.0
    return max(0.0, step.avg_s - max(step.median_s, computing_s)) * step.settled_count
