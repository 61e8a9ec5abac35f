"""TensorBoard: event files in the run folder, an overview, and a page of charts under "Custom Scalars"."""

import os
import re
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from training_profiler.safety.files import make_inner_folder
from training_profiler.safety.own_file import OwnFile
from training_profiler.sinks.metrics import PlainNames
from training_profiler.sinks.sink import MetricRow, Sink, folder_for
from training_profiler.snapshot.snapshot import OTHER
from training_profiler.tables.sections import OUTSIDE_STEPS_SECTIONS, WITHIN
from training_profiler.tables.trackers import TENSORBOARD

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
        for category in categories(self._tags):
            charts = layout.category.add(title=category.title).chart
            for title, series in category.bands.items():
                margin = charts.add(title=title).margin
                for lower, upper in series:
                    margin.series.add(value=upper, lower=lower, upper=upper)
            for title, tags in category.lines.items():
                charts.add(title=title).multiline.tag.extend(tags)
        self._file("").write_layout(row, layout.SerializeToString())


class _EventFile:
    """One event file, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        make_inner_folder(folder)
        self._protos = event_pb2
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._records: Any = RecordWriter(_Buffered(OwnFile(folder / name)))
        self._append(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, row: MetricRow) -> None:
        """Append a row."""
        event = self._event(row)
        for name, value in row.metrics.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._append(event)

    def write_layout(self, row: MetricRow, layout: bytes) -> None:
        """Append the layout of the charts."""
        event = self._event(row)
        value = event.summary.value.add(tag=LAYOUT_TAG)
        value.metadata.plugin_data.plugin_name = LAYOUT_PLUGIN
        value.tensor.dtype = DT_STRING
        value.tensor.string_val.append(layout)
        self._append(event)

    def flush(self) -> None:
        """Write what was appended."""
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _event(self, row: MetricRow) -> Any:
        return self._protos.Event(wall_time=row.time_s, step=row.step)

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


class _Buffered:
    """The file object that TensorBoard's writer of records wants."""

    def __init__(self, file: OwnFile) -> None:
        self._file = file
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data

    def flush(self) -> None:
        data, self._data = bytes(self._data), bytearray()
        self._file.append(data)

    def close(self) -> None:
        self.flush()
        self._file.close()
