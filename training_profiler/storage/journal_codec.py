"""The journal's record of a flush interval, and conversion of totals to it and back.

Sections go by name, because ids differ from run to run. Histograms are stored as bins and counts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Final, Self, cast

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType, field

from training_profiler.aggregation.arrays import Ints
from training_profiler.aggregation.garbage import GarbageSums
from training_profiler.aggregation.histogram import BIN_COUNT
from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS
from training_profiler.aggregation.loaders import KINDS
from training_profiler.aggregation.machine import GPU_QUANTITIES, LEVELS, RAM, machine_from_data, machine_to_data
from training_profiler.aggregation.section_series import MOST_BLOCKS, SectionSeries
from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.totals import Totals, rows_for
from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_US
from training_profiler.recording.section_names import SectionNames
from training_profiler.recording.step_flops import StepFlops
from training_profiler.sampling.location import Location
from training_profiler.storage.limits import MOST_DEVICES, MOST_LOADERS, Count, Moment, Real

NO_SECTION: Final = ""  # stands for row 0: time in no section
ALWAYS: Final = ("count", "total_ns", "self_ns", "elsewhere_ns", "step_self_ns", "step_total_ns")
ON_DEVICE: Final = ("device_ns", "device_count")
MEASURED: Final = ("measured", "min_ns", "max_ns", "min_step", "max_step")
LOADER_CELLS: Final = 2 * KINDS * 2
_DEVICE: Final = re.compile(r"gpu(\d{1,4})\.(name|total_bytes)", re.ASCII)
_FACTS: Final = (
    "cores",
    "allowed_cores",
    "host_cores",
    "local_ranks",
    "page_cost_s",
    "ram_limit_bytes",
    "ram_host_total_bytes",
)
_LEAST_WEIGHT: Final = 1e-9

# A batch may be recorded later than one that arrived after it, so the time between two can be below 0.
Cell = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Bin = Annotated[int, Meta(ge=0, lt=BIN_COUNT)]
Micros = Annotated[int, Meta(ge=0, le=2**43)]  # 2^53 ns
Samples = Annotated[int, Meta(ge=1, le=2**53)]
GarbageRow = tuple[Count, Count, Count, Count, Count, Count, Count]
Squares = Annotated[float, Meta(ge=0, le=1e60)]


class SectionRecord(Struct):
    """The sums of one section; see ``SectionSums``. Keys without content are left out."""

    count: Count = 0
    total_ns: Count = 0
    self_ns: Count = 0
    elsewhere_ns: Count = 0
    step_self_ns: Count = 0
    step_total_ns: Count = 0
    device_ns: Count | UnsetType = UNSET
    device_count: Count | UnsetType = UNSET
    measured: Count | UnsetType = UNSET
    min_ns: Count | UnsetType = UNSET
    max_ns: Count | UnsetType = UNSET
    min_step: Count | UnsetType = UNSET
    max_step: Count | UnsetType = UNSET
    mean_ns: Real | UnsetType = UNSET
    m2: Squares | UnsetType = UNSET
    bins: tuple[list[Bin], list[Count]] | UnsetType = UNSET  # (bins, counts)
    coupling: tuple[Real, Real, Real] | UnsetType = UNSET  # see ``Coupling.sections``
    early: tuple[list[Count], list[Count]] | UnsetType = UNSET  # (first steps, ns)
    series_us: list[Micros] | UnsetType = UNSET  # exclusive time within each block of steps; see ``SectionSeries``


class LineRow(Struct, array_like=True):
    """Samples of one line of the user's code; without a file of code that is not the user's."""

    samples: Count
    file: str | None = None
    line: Count = 0
    function: str = ""
    waits_in: str = ""
    inside: str = ""
    phase: str = ""
    activity: str = ""
    held_by: str = ""
    called: str = ""
    making: str = ""
    waits_for: str = ""


class MachineRecord(Struct):
    """The sums of the machine's samples; see ``MachineSums``."""

    looks: Count = 0
    levels: dict[str, tuple[Real, Real, Real, Real]] = {}
    series: dict[str, list[tuple[Samples, Real, Real]]] = {}
    facts: dict[str, Real | str] = {}


class GarbageRecord(Struct):
    """The sums of garbage collections; see ``GarbageSums``. A row each of its kinds: its table, and the longest."""

    steps: Count
    rows: tuple[GarbageRow, GarbageRow, GarbageRow, GarbageRow]
    coupling: tuple[Count, Real, Real, Real, Real]


class IntervalRecord(Struct, kw_only=True):
    """The totals of a flush interval. Fields with a default are missing in journals of earlier versions."""

    begin_ns: Moment
    end_ns: Moment
    first_step: Count
    step_ns: list[Count]
    slowed_by_capture: list[Count] | UnsetType = field(default=UNSET, name="disturbed")
    steps_a_block: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType = UNSET  # of the series of sections
    sections: dict[str, SectionRecord]
    parents: list[tuple[str, str, Count]]  # (parent, section, spans)
    coupling: tuple[Count, Real, Real]
    lines: dict[str, list[LineRow]] = {}  # section -> rows of samples and location
    step_lines: list[LineRow] = []
    startup_lines: list[LineRow] | UnsetType = UNSET
    loop_begin_ns: Moment | None = None
    by_loader: list[list[Cell]] = []  # loader id, then its table row by row
    first_fetch_ns: Count | None
    machine: MachineRecord | None = None
    batches: Count | None = None
    samples: Count | None = None
    tokens: Count | UnsetType = UNSET
    flops: StepFlops | None = None
    slow_steps: Count = 0
    # Steps in a row, and the forward passes in each; left out if all steps have one.
    step_calls: list[tuple[Count, Count]] | UnsetType = UNSET
    input_sizes: list[tuple[Count, Real, Real]] | UnsetType = UNSET  # see ``Series``
    with_grad: tuple[Count, Count] | UnsetType = UNSET
    garbage: GarbageRecord | UnsetType = UNSET
    late_exchange_ns: Count | UnsetType = UNSET
    dropped: Count
    unended: Count

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Return the record itself: nothing changes one, and it may have a row for each of 100,000 lines."""
        return self


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
        slowed_by_capture=totals.slowed_by_capture or UNSET,
        steps_a_block=totals.series.steps_a_block if totals.series.steps else UNSET,
        sections=dict(zip([names.names.get(id, NO_SECTION) for id in ids], _section_records(totals, ids), strict=True)),
        parents=[(names.names[parent], names.names[id], spans) for (parent, id), spans in sums.parents.items()],
        coupling=(totals.coupling.count, float(step_s), float(squares_s2)),
        lines=cast(Any, {names.names[id]: _line_rows(totals, id) for id in {id for id, _ in totals.lines if id >= 0}}),
        step_lines=cast(Any, _line_rows(totals, IN_STEPS)),
        startup_lines=cast(Any, _line_rows(totals, BEFORE_STEPS) or UNSET),
        loop_begin_ns=totals.loop_begin_ns,
        by_loader=[[loader_id, *table.ravel().tolist()] for loader_id, table in totals.loaders.tables.items()],
        first_fetch_ns=totals.first_fetch_ns,
        machine=cast(Any, machine_to_data(totals.machine)),
        batches=totals.batches,
        samples=totals.samples,
        tokens=UNSET if totals.tokens is None else totals.tokens,
        flops=totals.flops,
        slow_steps=totals.slow_steps,
        step_calls=_call_rows(totals.step_calls),
        input_sizes=totals.input_sizes.points or UNSET,
        with_grad=totals.with_grad if totals.with_grad[0] else UNSET,
        garbage=_garbage_record(totals.garbage),
        late_exchange_ns=totals.late_exchange_ns or UNSET,
        dropped=totals.dropped,
        unended=totals.unended,
    )
    data: dict[str, Any] = msgspec.to_builtins(record)
    return data


def _call_rows(step_calls: Sequence[int]) -> list[tuple[int, int]] | UnsetType:
    rows = [(len(list(steps)), calls) for calls, steps in groupby(step_calls)]
    return UNSET if all(calls == 1 for _, calls in rows) else rows


def _garbage_record(sums: GarbageSums) -> GarbageRecord | UnsetType:
    rows: Any = tuple(sums.rows())
    count, *products = sums.coupling.tolist()
    coupling: Any = (int(count), *products)
    return GarbageRecord(sums.steps, rows, coupling) if sums.steps or sums.table.any() else UNSET


def _section_records(totals: Totals, ids: Sequence[int]) -> list[SectionRecord]:
    sums = totals.sections
    values = {key: getattr(sums, key)[list(ids)].tolist() for key in (*ALWAYS, *ON_DEVICE, *MEASURED)}
    filled = dict(sums.filled_bins())
    records = []
    for row, id in enumerate(ids):
        keys = (*ALWAYS, *(ON_DEVICE if values["device_count"][row] else ()), *(MEASURED if id in filled else ()))
        columns: dict[str, Any] = {key: values[key][row] for key in keys}
        if id in filled:
            bins = np.flatnonzero(sums.bins[id, filled[id]]) + filled[id].start
            columns |= {"mean_ns": float(sums.mean_ns[id]), "m2": float(sums.m2[id])}
            columns["bins"] = bins.tolist(), sums.bins[id, bins].tolist()
        records.append(SectionRecord(**columns, **_beside_spans(totals, id)))
    return records


def _beside_spans(totals: Totals, id: int) -> dict[str, Any]:
    """Return the columns of a section that are not sums over its spans."""
    columns: dict[str, Any] = {}
    if totals.coupling.count and id < totals.coupling.sections.shape[1]:
        columns["coupling"] = totals.coupling.sections[:, id].tolist()
    if id < totals.series.sums_ns.shape[1] and totals.series.sums_ns[:, id].any():
        columns["series_us"] = ((totals.series.sums_ns[:, id] + NS_PER_US // 2) // NS_PER_US).tolist()
    early = np.flatnonzero(totals.early_ns[:, id]) if id < totals.early_ns.shape[1] else np.empty(0, np.int64)
    if len(early):
        columns["early"] = early.tolist(), totals.early_ns[early, id].tolist()
    return columns


def _line_rows(totals: Totals, id: int) -> list[list[Any]]:
    """Return a row for each line of section ``id``: samples, and the location if it is in the user's code."""
    return [[count, *_cells(location)] for (section, location), count in totals.lines.items() if section == id]


def _cells(location: Location | None) -> tuple[Any, ...]:
    if location is None:
        return ()
    return tuple(location) if any(location[4:]) else tuple(location)[:4]


class SpareBins:
    """The memory for quantiles of an interval, used again for the next one: clearing all of it takes a millisecond."""

    def __init__(self) -> None:
        self._bins = np.zeros((16, BIN_COUNT), np.int64)
        self._used: list[int] = []

    def take(self, rows: int, ids: list[int]) -> Ints:
        """Return zeros for so many rows, of which those of ``ids`` may be filled until the next call."""
        self._bins[self._used] = 0
        self._used = ids
        if rows > len(self._bins):
            self._bins = np.zeros((rows, BIN_COUNT), np.int64)
        return self._bins[:rows]


def totals_from_data(
    data: dict[str, Any] | IntervalRecord, names: SectionNames, spare: SpareBins | None = None
) -> tuple[Totals, list[int]]:
    """Return the totals and step durations that ``totals_to_data`` was called with.

    Names beyond the limit of ``names`` share a row, as in the run itself. With ``spare``, the totals are valid until
    the next call.

    Raises:
        ValueError: the data has another form. Nothing has been added to ``names`` then, unless a name was new.
    """
    record = data if isinstance(data, IntervalRecord) else msgspec.convert(data, IntervalRecord)
    check_interval(record)
    totals = Totals(record.begin_ns, record.first_step)
    totals.end_ns = record.end_ns
    totals.slowed_by_capture = record.slowed_by_capture or []

    def id_of(name: str) -> int:
        return 0 if name == NO_SECTION else names.id_of(name)

    ids = [id_of(name) for name in record.sections]
    edges = [((id_of(parent), names.id_of(child)), count) for parent, child, count in record.parents]
    rows = rows_for(max((*ids, *(id for edge, _ in edges for id in edge)), default=0))
    totals.sections = SectionSums(rows, None if spare is None else spare.take(rows, ids))
    totals.coupling.grow(rows)
    for id, section in zip(ids, record.sections.values(), strict=True):
        _add_section(totals, id, section)
    parents = totals.sections.parents
    for edge, count in edges:
        parents[edge] = parents.get(edge, 0) + count
    totals.series = _series(record, ids, rows)
    totals.coupling.count, *step = record.coupling
    totals.coupling.step[:] = step
    for name, lines in record.lines.items():
        _add_lines(totals, id_of(name), lines)
    _add_lines(totals, IN_STEPS, record.step_lines)
    _add_lines(totals, BEFORE_STEPS, record.startup_lines or ())
    totals.loop_begin_ns = record.loop_begin_ns
    for loader_id, *cells in record.by_loader[:MOST_LOADERS]:
        totals.loaders.add_table(loader_id, np.array(cells, np.int64).reshape(-1, 2))
    totals.first_fetch_ns = record.first_fetch_ns
    if record.machine is not None and record.machine.looks:
        totals.machine = machine_from_data(machine_data(record.machine))
    totals.batches, totals.samples = record.batches, record.samples
    totals.tokens = None if record.tokens is UNSET else record.tokens
    totals.slow_steps = record.slow_steps
    totals.step_calls = [
        calls for steps, calls in record.step_calls or [(len(record.step_ns), 1)] for _ in range(steps)
    ]
    totals.input_sizes.add_points(record.input_sizes or ())
    totals.with_grad = record.with_grad or (0, 0)
    if record.garbage:
        totals.garbage.restore(record.garbage.steps, record.garbage.rows, record.garbage.coupling)
    totals.late_exchange_ns = record.late_exchange_ns or 0
    totals.flops = None if record.flops is None else _flops(record.flops)
    totals.dropped, totals.unended = record.dropped, record.unended
    return totals, record.step_ns


def check_interval(record: IntervalRecord) -> None:
    """Check what the types alone do not.

    Raises:
        ValueError: columns do not belong together.
    """
    if record.end_ns < record.begin_ns:
        raise ValueError(f"an interval ends {record.begin_ns - record.end_ns} ns before its begin")
    if record.slowed_by_capture and max(record.slowed_by_capture) >= len(record.step_ns):
        raise ValueError("a slowed step is not among the steps")
    if record.step_calls and sum(steps for steps, _ in record.step_calls) != len(record.step_ns):
        raise ValueError("step_calls are not of the steps")
    if any(count < 1 for count, _, _ in record.input_sizes or ()):
        raise ValueError("input_sizes has a point without values")
    if any(len(row) != 1 + LOADER_CELLS for row in record.by_loader):
        raise ValueError(f"a row of by_loader does not have {1 + LOADER_CELLS} numbers")
    blocks = -(-len(record.step_ns) // record.steps_a_block) if record.steps_a_block else 0
    if blocks > MOST_BLOCKS:
        raise ValueError(f"an interval has more than {MOST_BLOCKS} blocks of steps")
    for section in record.sections.values():
        if section.series_us and len(section.series_us) != blocks:
            raise ValueError("the series of a section does not have one number per block")
        if section.bins and (section.mean_ns is UNSET or section.m2 is UNSET or not section.measured):
            raise ValueError("a section with bins needs measured, mean_ns and m2")
        if any(columns and len(columns[0]) != len(columns[1]) for columns in (section.bins, section.early)):
            raise ValueError("two columns have different lengths")


def largest_sum(record: IntervalRecord) -> int:
    """Return a bound of what the record adds to any sum."""
    sections = [
        max(getattr(section, name) or 0 for name in (*ALWAYS, *ON_DEVICE, "measured"))
        for section in record.sections.values()
    ]
    bins = sum(sum(section.bins[1]) for section in record.sections.values() if section.bins)
    early = sum(sum(section.early[1]) for section in record.sections.values() if section.early)
    tables = (*record.lines.values(), record.step_lines, record.startup_lines or ())
    rows = sum(row.samples for table in tables for row in table)
    return (
        sum(record.step_ns)
        + sum(sections)
        + bins
        + early
        + rows
        + sum(count for _, _, count in record.parents)
        + sum(abs(cell) for row in record.by_loader for cell in row)
        + sum(value or 0 for value in (record.batches, record.samples, record.tokens, record.dropped, record.unended))
        + (record.late_exchange_ns or 0)
        + sum(record.with_grad or ())
        + (0 if not record.garbage else record.garbage.steps + sum(sum(row) for row in record.garbage.rows))
        + sum(calls for _, calls in record.step_calls or ())
    )


def _series(record: IntervalRecord, ids: Sequence[int], rows: int) -> SectionSeries:
    series = SectionSeries()
    columns = [(id, section.series_us) for id, section in zip(ids, record.sections.values(), strict=True)]
    if record.steps_a_block and any(column for _, column in columns):
        blocks = -(-len(record.step_ns) // record.steps_a_block)
        sums_ns = np.zeros((blocks, rows), np.int64)
        for id, column in columns:
            if column:
                sums_ns[:, id] += np.array(column, np.int64) * NS_PER_US
        series.restore(sums_ns, len(record.step_ns), record.steps_a_block)
    return series


def _add_section(totals: Totals, id: int, record: SectionRecord) -> None:
    sums = totals.sections
    for name in (*ALWAYS, *ON_DEVICE):
        value = getattr(record, name)
        if value:  # of names that share a row, the sums add up
            getattr(sums, name)[id] += value
    if record.early:
        steps, ns = (np.array(column, np.int64) for column in record.early)
        totals.add_early(steps, np.full(len(steps), id), ns)
    if record.coupling:
        totals.coupling.sections[:, id] += record.coupling
    if not record.measured or sums.measured[id]:  # of names that share a row, the first has the quantiles
        return
    for name in MEASURED:
        value = getattr(record, name)
        if value is not UNSET:
            getattr(sums, name)[id] = value
    if record.bins and record.mean_ns is not UNSET and record.m2 is not UNSET:
        bins, counts = record.bins
        sums.mean_ns[id], sums.m2[id] = record.mean_ns, record.m2
        sums.bins[id, bins] = counts


def _add_lines(totals: Totals, id: int, rows: Iterable[LineRow]) -> None:
    for row in rows:
        location = None
        if row.file is not None:
            words = (
                row.waits_in,
                row.inside,
                row.phase,
                row.activity,
                row.held_by,
                row.called,
                row.making,
                row.waits_for,
            )
            location = Location(printable(row.file), row.line, printable(row.function), *map(printable, words))
        totals.lines[id, location] += row.samples


def _flops(flops: StepFlops) -> StepFlops:
    counted = flops.flops if 0 <= flops.flops <= 10**30 else 0
    return StepFlops(counted, printable(flops.dtype), printable(flops.device), printable(flops.attention))


def machine_data(record: MachineRecord) -> dict[str, Any]:
    """Return what ``machine_from_data`` takes: quantities that there are, of a bounded number of devices."""
    facts = {key: value for key, value in record.facts.items() if key in _FACTS and isinstance(value, float)}
    devices: dict[str, dict[str, float | str]] = {}
    for key, value in record.facts.items():
        match = _DEVICE.fullmatch(key)
        if match and isinstance(value, str) == (match[2] == "name"):
            devices.setdefault(str(int(match[1])), {})[match[2]] = printable(value) if isinstance(value, str) else value
    kept = {index: device for index, device in list(devices.items())[:MOST_DEVICES] if "name" in device}
    own = tuple(f"gpu{index}." for index in kept)
    return {
        "looks": record.looks,
        "facts": facts | {f"gpu{i}.{name}": value for i, device in kept.items() for name, value in device.items()},
        "levels": {key: level for key, level in _known(record.levels, own) if level[0] >= _LEAST_WEIGHT},
        "series": dict(_known(record.series, own)),
    }


def _known(quantities: Mapping[str, Any], own: tuple[str, ...]) -> Iterable[tuple[str, Any]]:
    named = {*LEVELS, RAM}
    return (
        (key, value)
        for key, value in quantities.items()
        if key in named or (key.startswith(own) and key.partition(".")[2] in GPU_QUANTITIES)
    )
