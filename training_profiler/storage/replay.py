"""Adds up the lines of one journal to the stats of its rank."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS
from training_profiler.aggregation.machine import FACTS, GPU_QUANTITIES, LEVELS, RAM, GarbageSums, MachineSums
from training_profiler.aggregation.run import RunSums
from training_profiler.aggregation.section_totals import ADDED, MEASURED, SectionSums, rows_for
from training_profiler.aggregation.step_totals import Coupling
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import OTHER_NAMES, SectionNames
from training_profiler.base.text import MOST_OF_ERROR, one_line, printable
from training_profiler.base.units import NS_PER_US, Price, counted
from training_profiler.model.bounds import (
    MOST_DEVICES,
    MOST_EPOCHS,
    MOST_LINE_BYTES,
    MOST_LOADERS,
    MOST_NAMES,
    MOST_NOTES,
    MOST_SUM,
    fit,
)
from training_profiler.model.interval import (
    NO_SECTION,
    IntervalRecord,
    MachineRecord,
    SectionRecord,
    StretchFigures,
    location_of,
)
from training_profiler.model.snapshot import Health, HistoryChange, Snapshot
from training_profiler.statistics.trend import Series
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
    checked_facts,
    decode_line,
    sentences,
)
from training_profiler.storage.run_folder import read_meta

# By whether the process still runs, as far as known.
_UNENDED: Final = {
    None: "the run did not come to its end (or still runs): what followed the last interval is missing",
    False: "the run did not come to its end: what followed the last interval is missing",
    True: "the run still runs: these figures reach to its last interval",
}


class Replay:
    """Adds up the lines of a journal as they are read. A line that cannot be used is counted and left out.

    ``on_interval`` gets each interval that was added, and ``on_line`` each other line after the begin.
    """

    def __init__(
        self,
        on_interval: Callable[[IntervalRecord], None] = lambda record: None,
        on_line: Callable[[Line], None] = lambda record: None,
    ) -> None:
        self._on_interval, self._on_line = on_interval, on_line
        self.sums: RunSums | None = None
        self.problem = ""  # of the first unusable line
        self.intervals = 0
        self.names = SectionNames(limit=MOST_NAMES)
        self._last: IntervalLine | None = None
        self._pending: PendingLine | None = None  # counts if no interval follows
        self.end_line: EndLine | None = None  # once it was read
        self._unusable, self._is_torn = 0, False
        self._unsaved = self._lost = self._further_epochs = 0
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
                self.sums = RunSums(self.names, record.begin_ns, record.warmup, has_intervals=False)
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
            self.end_line = record
        if not isinstance(record, IntervalLine):
            self._on_line(record)

    def _add_interval(self, sums: RunSums, record: IntervalLine) -> None:
        if record.end_ns < sums.run.end_ns:
            raise BadLineError("an interval ends before the one before it")
        added = self._added + record.largest_sum()
        if added > MOST_SUM:
            raise BadLineError("its numbers are too large")
        sums.add(totals_of(record, self.names), record.step_ns)
        self._on_interval(record)
        self._added, self._last = added, record
        self.intervals += 1

    @property
    def has_failed(self) -> bool:
        """Whether lines were read and none can be used. A torn one alone is a run that was killed at its begin."""
        return self.sums is None or (self._unusable > 0 and not self.intervals)

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
        sums, last, end = self.sums, self._last, self.end_line
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
                error=printable(end.error, MOST_OF_ERROR) if end else "",
            ),
            loaders=[row.counts() for row in last.loaders[:MOST_LOADERS]] if last else [],
            device=fit(last.device, MOST_NOTES) if last else None,
            program=checked_facts(last.program) if last and last.program is not None else None,
            open_sections=sentences(last.open_sections) if last else (),
            run_folder=str(folder),
            ended_by=printable(end.ended_by) if end and end.ended_by is not None else None,
            thresholds=_thresholds(found.path.parent),
            price=_price(found.path.parent),
            history=_history(found.path.parent),
        )

    def _notes(self) -> list[str]:
        lines, unsaved = counted(self._unusable, "line"), counted(self._unsaved, "interval")
        were, further = "was" if self._unsaved == 1 else "were", len(self.names.further_names)
        rows = (
            (self._unusable, f"{lines} of the journal left out, so what they measured is missing ({self.problem})"),
            (self._is_torn, "1 torn line in the journal left out"),
            (self._unsaved, f"{unsaved} {were} dropped before this rank knew of the run's folder"),
            (self._lost, f"{counted(self._lost, 'interval')} not written: the disk did not respond for too long"),
            (further, f"the journal has over {MOST_NAMES} section names; {further} more are in {OTHER_NAMES}"),
            (
                self._further_epochs,
                f"only the first {MOST_EPOCHS} epochs are listed, {self._further_epochs} more are left out",
            ),
        )
        return [note for is_so, note in rows if is_so]


def _price(folder: Path) -> Price | None:
    try:
        amount, currency = read_meta(folder)["settings"]["gpu_hour_price"]
        price = Price(float(amount), printable(currency))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return price if 0 < price.amount < float("inf") else None


def _history(folder: Path) -> HistoryChange | None:
    with suppress(KeyError, msgspec.ValidationError):
        return msgspec.convert(read_meta(folder)["history"], HistoryChange)
    return None


def _thresholds(folder: Path) -> dict[str, float]:
    try:
        return {str(code): float(value) for code, value in read_meta(folder)["settings"]["thresholds"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


MOST_FLOPS: Final = 10**30  # more are damaged
_FACT: Final = re.compile(r"gpu\d{1,4}\.(name|total_bytes)", re.ASCII)
_OF_DEVICE: Final = re.compile(rf"gpu\d{{1,4}}\.({'|'.join(sorted(GPU_QUANTITIES))})", re.ASCII)
_LEAST_WEIGHT: Final = 1e-9


def totals_of(record: IntervalRecord, names: SectionNames) -> Totals:
    """Return the totals that ``interval_of`` was called with.

    Names beyond the limit of ``names`` share a row, as in the run itself.
    """
    ids = [id_in(names, name) for name in record.sections]
    edges = [((id_in(names, parent), names.id_of(child)), count) for parent, child, count in record.parents]
    rows = rows_for(max((*ids, *(id for edge, _ in edges for id in edge)), default=0))
    totals = Totals(
        **{name: getattr(record, name) for name in StretchFigures.__struct_fields__},
        sections=SectionSums(rows),
        coupling=Coupling(rows),
        step_calls=[calls for steps, calls in record.step_calls or [(len(record.step_ns), 1)] for _ in range(steps)],
    )
    for id, section in zip(ids, record.sections.values(), strict=True):
        _add_section(totals, id, section)
    parents = totals.sections.parents
    for edge, count in edges:
        parents[edge] = parents.get(edge, 0) + count
    columns = [section.series_us for section in record.sections.values()]
    if record.steps_a_block and any(columns):
        sums_ns = np.zeros((record.block_count, rows), np.int64)
        for id, column in zip(ids, columns, strict=True):
            if column:
                sums_ns[:, id] += np.array(column, np.int64) * NS_PER_US
        totals.series.restore(sums_ns, len(record.step_ns), record.steps_a_block)
    totals.coupling.count, *step = record.coupling
    totals.coupling.step[:] = step
    tables = [(id_in(names, name), table) for name, table in record.lines.items()]
    for id, table in (*tables, (IN_STEPS, record.step_lines), (BEFORE_STEPS, record.startup_lines)):
        for row in table:
            totals.lines[id, location_of(row)] += row.samples
    for loader_id, *cells in record.by_loader[:MOST_LOADERS]:
        totals.loaders.add_table(loader_id, np.array(cells, np.int64).reshape(-1, 2))
    if record.machine is not None:
        totals.machine = machine_of(record.machine)
    totals.input_sizes.add_points(record.input_sizes)
    if record.garbage is not None:
        totals.garbage = GarbageSums.of(record.garbage)
    if record.flops is not None:
        counts = {name: getattr(record.flops, name) for name in ("flops", "forward", "attention_forward")}
        possible: dict[str, Any] = {name: count if 0 <= count <= MOST_FLOPS else 0 for name, count in counts.items()}
        fitted = fit(record.flops._replace(flops=0, forward=0, attention_forward=0))
        totals.flops = fitted._replace(**possible)
    return totals


def id_in(names: SectionNames, name: str) -> int:
    """Return the id of a section of a journal; 0 for time in none."""
    return 0 if name == NO_SECTION else names.id_of(name)


def _add_section(totals: Totals, id: int, record: SectionRecord) -> None:
    sums = totals.sections
    for name in ADDED:
        getattr(sums, name)[id] += getattr(record, name)  # of names that share a row, the sums add up
    if record.early:
        steps, ns = (np.array(column, np.int64) for column in record.early)
        totals.add_early(steps, np.full(len(steps), id), ns)
    if record.coupling:
        totals.coupling.sections[:, id] += record.coupling
    if not record.measured or sums.measured[id]:  # of names that share a row, the first has the quantiles
        return
    for name in MEASURED:
        getattr(sums, name)[id] = getattr(record, name)
    if record.bins:
        bins, counts = record.bins
        sums.mean_ns[id], sums.m2[id] = record.mean_ns, record.m2
        sums.bins[id, bins] = counts


def machine_of(record: MachineRecord) -> MachineSums:
    """Return the sums of the machine's samples, of quantities that there are."""
    sums = MachineSums()
    if not record.samples:
        return sums
    facts, levels = record.facts.items(), record.levels.items()
    sums.samples = record.samples
    sums.facts = {
        key: fit(value)
        for key, value in facts
        if (key in FACTS or _FACT.fullmatch(key)) and isinstance(value, str) == key.endswith(".name")
    }
    for key in [key for key in sums.facts if key.endswith(".name")][MOST_DEVICES:]:
        del sums.facts[key]  # without its name, a device is none
    sums.levels = {key: level for key, level in levels if level[0] >= _LEAST_WEIGHT and _is_known(key)}
    for quantity, points in record.series.items():
        if _is_known(quantity):
            sums.series[quantity] = Series()
            sums.series[quantity].add_points(points)
    return sums


def _is_known(quantity: str) -> bool:
    return quantity in (*LEVELS, RAM) or _OF_DEVICE.fullmatch(quantity) is not None
