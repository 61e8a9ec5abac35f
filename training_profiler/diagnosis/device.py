"""Rules about memory, and about how busy accelerators are, and what the host's time costs while they work."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.base.sections import BACKWARD_PASS, DATA_LOADING, FORWARD_PASS
from training_profiler.base.units import S_PER_HOUR, S_PER_MINUTE, bytes_text, ms_text
from training_profiler.diagnosis.change import kept_in, when_text, work_of
from training_profiler.diagnosis.finding import Action, Change, Finding, Fix, brief, record_steps
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, Saving, found, has_enough_steps, row_of
from training_profiler.diagnosis.shares import severity_of
from training_profiler.model.program import KeptGraphs
from training_profiler.model.snapshot import PROFILER, GpuStats, Growth, Level, Snapshot, StepStats, hottest_places

SAMPLES_NEEDED: Final = 5  # of the system monitor
GROWTH_AT_LEAST: Final = 16 * 2**20  # bytes; caches and fragmentation come and go by that much
# In the first minute libraries are loaded, allocators and caches fill, and a rise that ends is like a leak.
SHORT_S: Final = 60.0
FEW_STEPS: Final = 30  # in which allocators still take what the others need
FILLED: Final = 0.85  # of its memory, with a larger batch
FORECAST: Final = 150  # times as long as the training so far, for which a rate of growth may hold
MOSTLY: Final = 0.5  # of a section's time, or of what long steps take beyond the median
IDLE_AT_LEAST: Final = 0.1  # share of the host's time; what it does while the device works costs nothing
LESS_MEMORY: Final = Fix(
    "Use a smaller batch with gradient accumulation, fewer DataLoader workers or a smaller prefetch_factor; map "
    "datasets into memory (mmap) instead of loading them whole",
    (Change.PREFETCH_FACTOR, Change.FEWER_WORKERS, Change.MAPPED_DATA, Change.OTHER_BATCHES, Change.ACCUMULATION),
)
GIVE_MORE_WORK: Final = (
    'Use a larger batch, torch.compile(mode="reduce-overhead") or CUDA graphs to give it more work at a time'
)
FEWER_GAPS: Final = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which leaves fewer gaps in memory"
GPU_UTILIZATION: Final = "gpu-utilization"
SHARED_GPU: Final = "shared-gpu"
PASSES: Final = (FORWARD_PASS, BACKWARD_PASS)


@RULES.rule(
    "host-memory",
    threshold=0.85,
    saving=Saving.UNKNOWN,
    label="MEMORY",
    is_risk=True,
)
def host_memory(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a peak above 85 % of the container's memory limit, or of the host's memory without such a limit."""
    machine = snapshot.machine
    if machine is None or machine.ram_share is None or machine.ram_share.max <= threshold:
        return None
    share = machine.ram_share.max
    of = "the host's memory"
    if machine.ram_limit_bytes is not None:
        of = f"the container's limit of {bytes_text(machine.ram_limit_bytes)}"
    return found(
        f"Peak RAM is {share:.1%} of {of} (pressure {severity_of(share, threshold):.2f})",
        {"ram_share": share, "threshold": threshold, "pressure": severity_of(share, threshold)},
        LESS_MEMORY,
    )


@RULES.rule(
    "gpu-memory-high",
    threshold=0.90,
    saving=Saving.UNKNOWN,
    label="MEMORY",
    changes=(Change.AUTOCAST, Change.OTHER_BATCHES, Change.CHECKPOINTING),
    is_risk=True,
)
def gpu_memory_high(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a device with peak memory above 90 %; above 98 % it may run out."""
    fullest_gpu = fullest(snapshot)
    if fullest_gpu is None or fullest_gpu[1] <= threshold:
        return None
    gpu, share = fullest_gpu
    risk = "; above 98% a larger batch runs out of memory" if share > 0.98 else ""
    reserved, allocated = gpu.reserved_bytes, gpu.allocated_bytes
    cached = 0.0 if reserved is None or allocated is None else reserved.max - allocated.max
    gaps = cached >= 0.1 * (gpu.total_bytes or 0)
    risk += f"; tensors take {bytes_text(cached)} less than torch holds: its cache, or gaps in it" if gaps else ""
    return found(
        f"Peak memory of GPU {gpu.index} is {share:.1%} of {bytes_text(gpu.total_bytes or 0)}{risk}",
        {
            "gpu": gpu.index,
            "memory_share": share,
            "threshold": threshold,
            "pressure": severity_of(share, threshold),
        },
        Fix(FEWER_GAPS, (Change.REUSED_MEMORY,))
        if gaps
        else "Use a smaller batch, gradient checkpointing (torch.utils.checkpoint) or mixed precision",
    )


@RULES.rule("gpu-memory-low", 0.50, saving=Saving.UNKNOWN, changes=(Change.OTHER_BATCHES,))
def gpu_memory_low(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a run in which no device used half its memory; None below 10 steps or 5 samples.

    None either where steps wait for batches, or the device is full of work: larger batches would take as much longer.
    """
    fullest_gpu = fullest(snapshot)
    machine = snapshot.machine
    if fullest_gpu is None or machine is None or machine.samples < SAMPLES_NEEDED or not has_enough_steps(snapshot):
        return None
    gpu, share = fullest_gpu
    busy, waits = gpu.loop_utilization, snapshot.share_of_step(DATA_LOADING) or 0.0
    if share >= threshold or waits >= 0.15 or (busy is not None and busy.mean > 0.95):
        return None
    # Memory of parameters does not grow with the batch, so a multiple of all of it is more than a batch needs.
    loaders = (each for each in snapshot.loaders if each.phase == "train" and each.samples and each.batches)
    rows = [(loader.samples or 0) / loader.batches for loader in loaders]
    batch = int(max(rows) * FILLED / share) if rows and gpu.reserved_bytes is not None and share else 0
    fits = f", such as {batch:,} instead of {max(rows):,.0f}" if batch else ""
    return found(
        f"Peak memory of GPU {gpu.index} is only {share:.1%} of {bytes_text(gpu.total_bytes or 0)}",
        {"gpu": gpu.index, "memory_share": share, "threshold": threshold},
        f"Use a larger batch{fits}, if the training allows it",
    )


@RULES.rule(
    "allocator-retries",
    threshold=0.01,  # in a step
    saving=Saving.UNKNOWN,
    label="MEMORY",
    changes=(Change.OTHER_BATCHES, Change.CHECKPOINTING),
)
def allocator_retries(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a device whose allocator had to free its cache and try again in over one of 100 steps, three times or more.

    What a retry takes is not known.
    """
    machine = snapshot.machine
    if machine is None or not has_enough_steps(snapshot):
        return None
    counts = [(gpu.alloc_retries.max, gpu.index) for gpu in machine.gpus if gpu.alloc_retries is not None]
    retries, index = max(counts, default=(0.0, 0))
    if retries < 3 or retries / snapshot.steps <= threshold:
        return None  # one or two are part of finding how much memory a training needs
    return found(
        f"GPU {index} ran out of memory {retries:.0f} times in {snapshot.steps} steps: each time torch's "
        "allocator waited for the device, freed all that it had cached, and allocated again",
        {"gpu": index, "retries": retries, "steps": snapshot.steps, "threshold": threshold},
        f"{FEWER_GAPS}; or use a smaller batch or gradient checkpointing (torch.utils.checkpoint)",
    )


def _after_graphs(_: Finding, other: Finding) -> bool:
    return other.code == "kept-graphs"


@RULES.rule(
    "memory-growth",
    threshold=0.05,  # of the mean
    saving=Saving.UNKNOWN,
    label="MEMORY",
    changes=(Change.DETACH,),
    is_risk=True,
    follows=_after_graphs,
)
def memory_growth(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag memory that keeps growing, by over 5 %: of a device, otherwise of the process.

    Inputs that grow need more memory, so then nothing is known.
    """
    machine = snapshot.machine
    if machine is None or (snapshot.step is not None and snapshot.step.work_unit):
        return None
    for gpu in machine.gpus:
        used, total_bytes = gpu.used_bytes, gpu.total_bytes
        free = 0.0 if total_bytes is None or used is None else total_bytes - used.last
        what = f"Memory allocated on GPU {gpu.index}"
        if grows := _growing(snapshot, gpu.allocated_growth, gpu.allocated_bytes, what, free, threshold):
            return grows
    available = machine.ram_available_bytes
    free = 0.0 if available is None else available.last
    return _growing(snapshot, machine.ram_growth, machine.ram_process_bytes, "Memory of this process", free, threshold)


@RULES.rule(
    "memory-rises-since", 0.05, saving=Saving.UNKNOWN, label="MEMORY", changes=(Change.DETACH,), follows=_after_graphs
)  # of the memory before
def memory_rises_since(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag memory that grows by over 5 % from one step on, or is a quarter more; None where ``memory-growth`` fires.

    Inputs that grow need more memory, so then nothing is known.
    """
    step = snapshot.step
    if step is None or step.work_unit or (step.change is not None and work_of(step.change) is not None):
        return None
    if memory_growth(snapshot, snapshot.thresholds) is not None:
        return None
    for change in snapshot.memory_changes:
        rise = change.after_bytes - change.before_bytes
        if rise < GROWTH_AT_LEAST or rise <= (threshold if change.grows else 0.25) * change.before_bytes:
            continue
        what = "Memory of this process" if change.device is None else f"Memory allocated on GPU {change.device}"
        how = "grows since" if change.grows else "rose at"
        levels = f"from {bytes_text(change.before_bytes)} to {bytes_text(change.after_bytes)}"
        return found(
            f"{what} {how} {when_text(change)}: {levels}",
            {
                "rise_bytes": rise,
                "threshold": threshold,
                "step": change.step,
                "first_step": change.first_step,
                "last_step": change.last_step,
                "grows": int(change.grows),
            },
            _keep_less(snapshot),
        )
    return None


def _growing(
    snapshot: Snapshot, growth: Growth | None, level: Level | None, what: str, free_bytes: float, threshold: float
) -> Finding | None:
    """Return the finding about memory that grows, of which so much is free; 0 if that is unknown."""
    if growth is None or level is None or growth.points < 10 or growth.p_value > 0.001:
        return None
    least = 64 * 2**20 if growth.seconds < SHORT_S or snapshot.steps < FEW_STEPS else GROWTH_AT_LEAST
    if growth.bytes < least or growth.bytes <= threshold * level.mean:
        return None
    kept = kept_in(snapshot, growth.bytes, growth.seconds)
    if kept is not None and kept.most and (kept.most - kept.points[-1][1]) * kept.element_bytes < free_bytes / 2:
        return None  # as of a replay buffer: it ends
    bytes_per_s = growth.bytes / growth.seconds if growth.seconds else 0.0
    evidence: dict[str, float | int | str] = {
        "growth_bytes": growth.bytes,
        "seconds": growth.seconds,
        "threshold": threshold,
        "p_value": growth.p_value,
    }
    step, soon, lasts = snapshot.step, "", ""
    if free_bytes > 0 and bytes_per_s:
        evidence["seconds_until_full"] = left_s = free_bytes / bytes_per_s
        lasts = f"; at this rate the remaining {bytes_text(free_bytes)} last {_span_text(left_s)}"
        trained_s = 0.0 if step is None else snapshot.wall_s - (step.before_s or 0.0)
        if step is not None and left_s < FORECAST * trained_s and (step.rise or 0.0) < 0.2:
            evidence["full_at_step"] = full_at = float(f"{step.count * (1 + left_s / trained_s):.2g}")
            soon = f", out of memory near step {full_at:,.0f}"
    text, fix = "", _keep_less(snapshot, snapshot.program.graphs)
    if kept is not None:
        first, last = (round(point[1]) for point in (kept.points[0], kept.points[-1]))
        text = (
            f"; {kept.name} ({kept.place}) grew from {first:,} to {last:,} elements of {bytes_text(kept.element_bytes)}"
        )
        evidence |= {"variable": kept.name, "lines": kept.place, "first": first, "last": last}
        bounded = f"Keep less in {kept.name} at {kept.place}: the last elements alone, numbers for tensors, or a file"
        if kept.are_tensors and kept.element_bytes < 2**16:
            bounded = (
                f"Keep numbers in {kept.name} at {kept.place} (.item()), or less: tensors that are kept also "
                "leave gaps between them in memory"
            )
        fix = Fix(bounded, (Change.BOUNDED,))
    return found(
        f"{what} keeps growing{soon}: by {bytes_text(growth.bytes)} in {_span_text(growth.seconds)}{text}{lasts}",
        evidence,
        fix,
    )


def _keep_less(snapshot: Snapshot, graphs: KeptGraphs | None = None) -> Fix:
    """Return what to write where tensors are kept, which are no ``graphs``, and the command that shows allocations."""
    detached = "Keep loss.detach() or loss.item(), not loss, in lists and sums"
    if graphs is not None and graphs.steps >= 10 and not graphs.kept:
        return Fix("Empty the cache or log that grows", (), (record_steps(snapshot.steps),))
    return Fix(
        f"{detached}; or empty the cache or log that grows",
        (Change.DETACH,),
        (Action(detached, (Change.DETACH,)), record_steps(snapshot.steps)),
    )


@RULES.rule(
    "kept-graphs", 0.9, saving=Saving.UNKNOWN, label="MEMORY", changes=(Change.DETACH,), is_risk=True
)  # of the graphs that were followed
def kept_graphs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a program that keeps the graphs of earlier losses or outputs; None where fewer than 10 were followed."""
    facts = snapshot.program.graphs
    if facts is None or facts.steps < 10 or facts.kept < threshold * facts.steps:
        return None
    where = f"; their backward passes begin at {facts.backward}" if facts.backward else ""
    where = f": {facts.place}" if facts.place else where
    return found(
        f"The program keeps the graphs of earlier steps: {facts.kept} of {facts.steps} losses or outputs "
        f"still had theirs {facts.after} steps later{where}",
        {
            "followed": facts.steps,
            "kept": facts.kept,
            "threshold": threshold,
            "steps_later": facts.after,
            "lines": facts.place,
        },
        "Keep loss.detach() instead: a graph takes memory as long as a loss of its step, or their sum, is kept",
    )


def _span_text(seconds: float) -> str:
    if seconds < 180:
        return f"{seconds:.0f} s"
    if seconds < 3 * S_PER_HOUR:
        return f"{seconds / S_PER_MINUTE:.0f} min"
    return f"{seconds / S_PER_HOUR:.1f} h" if seconds < 100 * S_PER_HOUR else f"{seconds / S_PER_HOUR / 24:.0f} days"


def fullest(snapshot: Snapshot) -> tuple[GpuStats, float] | None:
    """Return the device with the highest peak share of its memory, and that share; None if unknown for all."""
    gpus = [] if snapshot.machine is None else snapshot.machine.gpus
    shares = [(gpu, held.max / gpu.total_bytes) for gpu in gpus if gpu.total_bytes and (held := gpu.held_bytes)]
    return max(shares, key=lambda gpu_and_share: gpu_and_share[1], default=None)


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
    return MOSTLY * beyond_s <= waits_s <= 1.25 * beyond_s and waits_s > 0


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
    if cause is None or cause.potential_saving_s < 0.5 * finding.potential_saving_s:
        return finding
    # The whole fix stands beside the cause, which is listed as well.
    return replace(finding, fix=f"First fix what keeps it waiting, as {brief(cause.message)}")


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
    # From the first step on, in no step, without the profiler's own.
    own_s = snapshot.sections[PROFILER].total_s if PROFILER in snapshot.sections else 0.0
    between_s = max(0.0, snapshot.wall_s - (step.before_s or 0.0) - step.total_s - own_s)
    idle = (1 - utilization) - utilization * between_s / step.total_s
    if min(1 - utilization, idle) <= 1 - threshold:
        return None
    queued_s = _queued_s(snapshot)
    work_s, text = utilization * step.avg_s, ""
    evidence: dict[str, float | int | str] = {"gpu": index, "utilization": utilization, "threshold": threshold}
    actions: tuple[Action, ...] = ()
    if queued_s is not None and queued_s > max(work_s, MOSTLY * step.avg_s):
        text = f"; the CPU takes {ms_text(queued_s)} a step to queue {ms_text(work_s)} of GPU work"
        queuing = [line for name in PASSES for line in snapshot.lines_of_steps(name)]
        if places := hottest_places(sorted(queuing, key=lambda line: -line.share)):
            evidence["lines"] = ", ".join(f"{place.place} {place.what}" for place in places)
        # The rest of the host's step runs beside the device's work, or after it.
        rest_s = step.avg_s - queued_s
        left_s = (max(work_s, rest_s) + work_s + rest_s) / 2
        part = min(1.0, max(0.0, step.avg_s - left_s) / (idle * step.avg_s))
        actions = (
            Action('torch.compile(model, mode="reduce-overhead")', (Change.COMPILE,), part),
            Action("capture the whole step in a CUDA graph (torch.cuda.graph)", (Change.COMPILE,)),
        )
    return found(
        f"GPU {index} is busy {utilization:.0%} of the time{text}",
        evidence,
        Fix(GIVE_MORE_WORK, (Change.COMPILE, Change.OTHER_BATCHES, Change.LARGER_COLLECTIVES), actions),
        saving_s=idle * step.settled_s,
    )


def _queued_s(snapshot: Snapshot) -> float | None:
    """Return the host's time in the passes of a step, in s; None where the device's time in them is not measured."""
    step, passes = snapshot.step, [snapshot.sections.get(name) for name in PASSES]
    if step is None or not all(section is None or snapshot.is_by_device(section.name) for section in passes):
        return None
    return sum(section.settled_total_s for section in passes if section is not None) / step.settled_count


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
    return found(
        f"Other programs use GPU {gpu.index}, too: their kernels run {others:.0%} of the time "
        f"({most} processes in all), and work on it waits for them",
        {"gpu": gpu.index, "others": others, "processes": most, "threshold": threshold},
        "Run it again on a GPU that no other program uses, before changing code: nvidia-smi lists the programs, "
        "CUDA_VISIBLE_DEVICES chooses the GPU",
        saving_s=others * step.settled_s,
    )


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
    return found(
        f"A torch profiler that the program starts records {share:.0%} of the time, which makes each "
        "operator longer; every time below includes it",
        {"share_of_samples": share, "threshold": threshold},
        "Record a few steps only: torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=1, "
        "active=3, repeat=1)) with its step() after each training step; or train without torch.profiler, emit_nvtx and "
        "emit_itt",
    )
