"""Figures as trackers get them: names and units are a contract (PROFILING.md, "Trackers"). Unknown is left out."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from training_profiler.diagnosis.registry import threshold_of
from training_profiler.diagnosis.shares import severity_of
from training_profiler.recording.known_sections import DATA_GENERATION, DATA_LOADING, DATA_TRANSFER
from training_profiler.snapshot.snapshot import (
    OTHER,
    OUTSIDE_STEPS,
    PROFILER,
    EpochStats,
    GpuStats,
    LoaderStats,
    MachineStats,
    Snapshot,
    Throughput,
)
from training_profiler.units import BYTES_PER_GB, MS_PER_S, S_PER_HOUR

Metrics = Mapping[str, float]

STEP: Final = "profiling/step"  # the axis, where a backend needs one of its own: optimizer steps
# section -> (seconds a batch, percentage of batch time)
_OF_A_BATCH: Final = {
    DATA_GENERATION: ("data_generation_time", "data_gen_percentage"),
    DATA_TRANSFER: ("data_transfer_time", "transfer_percentage"),
}


def interval_metrics(snapshot: Snapshot) -> dict[str, float]:
    """Return the metrics of the interval that ``snapshot`` is of."""
    found: dict[str, float | None] = {}
    for section in snapshot.sections.values():
        if section.count and section.name != PROFILER:
            found[f"timing_{section.name}_avg"] = section.avg_s
    found |= {f"interval_{name}_percentage": 100 * share for name, share in _shares(snapshot).items()}
    found |= _batch_metrics(snapshot)
    if snapshot.machine is not None:
        limits = threshold_of("host-memory", snapshot), threshold_of("gpu-memory-high", snapshot)
        found |= _machine_metrics(snapshot.machine, *limits)
    if snapshot.throughput is not None:
        found |= _throughput_metrics(snapshot.throughput)
    return _known("profiling/", found)


def epoch_metrics(epoch: EpochStats) -> dict[str, float]:
    """Return the metrics of an epoch."""
    found: dict[str, float | None] = {"epoch_total_time": epoch.wall_s}
    if epoch.wall_s:
        if epoch.batches:
            found["epoch_throughput_batches_per_hour"] = epoch.batches / epoch.wall_s * S_PER_HOUR
        found |= {
            f"epoch_{name}_percentage": 100 * self_s / epoch.wall_s for name, self_s in _plain(epoch.self_s).items()
        }
        found.setdefault(f"epoch_{OTHER}_percentage", 0.0)
    if epoch.machine is not None:
        ram_share = epoch.machine.ram_share
        found["epoch_max_ram_usage"] = None if ram_share is None else 100 * ram_share.max
        for gpu in epoch.machine.gpus:
            if gpu.allocated_bytes is not None:
                found[f"epoch_max_gpu_{gpu.index}_memory"] = gpu.allocated_bytes.max / BYTES_PER_GB
    return _known("profiling/", found)


def loader_metrics(loaders: Iterable[LoaderStats]) -> dict[str, float]:
    """Return the metrics of data loaders, in ms; in validation there are data and forward alone."""
    found: dict[str, float | None] = {}
    for loader in loaders:
        times_s = {"data": loader.data_avg_s, "forward": loader.forward_avg_s}
        prefix = f"{loader.phase}/dl_{loader.name}/"
        if loader.phase == "train":
            times_s |= {
                "backward": loader.backward_avg_s,
                "optimizer": loader.optimizer_avg_s,
                "batch_wait": loader.batch_wait_avg_s,
            }
            found[prefix + "proportion"] = loader.proportion
        for name, seconds in times_s.items():
            found[f"{prefix}time_{name}_ms"] = None if seconds is None else seconds * MS_PER_S
    return _known("profile/", found)


def _shares(snapshot: Snapshot) -> dict[str, float]:
    """Return each section's own share of the wall time; they add up to 1, as in an epoch's figures."""
    shares = {section.name: section.share for section in snapshot.sections.values() if section.share}
    uncovered = shares.pop(OTHER, 0.0) + shares.pop(OUTSIDE_STEPS, 0.0)
    return _plain({**shares, OTHER: uncovered}) if snapshot.wall_s else {}


def _plain(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the parts with the profiler's own under a name that all trackers take."""
    own = parts.get(PROFILER)
    others = {name: part for name, part in parts.items() if name != PROFILER}
    return others if own is None else {**others, PROFILER.strip("()"): own}


def _batch_metrics(snapshot: Snapshot) -> dict[str, float | None]:
    """Return what is known of batches; a step is one where no loader was seen."""
    step = snapshot.step
    if step is None or not step.count or not step.avg_s:
        return {}
    fetches = snapshot.sections.get(DATA_LOADING)
    batches_a_step = fetches.count / step.count if fetches is not None and fetches.count else 1.0
    batch_s = step.avg_s / batches_a_step
    found: dict[str, float | None] = {
        "batch_time_avg": batch_s,
        "batch_time_std": step.std_s / batches_a_step if step.settled_count > 1 else None,
        "batches_per_second": 1 / batch_s,
    }
    for section, (time_name, percentage_name) in _OF_A_BATCH.items():
        share = snapshot.share_of_step(section)
        if share is not None:
            found |= {time_name: share * batch_s, percentage_name: 100 * share}
    generation = snapshot.share_of_step(DATA_GENERATION)
    return found | _pressure(
        generation,
        threshold_of("data-generation-bound", snapshot),
        "bottleneck_data_generation",
        "data_gen_bottleneck_severity",
    )


def _machine_metrics(machine: MachineStats, ram_limit: float, gpu_limit: float) -> dict[str, float | None]:
    ram_share = None if machine.ram_share is None else machine.ram_share.mean
    found: dict[str, float | None] = {"cpu_usage_percent": _cpu_percent(machine)}
    if ram_share is not None:
        found["ram_usage_percent"] = 100 * ram_share
    if machine.ram_available_bytes is not None:
        found["ram_available_gb"] = machine.ram_available_bytes.mean / BYTES_PER_GB
    found |= _pressure(ram_share, ram_limit, "bottleneck_memory", "memory_pressure")
    for gpu in machine.gpus:
        gpu_name = f"gpu_{gpu.index}"
        if gpu.allocated_bytes is not None:
            found[f"{gpu_name}_memory_allocated_gb"] = gpu.allocated_bytes.mean / BYTES_PER_GB
        if gpu.utilization is not None:
            found[f"{gpu_name}_utilization"] = 100 * gpu.utilization.mean
        share = _memory_share(gpu)
        if share is not None:
            found[f"{gpu_name}_memory_utilization"] = 100 * share
        found |= _pressure(share, gpu_limit, f"bottleneck_{gpu_name}_memory", f"{gpu_name}_memory_pressure")
    return found


def _throughput_metrics(throughput: Throughput) -> dict[str, float | None]:
    return {
        "steps_per_second": throughput.steps_per_s,
        "samples_per_second": throughput.samples_per_s,
        "tflops": throughput.tflops,
        "mfu": throughput.mfu,
    }


def _cpu_percent(machine: MachineStats) -> float | None:
    """Return the busy part of the container's CPUs where it has its own, else of the host's, in %."""
    if machine.cpu_container is not None and machine.cores:
        return 100 * machine.cpu_container.mean / machine.cores
    return None if machine.cpu_host is None else 100 * machine.cpu_host.mean


def _memory_share(gpu: GpuStats) -> float | None:
    return gpu.held_bytes.mean / gpu.total_bytes if gpu.held_bytes is not None and gpu.total_bytes else None


def _pressure(share: float | None, limit: float, flag: str, severity: str) -> dict[str, float | None]:
    """Return a flag that says 1 beyond the rule's threshold, and how far beyond, from 0 to 1 where all is used up."""
    return {} if share is None else {flag: float(share > limit), severity: severity_of(share, limit)}


def _known(prefix: str, found: Mapping[str, float | None]) -> dict[str, float]:
    return {prefix + name: value for name, value in found.items() if value is not None and math.isfinite(value)}
