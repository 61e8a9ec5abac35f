"""Rules about memory: of the host and of accelerators, and whether it grows."""

from typing import Final

from training_profiler.base.units import S_PER_HOUR, S_PER_MINUTE, bytes_text
from training_profiler.diagnosis.change import when_text, work_of
from training_profiler.diagnosis.registry import RULES, has_enough_steps
from training_profiler.diagnosis.shares import severity_of
from training_profiler.findings.finding import Finding
from training_profiler.findings.losses import Change
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import GpuStats, Growth, Level, MemoryChange, Snapshot
from training_profiler.tables.sections import DATA_LOADING

OUT_OF_MEMORY_RISK: Final = 0.98  # of the device
SAMPLES_NEEDED: Final = 5  # of the system monitor
WAITS_FROM: Final = 0.15  # of step time: then more rows a batch are as much more to wait for
FULL_FROM: Final = 0.95  # of the time in which a device runs a kernel
RETRIES_NEEDED: Final = 3  # one or two are part of finding how much memory a training needs
JUMPS: Final = 0.25  # of the memory before; allocators and data sets take some more now and then
GROWTH_NEEDS: Final = 10  # points
GROWTH_P_VALUE: Final = 0.001
GRAPHS_NEEDED: Final = 10
GROWTH_AT_LEAST: Final = 16 * 2**20  # bytes; caches and fragmentation come and go by that much
# In the first minute libraries are loaded, allocators and caches fill, and a rise that ends is like a leak.
SHORT_S: Final = 60.0
SHORT_AT_LEAST: Final = 64 * 2**20


@RULES.rule(
    "host-memory",
    threshold=0.85,
    saving=Saving.UNKNOWN,
    label="MEMORY",
    changes=(
        Change.PREFETCH_FACTOR,
        Change.FEWER_WORKERS,
        Change.MAPPED_DATA,
        Change.OTHER_BATCHES,
        Change.ACCUMULATION,
    ),
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
    return Finding(
        code="host-memory",
        message=f"Peak RAM is {share:.1%} of {of} (pressure {severity_of(share, threshold):.2f})",
        evidence={"ram_share": share, "threshold": threshold, "pressure": severity_of(share, threshold)},
        fix="Use a smaller batch with gradient accumulation, fewer DataLoader workers or a smaller prefetch_factor; "
        "map datasets into memory (mmap) instead of loading them whole",
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
    risk = "; above 98% a larger batch runs out of memory" if share > OUT_OF_MEMORY_RISK else ""
    return Finding(
        code="gpu-memory-high",
        message=f"Peak memory of GPU {gpu.index} is {share:.1%} of {bytes_text(gpu.total_bytes or 0)}{risk}",
        evidence={
            "gpu": gpu.index,
            "memory_share": share,
            "threshold": threshold,
            "pressure": severity_of(share, threshold),
        },
        fix="Use a smaller batch, gradient checkpointing (torch.utils.checkpoint) or mixed precision",
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
    if share >= threshold or waits >= WAITS_FROM or (busy is not None and busy.mean > FULL_FROM):
        return None
    return Finding(
        code="gpu-memory-low",
        message=f"Peak memory of GPU {gpu.index} is only {share:.1%} of {bytes_text(gpu.total_bytes or 0)}",
        evidence={"gpu": gpu.index, "memory_share": share, "threshold": threshold},
        fix="Use a larger batch, if the training allows it",
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
    if retries < RETRIES_NEEDED or retries / snapshot.steps <= threshold:
        return None
    return Finding(
        code="allocator-retries",
        message=f"GPU {index} ran out of memory {retries:.0f} times in {snapshot.steps} steps: each time torch's "
        "allocator waited for the device, freed all that it had cached, and allocated again",
        evidence={"gpu": index, "retries": retries, "steps": snapshot.steps, "threshold": threshold},
        fix="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which leaves fewer gaps in memory; or use a smaller "
        "batch or gradient checkpointing (torch.utils.checkpoint)",
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
        if _grows(gpu.allocated_growth, gpu.allocated_bytes, threshold):
            assert gpu.allocated_growth is not None
            free = None if gpu.total_bytes is None or gpu.used_bytes is None else gpu.total_bytes - gpu.used_bytes.last
            return _growing(gpu.allocated_growth, f"Memory allocated on GPU {gpu.index}", free, threshold)
    if _grows(machine.ram_growth, machine.ram_process_bytes, threshold):
        assert machine.ram_growth is not None
        free = None if machine.ram_available_bytes is None else machine.ram_available_bytes.last
        return _growing(machine.ram_growth, "Memory of this process", free, threshold)
    return None


@RULES.rule(
    "memory-rises-since", 0.05, saving=Saving.UNKNOWN, label="MEMORY", changes=(Change.DETACH,), follows=_after_graphs
)  # of the memory before
def memory_rises_since(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag memory that grows by over 5 % from one step on, or is a quarter more; None where ``memory-growth`` fires.

    Inputs that grow need more memory, so then nothing is known.
    """
    if snapshot.step is None or snapshot.step.work_unit or _has_more_work(snapshot):
        return None
    if memory_growth(snapshot, snapshot.thresholds) is not None:
        return None
    for change in snapshot.memory_changes:
        rise = change.after_bytes - change.before_bytes
        if rise >= GROWTH_AT_LEAST and rise > (threshold if change.grows else JUMPS) * change.before_bytes:
            return _rises(change, rise, threshold)
    return None


def _has_more_work(snapshot: Snapshot) -> bool:
    change = None if snapshot.step is None else snapshot.step.change
    return change is not None and work_of(change) is not None


def _rises(change: MemoryChange, rise: float, threshold: float) -> Finding:
    what = "Memory of this process" if change.device is None else f"Memory allocated on GPU {change.device}"
    how = "grows since" if change.grows else "rose at"
    levels = f"from {bytes_text(change.before_bytes)} to {bytes_text(change.after_bytes)}"
    return Finding(
        code="memory-rises-since",
        message=f"{what} {how} {when_text(change)}: {levels}",
        evidence={
            "rise_bytes": rise,
            "threshold": threshold,
            "step": change.step,
            "first_step": change.first_step,
            "last_step": change.last_step,
            "grows": int(change.grows),
        },
        fix="Look for what begins there: tensors kept with their graph (keep loss.item() or loss.detach() instead), a "
        "cache, another part of the data",
    )


def _grows(growth: Growth | None, level: Level | None, threshold: float) -> bool:
    return (
        growth is not None
        and level is not None
        and growth.points >= GROWTH_NEEDS
        and growth.p_value <= GROWTH_P_VALUE
        and growth.bytes >= (SHORT_AT_LEAST if growth.seconds < SHORT_S else GROWTH_AT_LEAST)
        and growth.bytes > threshold * level.mean
    )


def _growing(growth: Growth, what: str, free_bytes: float | None, threshold: float) -> Finding:
    bytes_per_s = growth.bytes / growth.seconds if growth.seconds else 0.0
    evidence: dict[str, float | int | str] = {
        "growth_bytes": growth.bytes,
        "seconds": growth.seconds,
        "threshold": threshold,
        "p_value": growth.p_value,
    }
    lasts = ""
    if free_bytes is not None and free_bytes > 0 and bytes_per_s:
        evidence["seconds_until_full"] = free_bytes / bytes_per_s
        lasts = f"; at this rate the remaining {bytes_text(free_bytes)} last {_span_text(free_bytes / bytes_per_s)}"
    return Finding(
        code="memory-growth",
        message=f"{what} keeps growing: by {bytes_text(growth.bytes)} in {_span_text(growth.seconds)}{lasts}",
        evidence=evidence,
        fix="Look for tensors kept with their graph, such as a list of losses (keep loss.item() or loss.detach() "
        "instead), or for a cache or log that is never emptied",
    )


@RULES.rule(
    "kept-graphs", 0.9, saving=Saving.UNKNOWN, label="MEMORY", changes=(Change.DETACH,), is_risk=True
)  # of the graphs that were followed
def kept_graphs(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a program that keeps the graphs of earlier losses or outputs; None where fewer than 10 were followed."""
    facts = snapshot.program.graphs
    if facts is None or facts.steps < GRAPHS_NEEDED or facts.kept < threshold * facts.steps:
        return None
    where = f"; their backward passes begin at {facts.backward}" if facts.backward else ""
    where = f": {facts.place}" if facts.place else where
    return Finding(
        code="kept-graphs",
        message=f"The program keeps the graphs of earlier steps: {facts.kept} of {facts.steps} losses or outputs "
        f"still had theirs {facts.after} steps later{where}",
        evidence={
            "followed": facts.steps,
            "kept": facts.kept,
            "threshold": threshold,
            "steps_later": facts.after,
            "lines": facts.place,
        },
        fix="Keep loss.detach() instead: a graph takes memory as long as a loss of its step, or their sum, is kept",
    )


def _span_text(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 180
        else f"{seconds / S_PER_MINUTE:.0f} min"
        if seconds < 3 * S_PER_HOUR
        else _hours(seconds)
    )


def _hours(seconds: float) -> str:
    return f"{seconds / S_PER_HOUR:.1f} h" if seconds < 100 * S_PER_HOUR else f"{seconds / S_PER_HOUR / 24:.0f} days"


def fullest(snapshot: Snapshot) -> tuple[GpuStats, float] | None:
    """Return the device with the highest peak share of its memory, and that share; None if unknown for all."""
    gpus = [] if snapshot.machine is None else snapshot.machine.gpus
    shares = [(gpu, held.max / gpu.total_bytes) for gpu in gpus if gpu.total_bytes and (held := gpu.held_bytes)]
    return max(shares, key=lambda gpu_and_share: gpu_and_share[1], default=None)
