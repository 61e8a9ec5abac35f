"""The append-only journal of a rank: one JSON object per line, each written in one piece."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS
from training_profiler.aggregation.section_totals import ADDED, MEASURED
from training_profiler.aggregation.step_spans import NO_LANES, Lanes, with_lanes
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import SectionNames
from training_profiler.base.units import NS_PER_US
from training_profiler.model.interval import NO_SECTION, IntervalRecord, SectionRecord, StretchFigures
from training_profiler.model.program import ProgramFacts
from training_profiler.model.series import StepLanes
from training_profiler.model.snapshot import BETWEEN, DeviceTimingStats, Health
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.safety.files import OwnFile
from training_profiler.storage.journal_lines import (
    JOURNAL_SCHEMA,
    EndLine,
    EpochBeginLine,
    EpochEndLine,
    HeldLine,
    IntervalLine,
    LoaderRow,
    LostLine,
    PendingLine,
    spans_line,
)
from training_profiler.storage.source_lines import SourceFile, library_path

MOST_LINES: Final = 2_000
MOST_BYTES: Final = 8_000_000


class BufferedLines:
    """Keeps lines in order, up to a limit; the oldest are dropped first.

    Of rank summaries only the last is kept, because their sums only grow.
    """

    def __init__(self, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0  # dropped intervals
        self._most_lines, self._most_bytes = most_lines, most_bytes
        self.lines: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._rank_summary = b""

    def add(self, kind: str, line: bytes) -> None:
        """Keep one more line."""
        if kind == "rank":
            self._rank_summary = line
            return
        self.lines.append((kind, line))
        self._bytes += len(line)
        while len(self.lines) > self._most_lines or self._bytes > self._most_bytes:
            gone, oldest = self.lines.popleft()
            self._bytes -= len(oldest)
            self.dropped += gone == "interval"

    def drain(self) -> bytes:
        """Return all lines in one piece, and keep none."""
        lines = b"".join(line for _, line in self.lines) + self._rank_summary
        self.lines.clear()
        self._bytes, self._rank_summary = 0, b""
        return lines


class Line(NamedTuple):
    """A line of the journal, and its kind."""

    kind: str
    data: bytes
    files: frozenset[SourceFile] = frozenset()  # that it names


class JournalLines:
    """Makes the lines of a journal, in memory: any thread may do that."""

    def __init__(self, names: SectionNames) -> None:
        self._names = names

    def interval(
        self,
        totals: Totals,
        step_ns: Sequence[int],
        health: Health,
        loaders: Sequence[LoaderCounts],
        *,
        open_sections: Sequence[str] = (),
        device: DeviceTimingStats | None = None,
        program: ProgramFacts | None = None,
        is_pending: bool = False,
    ) -> Line:
        """Return the totals since the last interval; health, loaders and device cover the run so far.

        The next interval covers the same time as one that ``is_pending``: its events may still be rewritten.
        """
        record = interval_of(
            PendingLine if is_pending else IntervalLine,
            totals,
            step_ns,
            self._names,
            loaders=[LoaderRow.of(counts) for counts in loaders],
            open_sections=open_sections,
            device=device,
            program=program,
            **_health(health),
        )
        return line_of(record)._replace(files=_files_named(totals, loaders, program))

    def epoch_begin(self, number: int) -> Line:
        """Return the begin of an epoch, at the end of the last interval."""
        return line_of(EpochBeginLine(number))

    def epoch_end(self, batches: int | None, samples: int | None, is_complete: bool) -> Line:
        """Return the end of the epoch, at the end of the last interval."""
        return line_of(EpochEndLine(batches, samples, is_complete))

    def spans(self, steps: Sequence[StepLanes[int]], lanes: Mapping[int, Lanes] = NO_LANES) -> Line:
        """Return single steps with their spans; ``lanes`` are those of devices, by the number of the step."""
        whole = [with_lanes(step, lanes.get(step.number, {})) for step in steps]
        return line_of(spans_line(whole, self._names.names))

    def rank(self, summary: dict[str, Any]) -> Line:
        """Return the summary that this rank sends to the others: sums of the run so far."""
        return line_of({"kind": "rank", **summary})

    def lost(self, intervals: int) -> Line:
        """Return how many intervals found no room while the disk did not respond."""
        return line_of(LostLine(intervals))


def line_of(record: Struct | dict[str, Any]) -> Line:
    """Return a record as a line of its kind."""
    data = msgspec.to_builtins(record)
    return Line(data["kind"], f"{json.dumps(data, separators=(',', ':'), allow_nan=False)}\n".encode())


class Journal:
    """Writes the measurements of a run as they are made; written lines survive SIGKILL.

    Without a ``path`` it keeps lines in memory, with the limits of ``BufferedLines``, until ``open_file``.

    Args:
        identity: more keys of the first line: run, rank and process.

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
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.lines = JournalLines(names)
        self._begin = {"kind": "begin", "schema": JOURNAL_SCHEMA, "rank": rank, "begin_ns": begin_ns, "warmup": warmup}
        self.file: OwnFile | None = None
        self.buffer: BufferedLines | None = BufferedLines()  # until it has a file
        if path is not None:
            self.open_file(OwnFile(path), identity or {})

    def open_file(self, file: OwnFile, identity: Mapping[str, Any]) -> None:
        """Write the lines kept in memory to ``file``; later lines are written at once."""
        buffer, self.buffer = self.buffer, None
        self.file = file
        self.append(line_of({**self._begin, **identity}))
        if buffer is not None:
            if buffer.dropped:
                self.append(line_of(HeldLine(buffer.dropped)))
            self.file.append(buffer.drain())

    def append(self, line: Line) -> None:
        """Append a line in one piece."""
        if self.buffer is not None:
            self.buffer.add(line.kind, line.data)
        elif self.file is not None:
            self.file.append(line.data)

    def close(self, health: Health, ended_by: str | None) -> None:
        """Append how the run ended, and close the file."""
        self.append(line_of(EndLine(ended_by, health.error, **_health(health))))
        self.discard()

    def discard(self) -> None:
        """Close the file as it is; later lines are dropped."""
        self.buffer = None
        if self.file is not None:
            self.file.close()
            self.file = None


def _files_named(
    totals: Totals, loaders: Sequence[LoaderCounts], program: ProgramFacts | None
) -> frozenset[SourceFile]:
    """Return the files of the lines that reports may point to: the user's, and those of libraries that these called."""
    lines = [line for _, line in totals.lines if line is not None]
    seen = [(line.file, line.inside) for line in lines]
    seen += [(line.file, line.inside) for counts in loaders if counts.workers for line in counts.workers.lines]
    places = [line.held_by for line in lines] + [file for file, _ in seen]
    places += [counts.arguments.made_at for counts in loaders if counts.arguments is not None]
    known = set()
    if program is not None:
        known = {SourceFile(call.site.file, call.site.path) for call in program.calls if call.site.path}
        places += [getattr(facts, name, "") for facts in program for name in ("place", "backward")]
    names = {place.partition(":")[0] for place in places} - {file.name for file in known}
    called = {frame.partition(":")[0] for _, inside in seen for frame in inside.split(BETWEEN)} - names
    libraries = {SourceFile(name, path) for name in called if (path := library_path(name))}
    found = known | libraries | {SourceFile(name) for name in names}
    return frozenset(file for file in found if file.name.endswith(".py"))


def _health(health: Health) -> dict[str, Any]:
    # Dropped events are not here: a reader sums those of the intervals.
    return {name: getattr(health, name) for name in ("disabled", "overhead_s", "span_s", "notes")}


Interval = TypeVar("Interval", bound=IntervalRecord)


def interval_of(
    kind: type[Interval], totals: Totals, step_ns: Sequence[int], names: SectionNames, **more: Any
) -> Interval:
    """Return the totals of a flush interval as a line of that kind, which has ``more`` fields."""
    sums = totals.sections
    # Time within steps is added at the end of the step, which may be in a later interval than the spans.
    has_data = np.bitwise_or.reduce([getattr(sums, name) for name in ADDED])
    ids = [0, *(np.flatnonzero(has_data[1:]) + 1).tolist()]
    rows: dict[int, list[Any]] = {}  # of each section: samples, and the location if it is in the user's code
    for (section, location), count in totals.lines.items():
        cells = () if location is None else location if any(location[4:]) else location[:4]
        rows.setdefault(section, []).append((count, *cells))
    calls = [(len(list(steps)), calls) for calls, steps in groupby(totals.step_calls)]
    step_s, squares_s2 = totals.coupling.step
    return kind(
        **{name: getattr(totals, name) for name in StretchFigures.__struct_fields__},
        step_ns=list(step_ns),
        steps_a_block=totals.series.steps_a_block if totals.series.steps else None,
        sections=dict(zip([names.names.get(id, NO_SECTION) for id in ids], _section_records(totals, ids), strict=True)),
        parents=[(names.names[parent], names.names[id], spans) for (parent, id), spans in sums.parents.items()],
        coupling=(totals.coupling.count, float(step_s), float(squares_s2)),
        step_lines=rows.pop(IN_STEPS, []),
        startup_lines=rows.pop(BEFORE_STEPS, []),
        lines={names.names[id]: of_section for id, of_section in rows.items()},
        by_loader=[[loader_id, *table.ravel().tolist()] for loader_id, table in totals.loaders.tables.items()],
        machine=totals.machine.record(),
        step_calls=[] if set(totals.step_calls) == {1} else calls,
        input_sizes=totals.input_sizes.points,
        garbage=totals.garbage.record(),
        **more,
    )


def _section_records(totals: Totals, ids: Sequence[int]) -> list[SectionRecord]:
    sums = totals.sections
    values = {name: getattr(sums, name)[list(ids)].tolist() for name in (*ADDED, *MEASURED)}
    filled = dict(sums.filled_bins())
    records = []
    for row, id in enumerate(ids):
        columns: dict[str, Any] = {name: values[name][row] for name in (*ADDED, *(MEASURED if id in filled else ()))}
        if id in filled:
            bins = np.flatnonzero(sums.bins[id, filled[id]]) + filled[id].start
            columns |= {"mean_ns": float(sums.mean_ns[id]), "m2": float(sums.m2[id])}
            columns["bins"] = bins.tolist(), sums.bins[id, bins].tolist()
        records.append(SectionRecord(**columns, **_beside_spans(totals, id)))
    return records


def _beside_spans(totals: Totals, id: int) -> dict[str, Any]:
    """Return the columns of a section that are not sums over its spans."""
    columns: dict[str, Any] = {}
    sections, series, early = totals.coupling.sections, totals.series.sums_ns, totals.early_ns
    if totals.coupling.count and id < sections.shape[1]:
        columns["coupling"] = sections[:, id].tolist()
    if id < series.shape[1] and series[:, id].any():
        columns["series_us"] = ((series[:, id] + NS_PER_US // 2) // NS_PER_US).tolist()
    if id < early.shape[1] and len(steps := np.flatnonzero(early[:, id])):
        columns["early"] = steps.tolist(), early[steps, id].tolist()
    return columns
