"""Adds up the lines of one journal to the stats of its rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from training_profiler.aggregation.run import RunSums
from training_profiler.base.text import one_line, printable
from training_profiler.model.bounds import MOST_EPOCHS, MOST_LINE_BYTES, MOST_NAMES, MOST_SUM
from training_profiler.model.interval import IntervalRecord
from training_profiler.recording.section_names import OTHER_NAMES, SectionNames
from training_profiler.snapshot.snapshot import Health, Price, Snapshot
from training_profiler.storage.journal_codec import SpareBins, totals_of
from training_profiler.storage.journal_discovery import JournalFile
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
from training_profiler.storage.run_lookup import read_meta

# By whether the process still runs, as far as known.
_UNENDED: Final = {
    None: "the run did not come to its end (or still runs): what followed the last interval is missing",
    False: "the run did not come to its end: what followed the last interval is missing",
    True: "the run still runs: these figures reach to its last interval",
}


class Replay:
    """Adds up the lines of a journal as they are read. A line that cannot be used is counted and left out.

    ``on_interval`` gets each interval that was added.
    """

    def __init__(self, on_interval: Callable[[IntervalRecord], None] = lambda record: None) -> None:
        self._on_interval = on_interval
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
        elif isinstance(record, EndLine):
            self._end = record

    def _add_interval(self, sums: RunSums, record: IntervalLine) -> None:
        if record.end_ns < sums.run.end_ns:
            raise BadLineError("an interval ends before the one before it")
        added = self._added + record.largest_sum()
        if added > MOST_SUM:
            raise BadLineError("its numbers are too large")
        sums.add(totals_of(record, self._names, self._spare), record.step_ns)
        self._on_interval(record)
        self._added, self._last = added, record
        self.intervals += 1

    @property
    def has_failed(self) -> bool:
        """Whether lines were read and none can be used. A torn one alone is a run that was killed at its begin."""
        return self.sums is None or (self._unusable > 0 and not self.intervals)

    @property
    def is_ended(self) -> bool:
        """Whether the end of the run was read."""
        return self._end is not None

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
        notes = [*(sentences(state.notes) if state else ()), *self._notes()]
        if end is None:
            sums.end_epoch(None, None, is_complete=False)
            notes.append(_UNENDED[found.is_running])
        return sums.snapshot(
            Health(
                dropped=sums.run.dropped,
                disabled=sentences(state.disabled) if state else (),
                overhead_s=state.overhead_s if state else 0.0,
                span_s=state.span_s if state else 0.0,
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
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return price if 0 < price.amount < float("inf") else None


def _thresholds(folder: Path) -> dict[str, float]:
    """Return the rule thresholds that the run had set; empty if unknown."""
    try:
        return {str(code): float(value) for code, value in read_meta(folder)["settings"]["thresholds"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}
