"""Time in which the training stood still within its steps, by cause, and the rules about two of the causes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.base.sections import (
    BACKWARD_PASS,
    CHECKPOINTING,
    FORWARD_PASS,
    OPTIMIZER_STEP,
    STEP_PARTS,
    VALIDATION_EPOCH,
    WITHIN,
)
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.finding import Change, Finding, Fix
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss, lock_wait
from training_profiler.diagnosis.places import COPYING_S
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, SAYS_MORE_FROM, found, has_enough_steps
from training_profiler.model.machine import ASKED, FULL, YOUNG, Pause
from training_profiler.model.snapshot import OTHER, Snapshot

GARBAGE_COLLECTION: Final = "garbage collection"  # as the cause of uneven steps, where others have a section
FREEZE: Final = Fix(
    "Call gc.collect() and gc.freeze() once after the first steps: later collections leave out all objects made until "
    "then (training-profiler try measures what it brings). Objects that are made later, as in a buffer of lists, cost "
    "less as tensors or arrays",
    (Change.GC_FREEZE,),
)
_ASK_LESS: Final = Fix(
    "Call gc.collect() less often, such as every 100th step: it goes through all objects", (Change.FEWER_COLLECTIONS,)
)
_COLLECTS: Final = "gc.collect"
_FEWER: Final = Fix(
    "Make fewer objects of Python that outlive a line (lists of numbers, dicts, tuples: use tensors), or collect less "
    "often: gc.set_threshold(50_000, 20, 20)",
    (Change.FEWER_COLLECTIONS,),
)
# Of the cost of a page of new memory, the least that a fault costs: that cost includes giving the page back, a quarter
# of it, and the kernel need not clear a page of a file.
LEAST_COST: Final = 0.5
CONFIDENCE: Final = 2.0  # standard errors of a number of ticks
DISK: Final = "disk"


@RULES.rule(
    "garbage-collection",
    threshold=0.03,  # of step time
    claims=(GARBAGE_COLLECTION, OTHER, *STEP_PARTS),
    saves=(0.0, 1.0),
    try_=("gc_freeze",),
    explains_idle=True,
    is_of_host=True,
)
def garbage_collection(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag garbage collections that take over 3 % of step time after the first ten steps, in three steps or more."""
    step, garbage = snapshot.step, snapshot.garbage
    if step is None or garbage is None or not has_enough_steps(snapshot):
        return None
    seconds = garbage.share_of_step * step.settled_s
    kinds = {
        "full": (garbage.of(FULL), FREEZE),
        "of gc.collect()": (garbage.of(ASKED), _ASK_LESS),
        "young": (garbage.of(*YOUNG), _FEWER),
    }
    kind = max(kinds, key=lambda kind: kinds[kind][0].step_total_s)
    stats, fix = kinds[kind]
    if garbage.share_of_step <= threshold or seconds < MIN_SAVING_S or stats.steps < 3:  # single steps may be chance
        return None
    place = ""
    if fix == _ASK_LESS:
        asked = {
            f"{line.place} {line.what}": line.called[_COLLECTS]
            for lines in snapshot.lines.values()
            for line in lines
            if line.called.get(_COLLECTS)
        }
        place = max(asked, key=lambda place: asked[place], default="")
    often = "nearly every step" if stats.steps >= 0.9 * garbage.steps else f"{stats.steps} of {garbage.steps} steps"
    return found(
        f"Garbage collection takes {garbage.share_of_step:.0%} of step time "
        f"({ms_text(seconds / step.settled_count)} per step): {stats.step_count} {kind}, "
        f"{ms_text(stats.step_total_s / stats.step_count)} each, in {often} (longest {ms_text(stats.longest_s)} at "
        f"step {stats.longest_step})" + (f"; above all at {place}" if place else ""),
        {
            "share_of_step": garbage.share_of_step,
            "threshold": threshold,
            "seconds": seconds,
            "kind": kind,
            "collections": stats.step_count,
            "steps": stats.steps,
            "longest_s": stats.longest_s,
            "longest_step": stats.longest_step,
            "explained": garbage.explained,
            "lines": place,
        },
        fix,
        saving_s=stats.step_total_s * step.settled_count / garbage.steps,
    )


def page_fault_time(snapshot: Snapshot) -> Pause | None:
    """Return the time within steps of the page faults that read no disk; None where it is unknown.

    It is their number times the cost of a page of new memory. All of it is CPU time in the kernel, which is the most.
    Both are known for the loop, so the least leaves out what may lie between steps.
    """
    step, machine = snapshot.step, snapshot.machine
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return None
    if machine is None or machine.page_cost_s is None or machine.samples < SAMPLES_NEEDED:
        return None
    if machine.page_faults is None or machine.cpu_kernel is None:
        return None
    before_s = 0.0 if step.before_s is None or snapshot.first_step else step.before_s
    loop_s = max(step.total_s, snapshot.wall_s - before_s)
    kernel = machine.cpu_kernel.mean
    most = min(1.0, kernel + CONFIDENCE * (kernel * 0.01 / loop_s) ** 0.5)  # Linux samples every 10 ms, or more often
    likely = min(most, machine.page_faults.mean * machine.page_cost_s)
    least_s = max(0.0, LEAST_COST * likely * loop_s - (loop_s - step.total_s))
    return Pause("page faults", likely * step.total_s, least_s, min(most * loop_s, step.total_s))  # as a cause


def _without_copies(finding: Finding, findings: Sequence[Finding], _: Snapshot) -> Finding | None:
    """Return the finding without the faults of copies in no section, which are gone with the copies."""
    copying_s = sum(float(each.evidence.get(COPYING_S, 0.0)) for each in findings)
    if not copying_s:
        return finding
    left_s = finding.potential_saving_s - 0.5 * copying_s  # a copy fills new memory
    if left_s < max(MIN_SAVING_S, SAYS_MORE_FROM * finding.potential_saving_s):
        return None
    return replace(finding, potential_saving_s=left_s)


@RULES.rule(
    "page-faults",
    threshold=0.05,  # of step time
    claims=(FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, OTHER),
    is_anywhere=True,
    saves=(0.3, 1.5),
    changes=(Change.ALLOCATOR, Change.REUSED_MEMORY),
    try_=("jemalloc", "tcmalloc"),
    is_of_host=True,
    beside=_without_copies,
)
def page_faults(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that surely spend over 5 % on page faults: the least that these may take counts."""
    step, pause = snapshot.step, page_fault_time(snapshot)
    if step is None or pause is None or snapshot.machine is None or snapshot.machine.page_faults is None:
        return None
    share = pause.seconds / step.total_s
    if pause.min_s <= threshold * step.total_s or pause.seconds < MIN_SAVING_S:
        return None
    times = [ms_text(seconds / step.count) for seconds in (pause.seconds, pause.min_s, pause.max_s)]
    pages = snapshot.machine.page_faults.mean * step.total_s / step.count
    # Only their number in all steps is known. If they take 70 % of these and a line takes 90 %, at least 60 % is both.
    line, where = {}, ""
    for each in (*snapshot.lines_of_steps(FORWARD_PASS)[:1], *snapshot.lines_of_steps(OTHER)[:1]):
        part = min(1.0, each.share * snapshot.wall_s / step.total_s)
        if each.samples >= 40 and part + share - 1 >= 0.7 * share:
            line = {"lines": f"{each.place} {each.what}"}
            where = f"; most of them at {line['lines']}, which takes {part:.0%} of step time"
            break
    return found(
        f"Taking new memory from the system takes about {share:.0%} of step time (page faults: {times[0]} per step, "
        f"{times[1]} to {times[2]}): about {pages:,.0f} pages of memory are new in each step{where}",
        {
            **line,
            "share_of_step": share,
            "threshold": threshold,
            "seconds": pause.seconds,
            "min_s": pause.min_s,
            "max_s": pause.max_s,
            "pages_per_step": pages,
        },
        "Start it with MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296; with glibc it keeps the "
        "freed memory of tensors on the CPU, as jemalloc and tcmalloc do (LD_PRELOAD). Or use memory again instead of "
        "freeing it in each step (out=, buffers that stay)",
        saving_s=pause.seconds * step.settled_s / step.total_s,
    )


def pauses(snapshot: Snapshot) -> list[Pause]:
    """Return the pauses within steps, the longest first; none without steps.

    Collections are timed one by one. What the machine counts is known for the run as a whole: see ``_of_run``. The time
    of the others is taken without that share, for they wait for a CPU as well.
    """
    step = snapshot.step
    if step is None or not has_enough_steps(snapshot) or not step.total_s:
        return []
    # The training thread's own wait is lost for sure. That of a helper is lost only as far as the training thread has
    # nothing else to do, so between none and all of it is; the estimate takes the thread that waits longest.
    machine = least = most = snapshot.machine
    if machine is not None and machine.cpu_wait is not None:
        together = machine.cpu_waiting or machine.cpu_wait
        least = replace(machine, cpu_wait=machine.cpu_wait_own or machine.cpu_wait)
        together = replace(together, mean=min(1.0, max(together.mean, machine.cpu_wait.mean)))
        most = replace(machine, cpu_wait=together)
    loss, surely, possibly = map(cpu_loss, (machine, least, most))
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
        found.append(Pause("Python's lock", lock.seconds, max(0.0, lock.seconds - error_s), lock.seconds + error_s))
    return sorted((pause for pause in found if pause.seconds), key=lambda pause: -pause.seconds)


def _disk(snapshot: Snapshot, steps_s: float, running: float) -> Pause:
    """Return the waiting for disks: what the machine counts, or the samples in calls that wait for them, if more.

    The machine counts only the time in which every program waited, and none of some file systems.
    """
    machine, stalled = snapshot.machine, 0.0
    if machine is not None and machine.disk_stall is not None and machine.samples >= SAMPLES_NEEDED:
        # Pages that are read back from a disk are in both figures.
        paged = 0.0 if machine.memory_stall is None else machine.memory_stall.mean
        stalled = max(0.0, machine.disk_stall.mean - paged)
    counted = _of_run(DISK, stalled, stalled, stalled, snapshot, steps_s)
    in_steps = {
        name: min(1.0, section.step_self_s / section.self_s) if section.self_s else 0.0
        for name, section in snapshot.sections.items()
    } | {OTHER: 1.0}
    lines = [
        (part * share * snapshot.wall_s, part * line.samples * share / line.share)
        for name, lines in snapshot.lines.items()
        if (part := in_steps[name]) > 0
        for line in lines
        for function, share in line.called.items()
        if share and function.rpartition(".")[2] in ("fsync", "fdatasync")  # they wait for a disk
    ]
    synced_s, samples = (sum(column) for column in zip(*lines, strict=True)) if lines else (0.0, 0.0)
    if samples < 10 or synced_s <= counted.seconds:  # fewer may be chance
        return counted
    error_s = CONFIDENCE * synced_s / samples**0.5
    return Pause(DISK, min(synced_s, steps_s), max(0.0, synced_s * running - error_s), min(synced_s + error_s, steps_s))


def _of_run(cause: str, part: float, least: float, most: float, snapshot: Snapshot, steps_s: float) -> Pause:
    """Return the time within steps of what the machine counts, from its mean part of the time that samples cover.

    The counters only grow, and a mean is the difference of two readings, so what lies between the first and the last
    sample has no sampling error. Two things are not known: where the counted time ``W`` lies, and what was in the time
    that no sample covers, because the first one was late or the last one did not come in time. With a run of ``T``,
    steps of ``S`` and samples over ``C``, the sum over the steps is at least ``W - (T - S)``: so much fits in what is
    outside of steps. It is at most ``W + (T - C)``, and at most ``S`` (the bounds of Frechet for the length of what two
    sets have in common, given the lengths of both). The estimate has the same part in steps as in the run.
    Of the part that is lost, ``least`` is for sure and ``most`` may be.
    """
    run_s, known_s = snapshot.wall_s, None if snapshot.machine is None else snapshot.machine.cpu_wait_known_s
    covered_s = run_s if known_s is None else min(run_s, known_s)
    least_s = max(0.0, least * covered_s - max(0.0, run_s - steps_s))
    most_s = min(steps_s, most * covered_s + (run_s - covered_s)) if most else 0.0
    return Pause(cause, part * steps_s, min(least_s, part * steps_s), max(most_s, part * steps_s))


PRODUCTIVE: Final = "productive_steps"
_GROUPS: Final = {VALIDATION_EPOCH: "evaluation", CHECKPOINTING: "checkpoints"}  # by the outermost section


def goodput(snapshot: Snapshot) -> dict[str, float] | None:
    """Return the parts of the wall time, which add up to 1: each step is productive as far as a median step goes."""
    step = snapshot.step
    if step is None or not step.settled_count or not snapshot.wall_s:
        return None
    warmup_s = max(0.0, step.warmup_s - step.warmup_count * step.median_s)
    stalls_s = lost_in_long_steps_s(snapshot)
    parts = {PRODUCTIVE: step.total_s - warmup_s - stalls_s, "warmup": warmup_s, "stalls": stalls_s}
    parts |= {"startup": 0.0 if snapshot.first_step else step.before_s or 0.0, **dict.fromkeys(_GROUPS.values(), 0.0)}
    for name, section in snapshot.sections.items():
        if (group := _GROUPS.get(name.partition(WITHIN)[0])) is not None:
            parts[group] += max(0.0, section.self_s - section.step_self_s - section.before_s)
    parts["other"] = max(0.0, snapshot.wall_s - sum(parts.values()))
    whole_s = sum(parts.values())
    return {name: max(0.0, seconds) / whole_s for name, seconds in parts.items()}


def lost_in_long_steps_s(snapshot: Snapshot) -> float:
    """Return what steps took beyond as many median steps, in s; 0 where they took less.

    Where most steps only queue work for an accelerator, its time for forward and backward pass is the pace.
    """
    step = snapshot.step
    if step is None or not step.settled_count:
        return 0.0
    computing_s = snapshot.computing_s() / step.settled_count if snapshot.is_by_device(BACKWARD_PASS) else 0.0
    return max(0.0, step.avg_s - max(step.median_s, computing_s)) * step.settled_count
