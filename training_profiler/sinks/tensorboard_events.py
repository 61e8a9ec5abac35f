"""TensorBoard: an event file in the run folder, and a page of charts under "Custom Scalars"."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from training_profiler.safety.own_file import OwnFile
from training_profiler.sinks.registry import TENSORBOARD
from training_profiler.sinks.sink import MetricRow, Sink, folder_for
from training_profiler.sinks.tensorboard_layout import Stack, categories

FOLDER: Final = TENSORBOARD.name  # in the run folder
LAYOUT_TAG: Final = "custom_scalars__config__"  # the tag that TensorBoard's plugin reads
LAYOUT_PLUGIN: Final = "custom_scalars"
DT_STRING: Final = 7


class TensorboardEvents(Sink):
    """Writes scalars by their names, and the layout again whenever there are new ones.

    Needs the package tensorboard alone. Its writer for remote files would import TensorFlow if that is installed.
    """

    name = TENSORBOARD.name

    def __init__(self) -> None:
        self._records: Any = None
        self._protos: Any = None
        self._layouts: Any = None
        self._stack = Stack()
        self._tags: set[str] = set()

    def open(self, folder: Path | None) -> None:
        """Import the writer of the format, and create the file."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.custom_scalar import layout_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        events = folder_for(folder) / FOLDER
        events.mkdir(exist_ok=True)
        self._protos, self._layouts = event_pb2, layout_pb2
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._records = RecordWriter(_Buffered(OwnFile(events / name)))
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._records.flush()

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append the rows."""
        if self._records is None or not rows:
            return
        for row in rows:
            stacked = self._stack.rows(row)
            if not row.metrics.keys() <= self._tags:
                self._tags |= row.metrics.keys()
                self._write_layout(row)
            for part in (row, *stacked):
                event = self._event(part)
                for name, value in part.metrics.items():
                    event.summary.value.add(tag=name, simple_value=value)
                self._write(event)
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        if self._records is not None:
            self._records.close()

    def _event(self, row: MetricRow) -> Any:
        return self._protos.Event(wall_time=row.time_s, step=row.step)

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def _write_layout(self, row: MetricRow) -> None:
        layout = self._layouts.Layout()
        for category in categories(self._tags, self._stack):
            charts = layout.category.add(title=category.title).chart
            for title, series in category.bands.items():
                margin = charts.add(title=title).margin
                for lower, upper in series:
                    margin.series.add(value=upper, lower=lower, upper=upper)
            for title, tags in category.lines.items():
                charts.add(title=title).multiline.tag.extend(tags)
        event = self._event(row)
        value = event.summary.value.add(tag=LAYOUT_TAG)
        value.metadata.plugin_data.plugin_name = LAYOUT_PLUGIN
        value.tensor.dtype = DT_STRING
        value.tensor.string_val.append(layout.SerializeToString())
        self._write(event)


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
