"""Metrics for trackers. Names and units are a contract (docs/reference/metrics.md); unknown values are left out."""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from training_profiler.base.sections import DATA_GENERATION, DATA_LOADING, DATA_TRANSFER
from training_profiler.base.units import BYTES_PER_GB, MS_PER_S, S_PER_HOUR
from training_profiler.diagnosis.pauses import PRODUCTIVE, goodput
from training_profiler.diagnosis.registry import threshold_of
from training_profiler.diagnosis.shares import severity_of
from training_profiler.model.snapshot import (
    OTHER,
    OUTSIDE_STEPS,
    PROFILER,
    EpochStats,
    Level,
    LoaderStats,
    MachineStats,
    Snapshot,
)

Metrics = Mapping[str, float]

STEP: Final = "profiling/step"  # optimizer steps: the axis, for trackers that need one of their own
MAX_PLAIN_NAME: Final = 80  # characters
NAMELESS: Final = "loader"
_NOT_FOR_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
# Section, its metric in s per batch, and in % of batch time.
_PER_BATCH: Final = (
    (DATA_GENERATION, "data_generation_time", "data_gen_percentage"),
    (DATA_TRANSFER, "data_transfer_time", "transfer_percentage"),
)
_RATES: Final = ("steps_per_second", "samples_per_second", "tokens_per_second", "tflops", "mfu")


def interval_metrics(snapshot: Snapshot) -> dict[str, float]:
    """Return the metrics of the interval that ``snapshot`` covers."""
    metrics: dict[str, float | None] = {}
    for section in snapshot.sections.values():
        if section.count and section.name != PROFILER:
            metrics[f"timing_{section.name}_avg"] = section.avg_s
    if snapshot.wall_s:  # the shares add up to 1, as in an epoch
        shares = {section.name: section.share for section in snapshot.sections.values() if section.share}
        uncovered = shares.pop(OTHER, 0.0) + shares.pop(OUTSIDE_STEPS, 0.0)
        parts = _plain({**shares, OTHER: uncovered})
        metrics |= {f"interval_{name}_percentage": 100 * share for name, share in parts.items()}
    metrics |= _batch_metrics(snapshot)
    if snapshot.machine is not None:
        limits = threshold_of("host-memory", snapshot), threshold_of("gpu-memory-high", snapshot)
        metrics |= _machine_metrics(snapshot.machine, *limits)
    if snapshot.throughput is not None:
        metrics |= {name: getattr(snapshot.throughput, name.replace("_second", "_s")) for name in _RATES}
    productive = (goodput(snapshot) or {}).get(PRODUCTIVE)
    metrics |= {"time_left": snapshot.left_s, "goodput": productive}
    return _known("profiling/", metrics)


def epoch_metrics(epoch: EpochStats) -> dict[str, float]:
    """Return the metrics of an epoch."""
    metrics: dict[str, float | None] = {"epoch_total_time": epoch.wall_s}
    if epoch.wall_s:
        if epoch.batches:
            metrics["epoch_throughput_batches_per_hour"] = epoch.batches / epoch.wall_s * S_PER_HOUR
        metrics |= {
            f"epoch_{name}_percentage": 100 * self_s / epoch.wall_s for name, self_s in _plain(epoch.self_s).items()
        }
        metrics.setdefault(f"epoch_{OTHER}_percentage", 0.0)
    if epoch.machine is not None:
        ram_share = epoch.machine.ram_share
        metrics["epoch_max_ram_usage"] = None if ram_share is None else 100 * ram_share.max
        for gpu in epoch.machine.gpus:
            if gpu.allocated_bytes is not None:
                metrics[f"epoch_max_gpu_{gpu.index}_memory"] = gpu.allocated_bytes.max / BYTES_PER_GB
    return _known("profiling/", metrics)


def _plain_name(name: str) -> str:
    """Return a name that every tracker and every disk takes: letters lose their accents, all else becomes ``_``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _NOT_FOR_NAMES.sub("_", plain).strip("_.")[:MAX_PLAIN_NAME] or NAMELESS


class PlainNames:
    """Gives each name a plain one of its own: one that another name has already gets a number."""

    def __init__(self, plain: Callable[[str], str] = _plain_name) -> None:
        self._plain = plain
        self._given: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the plain name of what has that name; the same in the whole run."""
        if name not in self._given:
            plain, taken = self._plain(name), self._given.values()
            numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
            self._given[name] = next(each for each in numbered if each not in taken)
        return self._given[name]


def loader_metrics(loaders: Iterable[LoaderStats], names: PlainNames | None = None) -> dict[str, float]:
    """Return the metrics of data loaders, in ms. In validation there are only data and forward."""
    names = names or PlainNames()
    metrics: dict[str, float | None] = {}
    for loader in loaders:
        prefix, times = f"{loader.phase}/dl_{names.of(loader.name)}/", ["data", "forward"]
        if loader.phase == "train":
            times += ["backward", "optimizer", "batch_wait"]
            metrics[prefix + "proportion"] = loader.proportion
        for name in times:
            seconds = getattr(loader, f"{name}_avg_s")
            metrics[f"{prefix}time_{name}_ms"] = None if seconds is None else seconds * MS_PER_S
    return _known("profile/", metrics)


def _plain(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the parts with the profiler's own under a name that all trackers accept."""
    own = parts.get(PROFILER)
    others = {name: part for name, part in parts.items() if name != PROFILER}
    return others if own is None else {**others, PROFILER.strip("()"): own}


def _batch_metrics(snapshot: Snapshot) -> dict[str, float | None]:
    """Return the metrics of batches. Without a loader, each step counts as one batch."""
    step = snapshot.step
    if step is None or not step.count or not step.avg_s:
        return {}
    fetches = snapshot.sections.get(DATA_LOADING)
    batches_per_step = fetches.count / step.count if fetches is not None and fetches.count else 1.0
    batch_s = step.avg_s / batches_per_step
    metrics: dict[str, float | None] = {
        "batch_time_avg": batch_s,
        "batch_time_std": step.std_s / batches_per_step if step.settled_count > 1 else None,
        "batches_per_second": 1 / batch_s,
    }
    for section, time_name, percentage_name in _PER_BATCH:
        share = snapshot.share_of_step(section)
        if share is not None:
            metrics |= {time_name: share * batch_s, percentage_name: 100 * share}
    generation, limit = snapshot.share_of_step(DATA_GENERATION), threshold_of("data-generation-bound", snapshot)
    return metrics | _pressure(generation, limit, "bottleneck_data_generation", "data_gen_bottleneck_severity")


def _machine_metrics(machine: MachineStats, ram_limit: float, gpu_limit: float) -> dict[str, float | None]:
    cpu = None if machine.cpu_host is None else 100 * machine.cpu_host.mean
    if machine.cpu_container is not None and machine.cores:  # it has a limit of its own
        cpu = 100 * machine.cpu_container.mean / machine.cores
    ram_share = _mean(machine.ram_share)
    metrics = {
        "cpu_usage_percent": cpu,
        "ram_usage_percent": None if ram_share is None else 100 * ram_share,
        "ram_available_gb": _mean(machine.ram_available_bytes, unit=BYTES_PER_GB),
        **_pressure(ram_share, ram_limit, "bottleneck_memory", "memory_pressure"),
    }
    for gpu in machine.gpus:
        name, held = f"gpu_{gpu.index}", gpu.held_bytes
        share = held.mean / gpu.total_bytes if held is not None and gpu.total_bytes else None
        metrics |= {
            f"{name}_memory_allocated_gb": _mean(gpu.allocated_bytes, unit=BYTES_PER_GB),
            f"{name}_utilization": _mean(gpu.utilization, 100),
            **{
                f"{name}_{unit}_active": _mean(getattr(gpu, f"{unit}_active"), 100) for unit in ("sm", "tensor", "dram")
            },
            **{
                f"{name}_{link}_gb_per_second": _mean(getattr(gpu, f"{link}_bytes_per_s"), unit=BYTES_PER_GB)
                for link in ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")
            },
            f"{name}_memory_utilization": None if share is None else 100 * share,
            **_pressure(share, gpu_limit, f"bottleneck_{name}_memory", f"{name}_memory_pressure"),
        }
    return metrics


def _mean(level: Level | None, scale: float = 1.0, unit: float = 1.0) -> float | None:
    return None if level is None else scale * level.mean / unit


def _pressure(share: float | None, limit: float, flag: str, severity: str) -> dict[str, float | None]:
    """Return a flag, 1 above the rule's threshold, and a severity from 0 at the threshold to 1 at a share of 1."""
    return {} if share is None else {flag: float(share > limit), severity: severity_of(share, limit)}


def _known(prefix: str, metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {prefix + name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
