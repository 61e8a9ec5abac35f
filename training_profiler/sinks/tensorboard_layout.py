"""The charts of TensorBoard's page "Custom Scalars": throughput, memory, timing breakdown, bottlenecks."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from training_profiler.recording.known_sections import OUTSIDE_STEPS_SECTIONS
from training_profiler.sinks.sink import MetricRow
from training_profiler.snapshot.snapshot import OTHER

PERCENTAGE: Final = re.compile(r"profiling/interval_(.+)_percentage")
STACK: Final = "profiling_stack/"  # tags of the heights in the stacked chart
FLOOR: Final = STACK + "0"
MAX_EARLIER_ROWS: Final = 10_000  # that a new section gets zeros for
# These take so long that the other sections would be flat lines beside them.
_OUTSIDE_STEPS: Final = f"({'|'.join(OUTSIDE_STEPS_SECTIONS)})"
_THROUGHPUT: Final = {
    "Batches and steps per second": r"profiling/(batches|steps)_per_second",
    "Samples per second": r"profiling/samples_per_second",
    "Batch time (s)": r"profiling/batch_time_(avg|std)",
    "Batches per hour, by epoch": r"profiling/epoch_throughput_batches_per_hour",
    "Achieved TFLOP/s": r"profiling/tflops",
    "Model FLOPs utilization": r"profiling/mfu",
}
_MEMORY: Final = {
    "Host memory used (%)": r"profiling/(ram_usage_percent|epoch_max_ram_usage)",
    "Host memory available (GB)": r"profiling/ram_available_gb",
    "GPU memory allocated (GB)": r"profiling/(gpu_\d+_memory_allocated_gb|epoch_max_gpu_\d+_memory)",
    "GPU memory used (%)": r"profiling/gpu_\d+_memory_utilization",
}
_TIMING: Final = {
    "Mean of a span, by section (s)": rf"profiling/timing_(?!{_OUTSIDE_STEPS}).+_avg",
    "Mean of validation, sampling, checkpoints (s)": rf"profiling/timing_{_OUTSIDE_STEPS}.*_avg",
    "Data loaders, training (ms)": r"profile/train/dl_.+_ms",
    "Data loaders, validation (ms)": r"profile/val/dl_.+_ms",
}
_BOTTLENECKS: Final = {
    "Bottlenecks (1 where there is one)": r"profiling/bottleneck_.+",
    "Severity (0 to 1)": r"profiling/(data_gen_bottleneck_severity|memory_pressure|gpu_\d+_memory_pressure)",
    "CPU and GPU busy (%)": r"profiling/(cpu_usage_percent|gpu_\d+_utilization)",
    "Data generation and transfer (% of batch time)": r"profiling/(data_gen|transfer)_percentage",
}


@dataclass(frozen=True, slots=True)
class Category:
    """Charts under one heading."""

    title: str
    lines: dict[str, list[str]]  # chart -> patterns of tags
    bands: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # chart -> (lower, upper) tags


class Stack:
    """Percentages of the sections, stacked; each section keeps its place, and new sections come on top.

    TensorBoard draws a band only if all its tags have the same steps. So a new section also gets values at the steps
    before it, with a height of zero.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._past: list[tuple[MetricRow, float]] = []  # each row, and the height of its stack

    def rows(self, row: MetricRow) -> list[MetricRow]:
        """Return rows with the height that each section reaches, for this row and for earlier ones."""
        shares = {match[1]: value for name, value in row.metrics.items() if (match := PERCENTAGE.fullmatch(name))}
        if not shares:
            return []
        new = sorted(shares.keys() - set(self._names), key=lambda name: (name == OTHER, -shares[name], name))
        tags = [STACK + name for name in new] if self._names else []
        earlier = [past._replace(metrics=dict.fromkeys(tags, height)) for past, height in self._past if tags]
        self._names += new
        heights, height = {FLOOR: 0.0}, 0.0
        for name in self._names:
            height += shares.get(name, 0.0)
            heights[STACK + name] = height
        if len(self._past) < MAX_EARLIER_ROWS:
            self._past.append((row._replace(metrics={}), height))
        return [*earlier, row._replace(metrics=heights)]

    def bands(self) -> list[tuple[str, str]]:
        """Return (lower tag, upper tag) of each section, highest first."""
        tags = [FLOOR, *(STACK + name for name in self._names)]
        return list(pairwise(tags))[::-1]


def categories(tags: Collection[str], stack: Stack) -> list[Category]:
    """Return the charts that have a line or band for any of these tags."""
    stacked = {"Where the time goes (% of wall time, stacked)": stack.bands()} if stack.bands() else {}
    charts = [
        Category("Throughput", _with_any(_THROUGHPUT, tags)),
        Category("Memory", _with_any(_MEMORY, tags)),
        Category("Timing breakdown", _with_any(_TIMING, tags), stacked),
        Category("Bottlenecks", _with_any(_BOTTLENECKS, tags)),
    ]
    return [category for category in charts if category.lines or category.bands]


def _with_any(charts: Mapping[str, str], tags: Collection[str]) -> dict[str, list[str]]:
    return {
        title: [f"^{pattern}$"] for title, pattern in charts.items() if any(re.fullmatch(pattern, tag) for tag in tags)
    }
