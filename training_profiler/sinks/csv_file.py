"""``metrics.csv`` in the run folder: one line per value, so later names need no new columns."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training_profiler.sinks.registry import CSV
from training_profiler.sinks.sink import MetricRow, Sink, append_to, folder_for, write_whole

FILE: Final = "metrics.csv"
COLUMNS: Final = ("step", "time", "name", "value")


class CsvFile(Sink):
    """Appends to the file. A written row survives SIGKILL."""

    name = CSV.name

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def open(self, folder: Path | None) -> None:
        """Create the file with its header; a restarted attempt appends to the existing file."""
        self._descriptor = append_to(folder_for(folder) / FILE)
        if not os.fstat(self._descriptor).st_size:
            write_whole(self._descriptor, ",".join(COLUMNS) + "\n")

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append one line per value: step, time in s since 1970, name, value."""
        if self._descriptor is not None:
            text = io.StringIO()
            lines = csv.writer(text, lineterminator="\n")
            for row in rows:
                lines.writerows((row.step, row.time_s, name, value) for name, value in row.metrics.items())
            write_whole(self._descriptor, text.getvalue())

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
