"""Conversion of totals to an interval of the journal and back."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import structs

from training_profiler.aggregation.garbage import GarbageSums
from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS
from training_profiler.aggregation.machine import FACTS, GPU_QUANTITIES, LEVELS, RAM, MachineSums
from training_profiler.aggregation.section_totals import ADDED, SectionSums
from training_profiler.aggregation.step_totals import Coupling
from training_profiler.aggregation.totals import Totals, rows_for
from training_profiler.base.units import NS_PER_US
from training_profiler.model.bounds import MOST_DEVICES, MOST_LOADERS, fit
from training_profiler.model.interval import (
    BIN_COUNT,
    NO_SECTION,
    IntervalRecord,
    LineRow,
    MachineRecord,
    SectionRecord,
    StretchFigures,
    location_of,
)
from training_profiler.recording.section_names import SectionNames
from training_profiler.statistics.arrays import Ints

MEASURED: Final = ("measured", "min_ns", "max_ns", "min_step", "max_step")
MOST_FLOPS: Final = 10**30  # more are damaged
_DEVICE: Final = re.compile(r"gpu(\d{1,4})\.(name|total_bytes)", re.ASCII)
_LEAST_WEIGHT: Final = 1e-9
Interval = TypeVar("Interval", bound=IntervalRecord)


def interval_of(
    kind: type[Interval], totals: Totals, step_ns: Sequence[int], names: SectionNames, **more: Any
) -> Interval:
    """Return the totals of a flush interval as a line of that kind, which has ``more`` fields."""
    sums = totals.sections
    # Time within steps is added at the end of the step, which may be in a later interval than the spans.
    has_data = np.bitwise_or.reduce([getattr(sums, name) for name in ADDED])
    ids = [0, *(np.flatnonzero(has_data[1:]) + 1).tolist()]
    rows = _line_rows(totals)
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
        step_calls=_call_rows(totals.step_calls),
        input_sizes=totals.input_sizes.points,
        garbage=totals.garbage.record(),
        **more,
    )


def _call_rows(step_calls: Sequence[int]) -> list[tuple[int, int]]:
    rows = [(len(list(steps)), calls) for calls, steps in groupby(step_calls)]
    return [] if all(calls == 1 for _, calls in rows) else rows


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


def _line_rows(totals: Totals) -> dict[int, list[LineRow]]:
    """Return a row for each line of a section: samples, and the location if it is in the user's code."""
    rows: dict[int, list[Any]] = {}
    for (section, location), count in totals.lines.items():
        cells = () if location is None else location if any(location[4:]) else location[:4]
        rows.setdefault(section, []).append((count, *cells))
    return rows


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


def totals_of(record: IntervalRecord, names: SectionNames, spare: SpareBins | None = None) -> Totals:
    """Return the totals that ``interval_of`` was called with.

    Names beyond the limit of ``names`` share a row, as in the run itself. With ``spare``, the totals are valid until
    the next call.
    """
    ids = [id_in(names, name) for name in record.sections]
    edges = [((id_in(names, parent), names.id_of(child)), count) for parent, child, count in record.parents]
    rows = rows_for(max((*ids, *(id for edge, _ in edges for id in edge)), default=0))
    totals = Totals(
        **{name: getattr(record, name) for name in StretchFigures.__struct_fields__},
        sections=SectionSums(rows, None if spare is None else spare.take(rows, ids)),
        coupling=Coupling(rows),
        step_calls=[calls for steps, calls in record.step_calls or [(len(record.step_ns), 1)] for _ in range(steps)],
    )
    for id, section in zip(ids, record.sections.values(), strict=True):
        _add_section(totals, id, section)
    parents = totals.sections.parents
    for edge, count in edges:
        parents[edge] = parents.get(edge, 0) + count
    _add_series(totals, record, ids, rows)
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
        is_possible = 0 <= record.flops.flops <= MOST_FLOPS
        totals.flops = fit(record.flops._replace(flops=0))._replace(flops=record.flops.flops if is_possible else 0)
    return totals


def id_in(names: SectionNames, name: str) -> int:
    """Return the id of a section of a journal; 0 for time in none."""
    return 0 if name == NO_SECTION else names.id_of(name)


def _add_series(totals: Totals, record: IntervalRecord, ids: Sequence[int], rows: int) -> None:
    columns = [section.series_us for section in record.sections.values()]
    if record.steps_a_block and any(columns):
        sums_ns = np.zeros((record.block_count, rows), np.int64)
        for id, column in zip(ids, columns, strict=True):
            if column:
                sums_ns[:, id] += np.array(column, np.int64) * NS_PER_US
        totals.series.restore(sums_ns, len(record.step_ns), record.steps_a_block)


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
    """Return the sums of the machine's samples: of quantities that there are, of a bounded number of devices."""
    if not record.samples:
        return MachineSums()
    facts: dict[str, float | str] = {}
    devices: dict[int, dict[str, float | str]] = {}
    for key, value in record.facts.items():
        if key in FACTS and isinstance(value, float):
            facts[key] = value
        match = _DEVICE.fullmatch(key)
        if match and isinstance(value, str) == (match[2] == "name"):
            devices.setdefault(int(match[1]), {})[match[2]] = fit(value)
    kept = {f"gpu{index}.": device for index, device in list(devices.items())[:MOST_DEVICES] if "name" in device}
    facts |= {own + name: value for own, device in kept.items() for name, value in device.items()}
    own = tuple(kept)
    levels = {key: level for key, level in _known(record.levels, own).items() if level[0] >= _LEAST_WEIGHT}
    return MachineSums.of(structs.replace(record, facts=facts, levels=levels, series=_known(record.series, own)))


T = TypeVar("T")


def _known(quantities: Mapping[str, T], own: tuple[str, ...]) -> dict[str, T]:
    named = {*LEVELS, RAM}
    return {
        key: value
        for key, value in quantities.items()
        if key in named or (key.startswith(own) and key.partition(".")[2] in GPU_QUANTITIES)
    }
