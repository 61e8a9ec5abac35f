"""The interface of a tracker's sink, and the rows it gets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.settings.settings import Settings
from training_profiler.sinks.metrics import Metrics

MAX_HELD_ROWS: Final = 1000


class MetricRow(NamedTuple):
    """Metrics at a step."""

    step: int
    time_s: float  # since 1970
    metrics: Metrics


class SinkContext(NamedTuple):
    """What a sink may use of the run that it belongs to."""

    guard: Callable[[Callable[[], None]], None]
    """Runs work of the sink; an exception disables this sink alone."""
    flush: Callable[[], None]
    """Sends the rows measured so far to this sink and returns when they are written."""
    settings: Settings = Settings()
    report: Callable[[], dict[str, str]] = dict
    """Returns the report on the run so far, as the texts of files by their names; empty if there is none."""


class Sink:
    """One tracker. The training calls ``poll``, which must be instant; the tracker's thread calls everything else."""

    name = ""

    def connect(self, context: SinkContext) -> None:
        """Get the run's services, once, before any other call."""

    def poll(self) -> bool:
        """Check for a tracker run opened by the program on the calling thread; return True if it is new."""
        return False

    def open(self, folder: Path | None) -> None:
        """Import and open the tracker. ``folder`` is the run's; None if it could not be created."""

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Write rows, in order. There may be none after ``poll`` has returned True."""

    def close(self) -> None:
        """Close the tracker; no rows follow."""

    def after_fork_in_child(self) -> None:
        """Drop everything that belongs to the parent process."""

    def notes(self) -> list[str]:
        """Return sentences on rows that did not reach the tracker."""
        return []


def folder_for(folder: Path | None) -> Path:
    """Return the run folder.

    Raises:
        FileNotFoundError: there is no run folder.
    """
    if folder is None:
        raise FileNotFoundError("there is no run folder to write to")
    return folder


class HeldRows:
    """Rows that wait until a tracker appears. If there are too many, every second row is dropped: they span the run."""

    def __init__(self) -> None:
        self.thinned = 0
        self._rows: list[MetricRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[MetricRow]) -> None:
        """Keep ``rows``."""
        for row in rows:
            self._rows.append(row)
            if len(self._rows) > MAX_HELD_ROWS:
                kept = self._rows[1::2]
                self.thinned += len(self._rows) - len(kept)
                self._rows = kept

    def drain(self) -> list[MetricRow]:
        """Return the rows, in order, and keep none."""
        rows, self._rows = self._rows, []
        return rows
