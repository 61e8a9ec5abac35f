"""The rule about a thread of the program that holds Python's lock."""

from typing import Final, NamedTuple

from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.recording.known_sections import INPUT_SECTIONS, SYNCHRONIZATION
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.units import ms_text

LOCK_HELD: Final = "lock-held-by-thread"
SAMPLES_NEEDED: Final = 10  # of a line that has the lock; fewer may be chance
_WAITING: Final = (*INPUT_SECTIONS, SYNCHRONIZATION)  # sections in which the training waits for something else


class LockWait(NamedTuple):
    """What the training waits for Python's lock within steps."""

    seconds: float
    samples: int
    place: str  # of the line that has it the longest


def lock_wait(snapshot: Snapshot) -> LockWait | None:
    """Return how long the training waits for Python's lock; None with too few samples.

    A thread that waits uses no CPU, whatever it waits for. So the time in which the training waits for batches, ranks,
    a CPU or the device is taken off.
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
    in_steps = (section for name, section in snapshot.sections.items() if name in _WAITING)
    waited_s = sum(section.step_self_s for section in in_steps) + cpu_loss(snapshot.machine).all * step.total_s
    held_s = sum(seconds.values()) - waited_s
    idle_s = snapshot.idle_device_s()
    if idle_s is not None:
        held_s = min(held_s, idle_s)
    return LockWait(max(0.0, held_s), samples, max(seconds, key=lambda place: seconds[place]))


@RULES.rule(LOCK_HELD, threshold=0.10)  # of step time
def lock_held_by_thread(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a thread of the program that runs Python code while the training thread waits for Python's lock."""
    step, wait = snapshot.step, lock_wait(snapshot)
    if step is None or wait is None:
        return None
    held_s, place = wait.seconds, wait.place
    share = held_s / step.total_s
    if share <= threshold or held_s < MIN_SAVING_S:
        return None
    return Finding(
        code=LOCK_HELD,
        message=f"The training waits for Python's lock for {share:.0%} of step time "
        f"({ms_text(held_s / step.count)} per step), which a thread of the program has at {place}",
        evidence={"share_of_step": share, "threshold": threshold, "seconds": held_s, "lines": place},
        potential_saving_s=held_s * step.settled_s / step.total_s,
        fix="Move that work to a process of its own (multiprocessing, DataLoader workers): only one thread runs Python "
        "code at a time. Without the profiler's faster hand-over of the lock, each wait may take up to 5 ms",
    )
