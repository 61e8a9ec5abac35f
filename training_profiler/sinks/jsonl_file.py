"""``metrics.jsonl`` in the run folder: one object per row."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training_profiler.safety.own_file import OwnFile
from training_profiler.sinks.sink import MetricRow, Sink, folder_for
from training_profiler.tables.trackers import JSONL

FILE: Final = "metrics.jsonl"


class JsonlFile(Sink):
    """Appends to the file. A written row survives SIGKILL."""

    name = JSONL.name

    def __init__(self) -> None:
        self._file: OwnFile | None = None

    def open(self, folder: Path | None) -> None:
        """Create the file."""
        self._file = OwnFile(folder_for(folder) / FILE)

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append one line per row: step, time in s since 1970, and the metrics."""
        if self._file is not None:
            lines = [json.dumps({"step": row.step, "time": row.time_s, **row.metrics}) + "\n" for row in rows]
            self._file.append("".join(lines).encode())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
