"""The journal's record of a flush interval, and conversion of totals to it and back.

Sections go by name, because ids differ from run to run. Histograms are stored as bins and counts.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType, field

from training_profiler.aggregation.lines import IN_STEPS
from training_profiler.aggregation.machine import machine_from_data, machine_to_data
from training_profiler.aggregation.totals import Totals, rows_for
from training_profiler.recording.section_names import SectionNames
from training_profiler.recording.step_flops import StepFlops
from training_profiler.sampling.line_sampler import Location

NO_SECTION: Final = ""  # stands for row 0: time in no section
ALWAYS: Final = ("count", "total_ns", "self_ns", "elsewhere_ns", "step_self_ns", "step_total_ns")
ON_DEVICE: Final = ("device_ns", "device_count")
MEASURED: Final = ("measured", "min_ns", "max_ns", "min_step", "max_step")


class SectionRecord(Struct):
    """The sums of one section; see ``SectionSums``. Keys without content are left out."""

    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    elsewhere_ns: int = 0
    step_self_ns: int = 0
    step_total_ns: int = 0
    device_ns: int | UnsetType = UNSET
    device_count: int | UnsetType = UNSET
    measured: int | UnsetType = UNSET
    min_ns: int | UnsetType = UNSET
    max_ns: int | UnsetType = UNSET
    min_step: int | UnsetType = UNSET
    max_step: int | UnsetType = UNSET
    mean_ns: float | UnsetType = UNSET
    m2: float | UnsetType = UNSET
    bins: tuple[list[int], list[int]] | UnsetType = UNSET  # (bins, counts)
    coupling: list[float] | UnsetType = UNSET  # see ``Coupling.sections``
    early: tuple[list[int], list[int]] | UnsetType = UNSET  # (first steps, ns)


class IntervalRecord(Struct, kw_only=True):
    """The totals of a flush interval. Fields with a default are missing in journals of earlier versions."""

    begin_ns: int
    end_ns: int
    first_step: int
    step_ns: list[int]
    slowed_by_capture: list[int] | UnsetType = field(default=UNSET, name="disturbed")
    sections: dict[str, SectionRecord]
    parents: list[tuple[str, str, int]]  # (parent, section, spans)
    coupling: tuple[int, float, float]
    lines: dict[str, list[list[Any]]] = {}  # section -> rows of samples and location
    step_lines: list[list[Any]] = []
    loop_begin_ns: int | None = None
    by_loader: list[list[int]] = []  # loader id, then its table row by row
    first_fetch_ns: int | None
    machine: dict[str, Any] = {}
    batches: int | None = None
    samples: int | None = None
    flops: StepFlops | None = None
    slow_steps: int = 0
    late_exchange_ns: int | UnsetType = UNSET
    dropped: int
    unended: int


def totals_to_data(totals: Totals, step_ns: Sequence[int], names: SectionNames) -> dict[str, Any]:
    """Return the totals of a flush interval as data that JSON represents exactly."""
    sums = totals.sections
    # Time within steps is added at the end of the step, which may be in a later interval than the spans.
    has_data = (
        sums.count | sums.self_ns | sums.elsewhere_ns | sums.step_self_ns | sums.step_total_ns | sums.device_count
    )
    ids = [0, *(np.flatnonzero(has_data[1:]) + 1).tolist()]
    step_s, squares_s2 = totals.coupling.step
    record = IntervalRecord(
        begin_ns=totals.begin_ns,
        end_ns=totals.end_ns,
        first_step=totals.first_step,
        step_ns=list(step_ns),
        slowed_by_capture=totals.disturbed or UNSET,
        sections={names.names.get(id, NO_SECTION): _section_record(totals, id) for id in ids},
        parents=[(names.names[parent], names.names[id], spans) for (parent, id), spans in sums.parents.items()],
        coupling=(totals.coupling.count, float(step_s), float(squares_s2)),
        lines={names.names[id]: _line_rows(totals, id) for id in {id for id, _ in totals.lines} - {IN_STEPS}},
        step_lines=_line_rows(totals, IN_STEPS),
        loop_begin_ns=totals.loop_begin_ns,
        by_loader=[[loader_id, *table.ravel().tolist()] for loader_id, table in totals.loaders.tables.items()],
        first_fetch_ns=totals.first_fetch_ns,
        machine=machine_to_data(totals.machine),
        batches=totals.batches,
        samples=totals.samples,
        flops=totals.flops,
        slow_steps=totals.slow_steps,
        late_exchange_ns=totals.late_exchange_ns or UNSET,
        dropped=totals.dropped,
        unended=totals.unended,
    )
    data: dict[str, Any] = msgspec.to_builtins(record)
    return data


def _section_record(totals: Totals, id: int) -> SectionRecord:
    sums = totals.sections
    keys = (*ALWAYS, *(ON_DEVICE if sums.device_count[id] else ()), *(MEASURED if sums.measured[id] else ()))
    columns: dict[str, Any] = {key: int(getattr(sums, key)[id]) for key in keys}
    record = SectionRecord(**columns)
    if sums.measured[id]:
        bins = np.flatnonzero(sums.bins[id])
        record.mean_ns, record.m2 = float(sums.mean_ns[id]), float(sums.m2[id])
        record.bins = bins.tolist(), sums.bins[id, bins].tolist()
    if totals.coupling.count and id < totals.coupling.sections.shape[1]:
        record.coupling = totals.coupling.sections[:, id].tolist()
    early = np.flatnonzero(totals.early_ns[:, id]) if id < totals.early_ns.shape[1] else np.empty(0, np.int64)
    if len(early):
        record.early = early.tolist(), totals.early_ns[early, id].tolist()
    return record


def _line_rows(totals: Totals, id: int) -> list[list[Any]]:
    """Return a row for each line of section ``id``: samples, and the location if it is in the user's code."""
    return [[count, *(location or ())] for (section, location), count in totals.lines.items() if section == id]


def _add_lines(totals: Totals, id: int, rows: list[list[Any]]) -> None:
    for count, *location in rows:
        totals.lines[id, Location(*location) if location else None] += count


def totals_from_data(data: dict[str, Any], names: SectionNames) -> tuple[Totals, list[int]]:
    """Return the totals and step durations that ``totals_to_data`` was called with.

    Raises:
        KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError: the data has another form.
    """
    record = msgspec.convert(data, IntervalRecord)
    totals = Totals(record.begin_ns, record.first_step)
    totals.end_ns = record.end_ns
    totals.disturbed = record.slowed_by_capture or []

    def id_of(name: str) -> int:
        return 0 if name == NO_SECTION else names.id_of(name)

    ids = {name: id_of(name) for name in record.sections}
    rows = rows_for(len(names.names))
    totals.sections.grow(rows)
    totals.coupling.grow(rows)
    for name, section in record.sections.items():
        _add_section(totals, ids[name], section)
    for parent, child, count in record.parents:
        totals.sections.parents[id_of(parent), names.id_of(child)] = count
    totals.coupling.count, *step = record.coupling
    totals.coupling.step[:] = step
    for name, lines in record.lines.items():
        _add_lines(totals, id_of(name), lines)
    _add_lines(totals, IN_STEPS, record.step_lines)
    totals.loop_begin_ns = record.loop_begin_ns
    for loader_id, *cells in record.by_loader:
        totals.loaders.add_table(loader_id, np.array(cells, np.int64).reshape(-1, 2))
    totals.first_fetch_ns = record.first_fetch_ns
    totals.machine = machine_from_data(record.machine)
    totals.batches, totals.samples = record.batches, record.samples
    totals.slow_steps = record.slow_steps
    totals.late_exchange_ns = record.late_exchange_ns or 0
    totals.flops = record.flops
    totals.dropped, totals.unended = record.dropped, record.unended
    return totals, record.step_ns


def _add_section(totals: Totals, id: int, record: SectionRecord) -> None:
    sums = totals.sections
    for name in (*ALWAYS, *ON_DEVICE, *MEASURED):
        value = getattr(record, name)
        if value is not UNSET:
            getattr(sums, name)[id] = value
    if record.bins:
        bins, counts = record.bins
        if not isinstance(record.mean_ns, float) or not isinstance(record.m2, float):
            raise ValueError("a section with bins needs mean_ns and m2")
        sums.mean_ns[id], sums.m2[id] = record.mean_ns, record.m2
        sums.bins[id, bins] = counts
    if record.early:
        steps, ns = (np.array(column, np.int64) for column in record.early)
        totals.add_early(steps, np.full(len(steps), id), ns)
    if record.coupling:
        totals.coupling.sections[:, id] = record.coupling
