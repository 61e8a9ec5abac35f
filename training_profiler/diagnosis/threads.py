"""The rule about a thread of the program that holds Python's lock."""

from typing import Final, NamedTuple

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Evidence, Finding
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import INPUT_SECTIONS, SYNCHRONIZATION

LOCK_HELD: Final = "lock-held-by-thread"
SAMPLES_NEEDED: Final = 10  # of a line that has the lock; fewer may be chance
ONE_THREAD: Final = (
    "only one thread runs Python code at a time. Without the profiler's faster hand-over of the lock, each wait may "
    "take up to 5 ms"
)
QUEUE: Final = "multiprocessing/queues.py:"  # where the thread of a queue runs that sends what is put into it
SAID_FROM: Final = 0.1  # of the wait: the part for a CPU


class LockWait(NamedTuple):
    """What the training waits within steps while a thread of the program runs Python code."""

    seconds: float  # for the lock
    cpu_s: float  # for the CPU that the thread has; 0 where other threads or processes of the training may have it
    samples: int
    place: str  # of the thread's line that runs the longest


def lock_wait(snapshot: Snapshot) -> LockWait | None:
    """Return how long the training waits for a thread that runs Python code; None with too few samples.

    A thread that waits uses no CPU, whatever it waits for. So the time in which the training waits for batches that
    others make, ranks, another program's CPU or the device is taken off.
    """
    step, samples = snapshot.step, 0
    seconds: dict[str, float] = {}
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return None
    for name, lines in snapshot.lines.items():
        if name == OTHER or snapshot.sections[name].step_total_s > 0:
            for line in lines:
                samples += line.samples if line.held_by else 0
                for place, share in line.held_by.items():
                    seconds[place] = seconds.get(place, 0.0) + share * snapshot.wall_s
    if samples < SAMPLES_NEEDED:
        return None
    waiting = (SYNCHRONIZATION,) if _makes_batches(snapshot) else (SYNCHRONIZATION, *INPUT_SECTIONS)
    in_steps = (section for name, section in snapshot.sections.items() if name in waiting)
    held_s, idle_s = sum(seconds.values()) - sum(section.step_self_s for section in in_steps), snapshot.idle_device_s()
    loss = cpu_loss(snapshot.machine)
    held_s -= loss.to_others * step.total_s
    lock_s = held_s - (loss.all - loss.to_others) * step.total_s
    if idle_s is not None:
        held_s, lock_s = min(held_s, idle_s), min(lock_s, idle_s)
    lock_s = max(0.0, lock_s)
    cpu_s = max(0.0, held_s - lock_s) if _is_only_competitor(snapshot) else 0.0
    return LockWait(lock_s, cpu_s, samples, max(seconds, key=lambda place: seconds[place]))


def _is_only_competitor(snapshot: Snapshot) -> bool:
    """Return whether no workers, ranks or surplus threads of the training compete with it for CPUs."""
    machine = snapshot.machine
    if machine is None or machine.cores is None or machine.local_ranks > 1:
        return False
    return _makes_batches(snapshot) and snapshot.program.threads <= machine.cores


def _makes_batches(snapshot: Snapshot) -> bool:
    """Return whether the training makes its batches itself."""
    return bool(snapshot.loaders) and all(loader.num_workers == 0 for loader in snapshot.loaders)


@RULES.rule(LOCK_HELD, threshold=0.10)  # of step time
def lock_held_by_thread(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a thread of the program that runs Python code while the training thread waits for Python's lock."""
    step, wait = snapshot.step, lock_wait(snapshot)
    if step is None or wait is None:
        return None
    held_s, place = wait.seconds + wait.cpu_s, wait.place
    share = held_s / step.total_s
    if share <= threshold or held_s < MIN_SAVING_S:
        return None
    how_long = f"for {share:.0%} of step time ({ms_text(held_s / step.count)} per step)"
    message = f"The training waits for Python's lock {how_long}, which a thread of the program has at {place}"
    fix = f"Move that work to a process of its own (multiprocessing, DataLoader workers): {ONE_THREAD}"
    if wait.cpu_s > SAID_FROM * held_s:
        for_what = "Python's lock or for a CPU" if wait.seconds > SAID_FROM * held_s else "a CPU"
        message = f"The training waits for {for_what} {how_long}, while a thread of the program runs at {place}"
        fix = f"Do less of that work meanwhile; where a CPU is free, move it to a process of its own: {ONE_THREAD}"
    if place.startswith(QUEUE):
        message = f"{message}: the thread of a multiprocessing queue, which pickles what is put into it"
        fix = f"Put less into the queue, or tensors and arrays instead of many objects: {ONE_THREAD}"
    evidence: Evidence = {"share_of_step": share, "threshold": threshold, "seconds": held_s, "lines": place}
    return Finding(
        code=LOCK_HELD,
        message=message,
        evidence={**evidence, "cpu_s": wait.cpu_s},
        potential_saving_s=held_s * step.settled_s / step.total_s,
        fix=fix,
    )
