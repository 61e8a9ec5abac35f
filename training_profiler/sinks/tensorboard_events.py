"""TensorBoard: event files in the run folder, an overview, and a page of charts under "Custom Scalars"."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from training_profiler.safety.files import make_inner_folder
from training_profiler.safety.own_file import OwnFile
from training_profiler.sinks.sink import MetricRow, Sink, folder_for
from training_profiler.sinks.tensorboard_layout import SectionRuns, categories, overview
from training_profiler.tables.trackers import TENSORBOARD

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
