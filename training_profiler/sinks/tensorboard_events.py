"""TensorBoard: event files in the run folder, an overview, and a page of charts under "Custom Scalars"."""

import io
import os
import re
import socket
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from training_profiler.base.sections import OTHER, OUTSIDE_STEPS_SECTIONS, WITHIN
from training_profiler.base.trackers import TENSORBOARD
from training_profiler.safety.files import OwnFile, make_inner_folder
from training_profiler.sinks.metrics import PlainNames
from training_profiler.sinks.sink import MetricRow, Sink, folder_for

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
_CHARTS: Final = {
    "Throughput": {
        "Batches and steps per second": r"profiling/(batches|steps)_per_second",
        "Samples per second": r"profiling/samples_per_second",
        "Tokens per second": r"profiling/tokens_per_second",
        "Batch time (s)": r"profiling/batch_time_(avg|std)",
        "Batches per hour, by epoch": r"profiling/epoch_throughput_batches_per_hour",
        "Achieved TFLOP/s": r"profiling/tflops",
        "Model FLOPs utilization": r"profiling/mfu",
    },
    "Memory": {
        "Host memory used (%)": r"profiling/(ram_usage_percent|epoch_max_ram_usage)",
        "Host memory available (GB)": r"profiling/ram_available_gb",
        "GPU memory allocated (GB)": r"profiling/(gpu_\d+_memory_allocated_gb|epoch_max_gpu_\d+_memory)",
        "GPU memory used (%)": r"profiling/gpu_\d+_memory_utilization",
    },
    "Timing breakdown": {
        "Where the time goes (% of wall time, stacked)": UPPER,
        "Mean of a span, by section (s)": MEAN,
        "Mean of validation, sampling, checkpoints (s)": MEAN_OUTSIDE,
        "Data loaders, training (ms)": r"profile/train/dl_.+_ms",
        "Data loaders, validation (ms)": r"profile/val/dl_.+_ms",
    },
    "Bottlenecks": {
        "Bottlenecks (1 where there is one)": r"profiling/bottleneck_.+",
        "Severity (0 to 1)": r"profiling/(data_gen_bottleneck_severity|memory_pressure|gpu_\d+_memory_pressure)",
        "CPU and GPU busy (%)": r"profiling/(cpu_usage_percent|gpu_\d+_utilization)",
        "Data generation and transfer (% of batch time)": r"profiling/(data_gen|transfer)_percentage",
    },
}


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
            mean_s = row.metrics.get(f"profiling/timing_{name}_avg")
            is_outside = name.partition(WITHIN)[0] in OUTSIDE_STEPS_SECTIONS
            metrics = {} if mean_s is None else {MEAN_OUTSIDE if is_outside else MEAN: mean_s}
            if share:
                metrics |= {SHARE: share, LOWER: height, UPPER: height + share}
                height += share
            if metrics:
                rows[self._folders.of(name)] = row._replace(metrics=metrics)
        return rows


def overview(row: MetricRow) -> dict[str, float]:
    """Return the metrics of the whole run that belong to the overview, by their tags there."""
    return {
        OVERVIEW + name: row.metrics[f"profiling/{name}"] for name in _OVERVIEW if f"profiling/{name}" in row.metrics
    }


def charts(tags: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the charts with data for any of these tags: the pattern of their tags, by group and title."""
    found = {
        group: {
            title: pattern for title, pattern in patterns.items() if any(re.fullmatch(pattern, tag) for tag in tags)
        }
        for group, patterns in _CHARTS.items()
    }
    return {group: patterns for group, patterns in found.items() if patterns}


FOLDER: Final = TENSORBOARD.name  # in the run folder
LAYOUT_TAG: Final = "custom_scalars__config__"  # the tag that TensorBoard's plugin reads
LAYOUT_PLUGIN: Final = "custom_scalars"
DT_STRING: Final = 7


class TensorboardEvents(Sink):
    """Writes scalars by their names, and the layout again whenever there are new ones.

    Each section has a folder of its own besides, which TensorBoard shows as a run in its own color. Needs the package
    tensorboard alone. Its writer for remote files would import TensorFlow if that is installed.
    """

    name = TENSORBOARD.name

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._layouts: Any = None
        self._files: dict[str, _EventFile] = {}  # by the name of the section's folder; "" is the run's
        self._sections = SectionRuns()
        self._tags: set[str] = set()

    def open(self, folder: Path | None) -> None:
        """Import the writer of the format, and create the run's file."""
        from tensorboard.plugins.custom_scalar import layout_pb2

        self._folder, self._layouts = folder_for(folder) / FOLDER, layout_pb2
        self._file("").flush()

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append the rows."""
        if self._folder is None or not rows:
            return
        for row in rows:
            of_sections = self._sections.rows(row)
            metrics = {**row.metrics, **overview(row)}
            tags = metrics.keys() | {tag for part in of_sections.values() for tag in part.metrics}
            if not tags <= self._tags:
                self._tags |= tags
                self._write_layout(row)
            self._file("").write(row._replace(metrics=metrics))
            for name, part in of_sections.items():
                self._file(name).write(part)
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _file(self, name: str) -> "_EventFile":
        if name not in self._files:
            self._files[name] = _EventFile(folder_for(self._folder) / name)
        return self._files[name]

    def _write_layout(self, row: MetricRow) -> None:
        layout = self._layouts.Layout()
        for group, patterns in charts(self._tags).items():
            made = layout.category.add(title=group).chart
            for title, pattern in patterns.items():
                if pattern == UPPER:
                    made.add(title=title).margin.series.add(value=UPPER, lower=LOWER, upper=UPPER)
                else:
                    made.add(title=title).multiline.tag.append(f"^{pattern}$")
        self._file("").write_layout(row, layout.SerializeToString())


class _EventFile:
    """One event file, in a folder of its own; ``flush`` writes what was appended."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        make_inner_folder(folder)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._event, self._file, self._buffer = event_pb2.Event, OwnFile(folder / name), io.BytesIO()
        self._records = RecordWriter(self._buffer)
        self._append(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, row: MetricRow) -> None:
        event = self._event(wall_time=row.time_s, step=row.step)
        for name, value in row.metrics.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._append(event)

    def write_layout(self, row: MetricRow, layout: bytes) -> None:
        event = self._event(wall_time=row.time_s, step=row.step)
        value = event.summary.value.add(tag=LAYOUT_TAG)
        value.metadata.plugin_data.plugin_name = LAYOUT_PLUGIN
        value.tensor.dtype = DT_STRING
        value.tensor.string_val.append(layout)
        self._append(event)

    def flush(self) -> None:
        self._file.append(self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
