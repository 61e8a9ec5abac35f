"""Reads a run folder: the final stats come from the journal alone."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from training_profiler.aggregation.run import RunSums
from training_profiler.errors import RunFolderError
from training_profiler.recording.section_names import OTHER_NAMES, SectionNames
from training_profiler.safety.files import lines_of, may_follow, open_file
from training_profiler.snapshot.snapshot import Health, Price, Snapshot
from training_profiler.storage.journal_codec import SpareBins, largest_sum, totals_from_data
from training_profiler.storage.journal_discovery import (
    NO_JOURNAL,
    JournalFile,
    find_journals,
    find_own_folder_journals,
    select_journals,
)
from training_profiler.storage.journal_lines import (
    BadLineError,
    BeginLine,
    EndLine,
    EpochBeginLine,
    EpochEndLine,
    HeldLine,
    IntervalLine,
    Line,
    LostLine,
    PendingLine,
    decode_line,
    sentences,
)
from training_profiler.storage.launch import is_running
from training_profiler.storage.limits import MOST_EPOCHS, MOST_JOURNAL_BYTES, MOST_LINE_BYTES, MOST_NAMES, MOST_SUM
from training_profiler.storage.rank_reader import attempt_of, received_ranks
from training_profiler.storage.run_folder import is_own_name, journal_name
from training_profiler.storage.run_lookup import attempts_before, read_meta
from training_profiler.storage.series_reader import SeriesReader
from training_profiler.text import one_line, printable
from training_profiler.units import BYTES_PER_GIB, NS_PER_S

# By whether the process still runs, as far as known.
_UNENDED: Final = {
    None: "the run did not come to its end (or still runs): what followed the last interval is missing",
    False: "the run did not come to its end: what followed the last interval is missing",
    True: "the run still runs: these figures reach to its last interval",
}


def read_run(folder: Path, attempt: int | None = None, series: SeriesReader | None = None) -> Snapshot:
    """Return the stats of the run in ``folder``, whether or not it has ended.

    Stats of a single rank are rank 0's, or those of the lowest rank with a journal.

    Args:
        folder: the run's, or a folder with copies of its ranks' journals, together or in one folder per machine.
        attempt: the attempt of a restarted training; the last by default.
        series: gets the steps one by one, of the same rank.

    Raises:
        RunFolderError: the folder is not a run's, no journal in it is readable, or there was no such attempt.
    """
    found = find_journals(folder)
    if not found or _is_folder_of_runs(folder, found):
        raise RunFolderError(_why_not(folder))
    journals, left_out = select_journals(found + find_own_folder_journals(folder, found), folder)
    number = attempt_of(journals, attempt, folder)
    of_attempt = [journal for journal in journals if journal.attempt == number]
    for journal in of_attempt:
        try:
            snapshot = _read_journal(folder, journal, series)
        except RunFolderError as error:
            left_out.append(f"left out: {error}")
            continue
        return _with_ranks(snapshot, journal, [each for each in journals if not each.problem], of_attempt, left_out)
    raise RunFolderError(left_out[-len(of_attempt)].removeprefix("left out: "))


def newest_run(folder: Path) -> Path | None:
    """Return the run in ``folder`` that began last; None where ``folder`` is a run itself, or holds none."""
    found = find_journals(folder)
    if not found or not _is_folder_of_runs(folder, found):
        return None
    journals = [journal for journal in found if not journal.problem]
    of_runs = [journal for journal in journals if not is_own_name(journal.path.parent.name)] or journals
    newest = max(of_runs, key=lambda journal: (journal.wall_ns, journal.path), default=None)
    return None if newest is None else newest.path.parent


def _with_ranks(
    snapshot: Snapshot,
    primary: JournalFile,
    journals: Sequence[JournalFile],
    of_attempt: Sequence[JournalFile],
    left_out: list[str],
) -> Snapshot:
    """Return the stats of ``primary`` with those of all ranks and of earlier attempts."""
    others = [journal for journal in of_attempt if not journal.problem or journal.problem == NO_JOURNAL]
    if primary.rank:
        why = "cannot be read" if any(journal.rank == 0 for journal in of_attempt) else "is missing"
        left_out = [f"the figures above are rank {primary.rank}'s: rank 0's journal {why}", *left_out]
    received = received_ranks(others, left_out)
    ranks, notes = received.stats(), list(snapshot.health.notes)
    if ranks is None:
        notes += received.left_out
    last = max((journal.attempt for journal in journals), default=primary.attempt)
    if last > primary.attempt:
        notes.append(f"this is attempt {primary.attempt}; the last one was attempt {last}")
    return replace(
        snapshot,
        ranks=ranks,
        exchange=received.exchange(primary.rank or 0),
        attempts=attempts_before(journals, primary.attempt),
        health=replace(snapshot.health, notes=tuple(notes)),
    )


def _is_folder_of_runs(folder: Path, found: Sequence[JournalFile]) -> bool:
    """Return whether the folders below ``folder`` are runs, and not the machines of one run."""
    parents = {journal.path.parent for journal in found}
    if folder in parents:
        return False
    readable = [journal for journal in found if journal.begin is not None]
    if len(parents) > 1 and len({journal.run for journal in readable}) == 1 and readable[0].run is not None:
        return False
    return not readable or any(journal.run in (None, journal.path.parent.name) for journal in readable)


def _why_not(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist; example: training-profiler report runs/20261121-142530"
    if not folder.is_dir():
        return f"{folder} is a file; give the run folder around it, e.g. {folder.parent}"
    runs = sorted({journal.parent.name for journal in folder.glob("*/rank*.jsonl")})
    if runs:
        held = "a run" if len(runs) == 1 else f"{len(runs)} runs"
        return f"{folder} holds {held}; give that folder itself, e.g. {folder / runs[-1]}"
    try:
        open_file(folder / journal_name(0), follow=True).close()
        reason = "it is none of the run's"
    except OSError as error:
        reason = str(error.strerror)
    return f"{folder} is not a run folder: {journal_name(0)} cannot be read ({reason})"


def _read_journal(folder: Path, found: JournalFile, series: SeriesReader | None) -> Snapshot:
    """Return the stats of one rank."""
    if found.problem or found.begin is None:
        raise RunFolderError(f"{found.path} {found.problem}")
    if series is not None:
        series.begin(found.rank or 0)
    replay = _Replay(series)
    try:
        with open_file(found.path, follow=may_follow(found.path)) as file:
            if os.fstat(file.fileno()).st_size > MOST_JOURNAL_BYTES:
                raise RunFolderError(f"{found.path} is larger than {MOST_JOURNAL_BYTES / BYTES_PER_GIB:g} GiB")
            for line in lines_of(file, MOST_LINE_BYTES):
                replay.add(line)
            replay.end()
    except OSError as error:
        raise RunFolderError(f"{found.path} cannot be read ({error.strerror})") from None
    if replay.sums is None or (replay.problem and not replay.intervals):
        raise RunFolderError(f"{found.path} holds a line that is not a journal's: {replay.problem}")
    return replay.snapshot(folder, found)


class _Replay:
    """Adds up the lines of a journal as they are read. A line that cannot be used is counted and left out."""

    def __init__(self, series: SeriesReader | None = None) -> None:
        self._series = series
        self.sums: RunSums | None = None
        self.problem = ""  # of the first unusable line
        self.intervals = 0
        self._names = SectionNames(limit=MOST_NAMES)
        self._last: IntervalLine | None = None
        self._pending: PendingLine | None = None  # counts if no interval follows
        self._end: EndLine | None = None
        self._unusable, self._is_torn = 0, False
        self._unsaved = self._lost = self._further_epochs = 0
        self._spare = SpareBins()
        self._added = 0  # a bound of every sum

    def add(self, line: bytes | None) -> None:
        """Add the next line; None for one that is too long."""
        if line is not None and not line.strip():
            return
        self._unusable += self._is_torn  # that was not the last line
        self._is_torn = False
        try:
            if line is None:
                raise BadLineError(f"a line has more than {MOST_LINE_BYTES} bytes")
            record = decode_line(line)
            if record is not None:
                self._add(record)
        except BadLineError as error:
            self._unusable += 1
            self.problem = self.problem or str(error)
        except ValueError as error:
            self._is_torn = True
            self.problem = self.problem or one_line(error)

    def _add(self, record: Line) -> None:
        sums = self.sums
        if isinstance(record, BeginLine):
            if sums is None:
                self.sums = RunSums(self._names, record.begin_ns, record.warmup, has_intervals=False)
        elif sums is None:
            raise BadLineError("it comes before the begin of the run")
        elif isinstance(record, PendingLine):
            self._pending = record
        elif isinstance(record, IntervalLine):
            self._pending = None
            self._add_interval(sums, record)
        elif isinstance(record, LostLine):
            self._lost += record.intervals
        elif isinstance(record, EpochBeginLine):
            self._further_epochs += len(sums.epochs) >= MOST_EPOCHS
            if len(sums.epochs) < MOST_EPOCHS:
                sums.begin_epoch(record.number)
        elif isinstance(record, EpochEndLine):
            sums.end_epoch(record.batches, record.samples, record.is_complete)
        elif isinstance(record, HeldLine):
            self._unsaved = record.dropped
        else:
            self._end = record

    def _add_interval(self, sums: RunSums, record: IntervalLine) -> None:
        if record.end_ns < sums.run.end_ns:
            raise BadLineError("an interval ends before the one before it")
        added = self._added + largest_sum(record)
        if added > MOST_SUM:
            raise BadLineError("its numbers are too large")
        sums.add(*totals_from_data(record, self._names, self._spare))
        if self._series is not None:
            self._series.add(record)
        self._added, self._last = added, record
        self.intervals += 1

    def end(self) -> None:
        """Add what the last line of all leaves to be added."""
        pending, self._pending = self._pending, None
        if pending is None or self.sums is None:
            return
        try:
            self._add_interval(self.sums, pending)
        except ValueError as error:
            self._unusable += 1
            self.problem = self.problem or one_line(error)

    def snapshot(self, folder: Path, found: JournalFile) -> Snapshot:
        """Return the stats of the run."""
        sums, last, end = self.sums, self._last, self._end
        assert sums is not None
        state = end or last
        begin = found.begin or {}
        notes = [*(sentences(state.notes) if state else ()), *self._notes()]
        if end is None:
            sums.end_epoch(None, None, is_complete=False)
            notes.append(_UNENDED[is_running(begin.get("host"), begin.get("pid"), found.wall_ns / NS_PER_S)])
        return sums.snapshot(
            Health(
                dropped=sums.run.dropped,
                disabled=sentences(state.disabled) if state else (),
                overhead_s=state.overhead_s if state else 0.0,
                notes=tuple(notes),
            ),
            loaders=last.loader_counts() if last else [],
            device=last.device_timing() if last else None,
            program=last.program_facts() if last else None,
            open_sections=sentences(last.open_sections) if last else (),
            run_folder=str(folder),
            ended_by=printable(end.ended_by) if end and end.ended_by is not None else None,
            thresholds=_thresholds(found.path.parent),
            price=_price(found.path.parent),
        )

    def _notes(self) -> list[str]:
        notes = []
        if self._unusable:
            lines = "1 line" if self._unusable == 1 else f"{self._unusable} lines"
            notes.append(f"{lines} of the journal left out, so what they measured is missing ({self.problem})")
        if self._is_torn:
            notes.append("1 torn line in the journal left out")
        if self._unsaved:
            dropped = "1 interval was" if self._unsaved == 1 else f"{self._unsaved} intervals were"
            notes.append(f"{dropped} dropped before this rank knew of the run's folder")
        if self._lost:
            lost = "1 interval" if self._lost == 1 else f"{self._lost} intervals"
            notes.append(f"{lost} not written: the disk did not respond for too long")
        further = len(self._names.further_names)
        if further:
            notes.append(f"the journal has over {MOST_NAMES} section names; {further} more are in {OTHER_NAMES}")
        if self._further_epochs:
            notes.append(f"only the first {MOST_EPOCHS} epochs are listed, {self._further_epochs} more are left out")
        return notes


def _price(folder: Path) -> Price | None:
    """Return the price that the run had set; None if it had none."""
    try:
        amount, currency = read_meta(folder)["settings"]["gpu_hour_price"]
        price = Price(float(amount), printable(currency))
    except (KeyError, TypeError, ValueError):
        return None
    return price if 0 < price.amount < float("inf") else None


def _thresholds(folder: Path) -> dict[str, float]:
    """Return the rule thresholds that the run had set; empty if unknown."""
    try:
        return {str(code): float(value) for code, value in read_meta(folder)["settings"]["thresholds"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}
