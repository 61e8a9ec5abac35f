"""``metrics.csv`` in the run folder: one line per value, so later names need no new columns."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training_profiler.safety.own_file import OwnFile
from training_profiler.sinks.sink import MetricRow, Sink, folder_for
from training_profiler.tables.trackers import CSV

FILE: Final = "metrics.csv"
COLUMNS: Final = ("step", "time", "name", "value")


class CsvFile(Sink):
    """Appends to the file. A written row survives SIGKILL."""

    name = CSV.name

    def __init__(self) -> None:
        self._file: OwnFile | None = None

    def open(self, folder: Path | None) -> None:
        """Create the file with its header; a restarted attempt appends to the existing file."""
        self._file = OwnFile(folder_for(folder) / FILE)
        if not self._file.size:
            self._file.append((",".join(COLUMNS) + "\n").encode())

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append one line per value: step, time in s since 1970, name, value."""
        if self._file is not None:
            text = io.StringIO()
            lines = csv.writer(text, lineterminator="\n")
            for row in rows:
                lines.writerows((row.step, row.time_s, name, value) for name, value in row.metrics.items())
            self._file.append(text.getvalue().encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
