"""The charts of TensorBoard: an overview, and a page "Custom Scalars" with throughput, memory, timing, bottlenecks.

TensorBoard opens on its first tab, whose groups are in the order of the alphabet: ``overview`` comes first there.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from training_profiler.sinks.metrics import PlainNames
from training_profiler.sinks.sink import MetricRow
from training_profiler.snapshot.snapshot import OTHER
from training_profiler.tables.sections import OUTSIDE_STEPS_SECTIONS, WITHIN

PERCENTAGE: Final = re.compile(r"profiling/interval_(.+)_percentage")
OVERVIEW: Final = "overview/"
SHARE: Final = OVERVIEW + "1_section_share_percent"
MEAN: Final = OVERVIEW + "2_section_mean_s"
MEAN_OUTSIDE: Final = OVERVIEW + "3_section_outside_steps_mean_s"
LOWER, UPPER = "profiling_stack/lower", "profiling_stack/upper"  # the heights of a section in the stacked chart
MOST_RUNS: Final = 11
REST: Final = "(remaining sections)"
_OVERVIEW: Final = (
    "steps_per_second",
    "samples_per_second",
    "batch_time_avg",
    "mfu",
    "cpu_usage_percent",
    "ram_usage_percent",
)
_THROUGHPUT: Final = {
    "Batches and steps per second": r"profiling/(batches|steps)_per_second",
    "Samples per second": r"profiling/samples_per_second",
    "Tokens per second": r"profiling/tokens_per_second",
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
    "Mean of a span, by section (s)": MEAN,
    "Mean of validation, sampling, checkpoints (s)": MEAN_OUTSIDE,
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


class SectionRuns:
    """Gives each section a run of its own: TensorBoard has one color a run, however many tags that has.

    A run is a folder with an event file. The largest sections get one, and the others share the last. Each section
    keeps its place in the stacked chart, and new ones come on top.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._folders = PlainNames()
        self._folders.of(REST)  # before a section that is called so

    def rows(self, row: MetricRow) -> dict[str, MetricRow]:
        """Return what the sections' runs get for a row, by the name of the run's folder."""
        shares = {match[1]: value for name, value in row.metrics.items() if (match := PERCENTAGE.fullmatch(name))}
        new = sorted(shares.keys() - set(self._names), key=lambda name: (name == OTHER, -shares[name], name))
        self._names += new[: MOST_RUNS - len(self._names)]
        rest = sum(share for name, share in shares.items() if name not in self._names)
        rows, height = {}, 0.0
        for name in (*self._names, REST):
            share = rest if name == REST else shares.get(name, 0.0)
            metrics = self._means(name, row)
            if share:
                metrics |= {SHARE: share, LOWER: height, UPPER: height + share}
                height += share
            if metrics:
                rows[self._folders.of(name)] = row._replace(metrics=metrics)
        return rows

    @staticmethod
    def _means(name: str, row: MetricRow) -> dict[str, float]:
        mean_s = row.metrics.get(f"profiling/timing_{name}_avg")
        is_outside = name.partition(WITHIN)[0] in OUTSIDE_STEPS_SECTIONS
        return {} if mean_s is None else {MEAN_OUTSIDE if is_outside else MEAN: mean_s}


def overview(row: MetricRow) -> dict[str, float]:
    """Return the metrics of the whole run that belong to the overview, by their tags there."""
    return {
        OVERVIEW + name: row.metrics[f"profiling/{name}"] for name in _OVERVIEW if f"profiling/{name}" in row.metrics
    }


def categories(tags: Collection[str]) -> list[Category]:
    """Return the charts that have a line or band for any of these tags."""
    stacked = {"Where the time goes (% of wall time, stacked)": [(LOWER, UPPER)]} if UPPER in tags else {}
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
