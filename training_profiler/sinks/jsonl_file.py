"""``metrics.jsonl`` in the run folder: one object per row."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training_profiler.sinks.registry import JSONL
from training_profiler.sinks.sink import MetricRow, Sink, append_to, folder_for, write_whole

FILE: Final = "metrics.jsonl"


class JsonlFile(Sink):
    """Appends to the file. A written row survives SIGKILL."""

    name = JSONL.name

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def open(self, folder: Path | None) -> None:
        """Create the file."""
        self._descriptor = append_to(folder_for(folder) / FILE)

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append one line per row: step, time in s since 1970, and the metrics."""
        if self._descriptor is not None:
            lines = [json.dumps({"step": row.step, "time": row.time_s, **row.metrics}) + "\n" for row in rows]
            write_whole(self._descriptor, "".join(lines))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
