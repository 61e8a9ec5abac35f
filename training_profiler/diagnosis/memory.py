"""Rules about memory: of the host, of accelerators, and whether it grows."""

from typing import Final

from training_profiler.diagnosis.registry import RULES, has_enough_steps
from training_profiler.diagnosis.shares import severity_of
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import GpuStats, Growth, Level, Snapshot
from training_profiler.units import S_PER_HOUR, S_PER_MINUTE, bytes_text

OUT_OF_MEMORY_RISK: Final = 0.98  # of the device
LOOKS_NEEDED: Final = 5  # of the monitor
GROWTH_NEEDS: Final = 10  # points
GROWTH_P_VALUE: Final = 0.001
GROWTH_AT_LEAST: Final = 16 * 2**20  # bytes; caches and fragmentation come and go by that much


@RULES.rule("host-memory", threshold=0.85, saving=Saving.UNKNOWN)
def host_memory(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a peak above 85 % of the memory there is: the container's limit, or the host's where there is none."""
    machine = snapshot.machine
    if machine is None or machine.ram_share is None or machine.ram_share.max <= threshold:
        return None
    share = machine.ram_share.max
    of = "the host's memory"
    if machine.ram_limit_bytes is not None:
        of = f"the container's limit of {bytes_text(machine.ram_limit_bytes)}"
    return Finding(
        code="host-memory",
        message=f"RAM is {share:.1%} of {of} at its peak (pressure {severity_of(share, threshold):.2f})",
        evidence={"ram_share": share, "threshold": threshold, "pressure": severity_of(share, threshold)},
        potential_saving_s=0.0,
        fix="a smaller batch with gradient accumulation, fewer DataLoader workers or a smaller prefetch_factor, "
        "datasets that are mapped (mmap) rather than read whole",
    )


@RULES.rule("gpu-memory-high", threshold=0.90, saving=Saving.UNKNOWN)
def gpu_memory_high(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a device that was filled above 90 %; above 98 % it may run out."""
    found = fullest(snapshot)
    if found is None or found[1] <= threshold:
        return None
    gpu, share = found
    risk = "; above 98% the next larger batch runs out of memory" if share > OUT_OF_MEMORY_RISK else ""
    return Finding(
        code="gpu-memory-high",
        message=f"GPU {gpu.index} is filled to {share:.1%} of {bytes_text(gpu.total_bytes or 0)} at its peak{risk}",
        evidence={
            "gpu": gpu.index,
            "memory_share": share,
            "threshold": threshold,
            "pressure": severity_of(share, threshold),
        },
        potential_saving_s=0.0,
        fix="a smaller batch, gradient checkpointing (torch.utils.checkpoint), or mixed precision",
    )


@RULES.rule("gpu-memory-low", threshold=0.50, saving=Saving.UNKNOWN)
def gpu_memory_low(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag devices of which none was filled by half; None before a few steps and looks have been seen."""
    found = fullest(snapshot)
    machine = snapshot.machine
    if found is None or machine is None or machine.samples < LOOKS_NEEDED or not has_enough_steps(snapshot):
        return None
    gpu, share = found
    if share >= threshold:
        return None
    return Finding(
        code="gpu-memory-low",
        message=f"GPU {gpu.index} is filled to {share:.1%} of {bytes_text(gpu.total_bytes or 0)} at its peak",
        evidence={"gpu": gpu.index, "memory_share": share, "threshold": threshold},
        potential_saving_s=0.0,
        fix="a larger batch makes better use of the device, where the training allows it",
    )


@RULES.rule("memory-growth", threshold=0.05, saving=Saving.UNKNOWN)  # of what was held on average
def memory_growth(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag memory that grows steadily by over 5 %: of a device, or of the process where no device's does."""
    machine = snapshot.machine
    if machine is None:
        return None
    for gpu in machine.gpus:
        if _grows(gpu.allocated_growth, gpu.allocated_bytes, threshold):
            assert gpu.allocated_growth is not None
            free = None if gpu.total_bytes is None or gpu.used_bytes is None else gpu.total_bytes - gpu.used_bytes.last
            return _growing(gpu.allocated_growth, f"memory allocated on GPU {gpu.index}", free, threshold)
    if _grows(machine.ram_growth, machine.ram_process_bytes, threshold):
        assert machine.ram_growth is not None
        free = None if machine.ram_available_bytes is None else machine.ram_available_bytes.last
        return _growing(machine.ram_growth, "memory of this process", free, threshold)
    return None


def _grows(growth: Growth | None, level: Level | None, threshold: float) -> bool:
    return (
        growth is not None
        and level is not None
        and growth.points >= GROWTH_NEEDS
        and growth.p_value <= GROWTH_P_VALUE
        and growth.bytes >= GROWTH_AT_LEAST
        and growth.bytes > threshold * level.mean
    )


def _growing(growth: Growth, what: str, free_bytes: float | None, threshold: float) -> Finding:
    a_second = growth.bytes / growth.seconds if growth.seconds else 0.0
    evidence: dict[str, float | int | str] = {
        "growth_bytes": growth.bytes,
        "seconds": growth.seconds,
        "threshold": threshold,
        "p_value": growth.p_value,
    }
    lasts = ""
    if free_bytes is not None and free_bytes > 0 and a_second:
        evidence["seconds_until_full"] = free_bytes / a_second
        lasts = f"; at this pace the {bytes_text(free_bytes)} left last {_span_text(free_bytes / a_second)}"
    return Finding(
        code="memory-growth",
        message=f"{what} grows steadily: by {bytes_text(growth.bytes)} in {_span_text(growth.seconds)}{lasts}",
        evidence=evidence,
        potential_saving_s=0.0,
        fix="something keeps tensors together with their graph, such as a list of losses: keep loss.item() or "
        "loss.detach() instead; else a cache or a log that is never emptied",
    )


def _span_text(seconds: float) -> str:
    return (
        f"{seconds:.0f}s"
        if seconds < 180
        else f"{seconds / S_PER_MINUTE:.0f} min"
        if seconds < 3 * S_PER_HOUR
        else _hours(seconds)
    )


def _hours(seconds: float) -> str:
    return f"{seconds / S_PER_HOUR:.1f} h" if seconds < 100 * S_PER_HOUR else f"{seconds / S_PER_HOUR / 24:.0f} days"


def fullest(snapshot: Snapshot) -> tuple[GpuStats, float] | None:
    """Return the device of the highest peak and that as a share of its memory; None where it is not known of any."""
    gpus = [] if snapshot.machine is None else snapshot.machine.gpus
    shares = [(gpu, held.max / gpu.total_bytes) for gpu in gpus if gpu.total_bytes and (held := gpu.held_bytes)]
    return max(shares, key=lambda found: found[1], default=None)
