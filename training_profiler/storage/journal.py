"""The append-only journal of a rank: one JSON object a line, each written in one piece."""

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.aggregation.totals import Totals
from training_profiler.recording.data_loader import TRAIN, VAL, LoaderCounts
from training_profiler.recording.section_names import SectionNames
from training_profiler.snapshot.snapshot import DeviceTimingStats, Health
from training_profiler.storage.journal_codec import totals_to_data

MOST_LINES: Final = 2_000
MOST_BYTES: Final = 8_000_000


class HeldLines:
    """Keeps lines in their order, as many as may be held: the oldest go first.

    Of what a rank tells of itself only the last is kept, for its sums only grow.
    """

    def __init__(self, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0  # intervals that went
        self._most_lines, self._most_bytes = most_lines, most_bytes
        self._lines: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._of_rank = b""

    def add(self, kind: str, line: bytes) -> None:
        """Keep one more line."""
        if kind == "rank":
            self._of_rank = line
            return
        self._lines.append((kind, line))
        self._bytes += len(line)
        while len(self._lines) > self._most_lines or self._bytes > self._most_bytes:
            gone, oldest = self._lines.popleft()
            self._bytes -= len(oldest)
            self.dropped += gone == "interval"

    @property
    def has_measured(self) -> bool:
        """Whether there is more to tell than that a run began and ended."""
        return any(kind == "interval" for kind, _ in self._lines)

    def take(self) -> bytes:
        """Return all of them in one piece, and keep none."""
        taken = b"".join(line for _, line in self._lines) + self._of_rank
        self._lines.clear()
        self._bytes, self._of_rank = 0, b""
        return taken


JOURNAL_SCHEMA: Final = 1


class Journal:
    """Writes what a run has measured so far; whatever was written survives SIGKILL.

    Without a ``path`` it keeps its lines in memory until it is given one, as many as ``HeldLines`` does.

    Args:
        told: what else its first line says: of which run, rank and process it is.

    Raises:
        OSError: the file cannot be opened or written; a line may then stand in it half.
    """

    def __init__(
        self,
        path: Path | None,
        rank: int,
        names: SectionNames,
        begin_ns: int,
        warmup: int | None,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        self._names = names
        self._begin = {"schema": JOURNAL_SCHEMA, "rank": rank, "begin_ns": begin_ns, "warmup": warmup}
        self._descriptor: int | None = None
        self._held: HeldLines | None = HeldLines()
        if path is not None:
            self.settle(path, told or {})

    @property
    def is_held(self) -> bool:
        """Whether it has no file yet."""
        return self._held is not None

    @property
    def is_worth_a_folder(self) -> bool:
        """Whether it has no file yet, and intervals to write."""
        return self._held is not None and self._held.has_measured

    def settle(self, path: Path, told: Mapping[str, Any]) -> None:
        """Give it its file: what was kept is written now, all else when it comes."""
        held, self._held = self._held, None
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._write(kind="begin", **{**self._begin, **told})
        if held is not None:
            if held.dropped:
                self._write(kind="held", dropped=held.dropped)
            self._append(held.take())

    def write_interval(
        self,
        totals: Totals,
        step_ns: Sequence[int],
        health: Health,
        loaders: Sequence[LoaderCounts],
        open_sections: Sequence[str] = (),
        device: DeviceTimingStats | None = None,
    ) -> None:
        """Append the totals since the last interval; health, loaders and device stand for the run so far."""
        self._write(
            kind="interval",
            **totals_to_data(totals, step_ns, self._names),
            loaders=[_loader(counts) for counts in loaders],
            open_sections=open_sections,
            **({} if device is None else {"device": asdict(device)}),
            **_health(health),
        )

    def write_epoch_begin(self, number: int) -> None:
        """Append that an epoch begins where the last interval ended."""
        self._write(kind="epoch_begin", number=number)

    def write_epoch_end(self, batches: int | None, samples: int | None, is_complete: bool) -> None:
        """Append that the epoch ends where the last interval ended."""
        self._write(kind="epoch_end", batches=batches, samples=samples, is_complete=is_complete)

    def write_rank(self, told: dict[str, Any]) -> None:
        """Append what this rank has told the others: sums of its run so far."""
        self._write(kind="rank", **told)

    def close(self, health: Health, ended_by: str | None) -> None:
        """Append how the run ended, and close the file."""
        self._write(kind="end", ended_by=ended_by, **_health(health))
        self._held = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, **line: Any) -> None:
        if self._descriptor is None and self._held is None:
            return
        data = (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()
        if self._held is not None:
            self._held.add(line["kind"], data)
        else:
            self._append(data)

    def _append(self, data: bytes) -> None:
        while data and self._descriptor is not None:  # a disk that fills up takes a part first and raises at the rest
            data = data[os.write(self._descriptor, data) :]


def _loader(counts: LoaderCounts) -> list[Any]:
    # The first four are all that earlier versions know of a loader, and read.
    phases = [
        [phase, tally.batches, tally.samples, tally.wait_ns]
        for phase, tally in ((phase, counts.of(phase)) for phase in (TRAIN, VAL))
    ]
    return [
        counts.name,
        counts.batches,
        counts.samples,
        counts.wait_ns,
        counts.loader_id,
        counts.requested_share,
        phases,
    ]


def _health(health: Health) -> dict[str, Any]:
    # Drops are summed from the intervals themselves.
    return {"disabled": health.disabled, "overhead_s": health.overhead_s, "notes": health.notes}
