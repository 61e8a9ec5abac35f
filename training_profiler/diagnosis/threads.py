"""Rules about threads: one that holds Python's lock, and too few of them."""

from typing import Final, NamedTuple

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.loader_fixes import free_cpus
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, cost_of_steps, has_enough_steps
from training_profiler.findings.finding import Evidence, Finding, Fix
from training_profiler.findings.losses import Change
from training_profiler.snapshot.program import THREADS, ProgramFacts
from training_profiler.snapshot.snapshot import OTHER, MachineStats, Snapshot
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    FORWARD_PASS,
    INPUT_SECTIONS,
    OPTIMIZER_STEP,
    SYNCHRONIZATION,
)

LINE_SAMPLES_NEEDED: Final = 10  # of a line that has the lock; fewer may be chance
ONE_THREAD: Final = (
    "only one thread runs Python code at a time. Without the profiler's faster hand-over of the lock, each wait may "
    "take up to 5 ms"
)
QUEUE: Final = "multiprocessing/queues.py:"  # where the thread of a queue runs that sends what is put into it
SAID_FROM: Final = 0.1  # of the wait: the part for a CPU
LONG_OPERATOR_S: Final = 100e-6  # on average: torch divides shorter ones among threads with little gain, or not at all
UNLIKE: Final = 2.0  # x the counted step's operators: where all steps take longer on average, they are others
PARALLEL: Final = 0.8  # of what twice the threads could save at best; products of matrices reach 0.9
# torch's own choice is one thread for each core, and a core has at most two CPUs here: with three, one was asked for.
CHOSEN_FROM: Final = 3


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
    if samples < LINE_SAMPLES_NEEDED:
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


@RULES.rule(
    "lock-held-by-thread",
    threshold=0.10,  # of step time
    label="BUSY THREAD",
    claims=(FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, OTHER),
    is_anywhere=True,
    is_cause=True,
    saves=(0.7, 1.5),
    explains_idle=True,
    has_loss=True,
)
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
    changes = (Change.OTHER_PROCESS,)
    fix = f"Move that work to a process of its own (multiprocessing, DataLoader workers): {ONE_THREAD}"
    if wait.cpu_s > SAID_FROM * held_s:
        for_what = "Python's lock or for a CPU" if wait.seconds > SAID_FROM * held_s else "a CPU"
        message = f"The training waits for {for_what} {how_long}, while a thread of the program runs at {place}"
        fix = f"Do less of that work meanwhile; where a CPU is free, move it to a process of its own: {ONE_THREAD}"
    if place.startswith(QUEUE):
        message = f"{message}: the thread of a multiprocessing queue, which pickles what is put into it"
        changes = (Change.SMALLER_QUEUE,)
        fix = f"Put less into the queue, or tensors and arrays instead of many objects: {ONE_THREAD}"
    evidence: Evidence = {"share_of_step": share, "threshold": threshold, "seconds": held_s, "lines": place}
    return Finding(
        code="lock-held-by-thread",
        message=message,
        evidence={**evidence, "cpu_s": wait.cpu_s},
        potential_saving_s=held_s * step.settled_s / step.total_s,
        fix=Fix(fix, changes),
    )


@RULES.rule(
    "few-threads",
    threshold=0.15,  # of step time
    label="TOO FEW THREADS",
    claims=(FORWARD_PASS, BACKWARD_PASS),
    is_cause=True,
    saves=(0.2, 1.25),
    changes=(Change.NUM_THREADS,),
    try_=("num_threads",),
)
def few_threads(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU that was set to few threads and leaves CPUs free; over 15 % of step time.

    None where operators are short on average, or were not counted, and where torch has chosen the number of threads.
    """
    machine, step, threads = snapshot.machine, snapshot.step, snapshot.program.threads
    if machine is None or step is None or machine.cores is None or snapshot.device is not None or machine.gpus:
        return None
    free = _free(snapshot, machine)
    if free is None or machine.samples < SAMPLES_NEEDED or not threads:
        return None
    places = snapshot.program.places_of(THREADS)
    wanted = _wanted(machine, threads, free)
    if wanted < 2 * threads or not (places or (threads == 1 and machine.cores / machine.local_ranks >= CHOSEN_FROM)):
        return None
    computing_s = snapshot.computing_s()
    if not step.settled_count or not _has_long_operators(snapshot.program, computing_s / step.settled_count):
        return None
    cost = cost_of_steps(snapshot, threshold, PARALLEL * (1 - threads / wanted) * computing_s)
    if cost is None:
        return None
    where = f" (set at {places})" if places else ""
    return cost.finding(
        "few-threads",
        f"torch computes with {'1 thread' if threads == 1 else f'{threads} threads'}{where}, and {free:.1f} of "
        f"{machine.cores:g} CPUs are free: forward and backward passes take {computing_s / step.settled_s:.0%} of step "
        "time",
        f"Use more threads: torch.set_num_threads({wanted}) or OMP_NUM_THREADS={wanted}",
        threads=threads,
        free_cpus=free,
        lines=places,
    )


def _has_long_operators(program: ProgramFacts, computing_s: float) -> bool:
    """Return whether the operators of a step, in which computing takes ``computing_s``, are long on average.

    Those of the counted step are known. Other steps may do something else as well, such as an agent's whole episode.
    """
    counted_s = program.long_forward.all_s + program.long_backward.all_s
    return program.operators > 0 and (
        counted_s >= program.operators * LONG_OPERATOR_S and computing_s <= UNLIKE * counted_s
    )


def _free(snapshot: Snapshot, machine: MachineStats) -> float | None:
    """Return how many CPUs neither the training nor other programs used on average; None if unknown."""
    free = free_cpus(snapshot)
    if free is None or machine.cpu_host is None or machine.host_cores is None:
        return free
    return min(free, machine.host_cores * (1 - machine.cpu_host.mean))


def _wanted(machine: MachineStats, threads: int, free: float) -> int:
    """Return how many threads a rank can have."""
    cores = 0.0 if machine.cores is None else machine.cores
    return min(int(cores / machine.local_ranks), threads + round(free / machine.local_ranks))
