"""What a tracker gets, and what it has to be able to do."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.sinks.metrics import Metrics

MOST_HELD: Final = 1000


class MetricRow(NamedTuple):
    """Metrics at a step."""

    step: int
    time_s: float  # since 1970
    metrics: Metrics


class Sink:
    """One tracker. ``look`` is called by the training and must be instant; all else by the tracker's own thread."""

    name = ""

    def look(self) -> bool:
        """Look what the program has on the calling thread; return whether there is anything new."""
        return False

    def open(self, folder: Path | None) -> None:
        """Import and open what is needed; ``folder`` is the run's, None where it could not be made."""

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Take rows, in order; there may be none, where ``look`` has found something."""

    def close(self) -> None:
        """Take no more rows."""

    def abandon(self) -> None:
        """Forget all: in a forked child it is the parent's."""

    def notes(self) -> list[str]:
        """Return sentences on what did not reach the tracker."""
        return []


def folder_for(folder: Path | None) -> Path:
    """Return the run folder.

    Raises:
        FileNotFoundError: there is none.
    """
    if folder is None:
        raise FileNotFoundError("there is no run folder to write to")
    return folder


def append_to(path: Path) -> int:
    """Open a file to append to; return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def write_whole(descriptor: int, text: str) -> None:
    """Write ``text``; a disk that fills up takes a part first and raises at the rest."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(descriptor, data) :]


class Held:
    """Rows that wait for a tracker to appear; of too many every second one goes, so that they span the run."""

    def __init__(self) -> None:
        self.thinned = 0
        self._rows: list[MetricRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[MetricRow]) -> None:
        """Keep ``rows``."""
        for row in rows:
            self._rows.append(row)
            if len(self._rows) > MOST_HELD:
                kept = self._rows[1::2]
                self.thinned += len(self._rows) - len(kept)
                self._rows = kept

    def take(self) -> list[MetricRow]:
        """Return the rows, in order, and keep none."""
        rows, self._rows = self._rows, []
        return rows
