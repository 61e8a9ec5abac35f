"""Files of metrics in the run folder, which grow by lines: a written row survives SIGKILL."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from training_profiler.base.trackers import CSV, JSONL
from training_profiler.safety.files import OwnFile
from training_profiler.sinks.sink import MetricRow, Sink, folder_for


class JsonlFile(Sink):
    """``metrics.jsonl``: an object per row with step, time in s since 1970, and the metrics."""

    name = JSONL.name
    file = "metrics.jsonl"
    header = ""  # the begin of a new file

    def __init__(self) -> None:
        self._file: OwnFile | None = None

    def open(self, folder: Path | None) -> None:
        """Create the file; a restarted attempt appends to the existing file."""
        self._file = OwnFile(folder_for(folder) / self.file)
        if self.header and not self._file.size:
            self._file.append(self.header.encode())

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append the rows."""
        if self._file is not None:
            self._file.append(self.lines(rows).encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def lines(self, rows: Sequence[MetricRow]) -> str:
        """Return the rows as lines."""
        return "".join(json.dumps({"step": row.step, "time": row.time_s, **row.metrics}) + "\n" for row in rows)


class CsvFile(JsonlFile):
    """``metrics.csv``: a line per value, so later names need no new columns; time in s since 1970."""

    name = CSV.name
    file = "metrics.csv"
    header = "step,time,name,value\n"

    def lines(self, rows: Sequence[MetricRow]) -> str:
        """Return a line per value."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        for row in rows:
            lines.writerows((row.step, row.time_s, name, value) for name, value in row.metrics.items())
        return text.getvalue()
