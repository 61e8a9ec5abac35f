"""Totals as plain data for the journal, and back; sections go by name, histograms as (bin, count) pairs."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from training_profiler.aggregation.lines import IN_STEPS
from training_profiler.aggregation.machine import machine_from_data, machine_to_data
from training_profiler.aggregation.totals import Totals, rows_for
from training_profiler.recording.section_names import SectionNames
from training_profiler.recording.step_flops import StepFlops
from training_profiler.sampling.line_sampler import Location

_COUNTS: Final = (
    "count",
    "total_ns",
    "self_ns",
    "elsewhere_ns",
    "step_self_ns",
    "step_total_ns",
    "device_ns",
    "device_count",
    "measured",
    "min_ns",
    "max_ns",
    "min_step",
    "max_step",
)
NO_SECTION: Final = ""  # stands for row 0: the time of no section


def totals_to_data(totals: Totals, step_ns: Sequence[int], names: SectionNames) -> dict[str, Any]:
    """Return the totals of a flush interval as data that JSON holds exactly."""
    sums = totals.sections
    # A step's time counts where the step ends, which may be an interval after its sections' last spans.
    seen = sums.count | sums.self_ns | sums.elsewhere_ns | sums.step_self_ns | sums.step_total_ns | sums.device_count
    shown = [0, *(np.flatnonzero(seen[1:]) + 1).tolist()]
    sections = {}
    for id in shown:
        row: dict[str, Any] = {key: int(getattr(sums, key)[id]) for key in _COUNTS}
        if not row["device_count"]:
            del row["device_ns"], row["device_count"]
        if not row["measured"]:
            for key in ("measured", "min_ns", "max_ns", "min_step", "max_step"):
                del row[key]
        else:
            bins = np.flatnonzero(sums.bins[id])
            row |= {"mean_ns": float(sums.mean_ns[id]), "m2": float(sums.m2[id])}
            row["bins"] = [bins.tolist(), sums.bins[id, bins].tolist()]
        if totals.coupling.count and id < totals.coupling.sections.shape[1]:
            row["coupling"] = totals.coupling.sections[:, id].tolist()
        early = np.flatnonzero(totals.early_ns[:, id]) if id < totals.early_ns.shape[1] else np.empty(0, np.int64)
        if len(early):
            row["early"] = [early.tolist(), totals.early_ns[early, id].tolist()]
        sections[names.names.get(id, NO_SECTION)] = row
    return {
        "begin_ns": totals.begin_ns,
        "end_ns": totals.end_ns,
        "first_step": totals.first_step,
        "step_ns": list(step_ns),
        **({"disturbed": totals.disturbed} if totals.disturbed else {}),
        "sections": sections,
        "parents": [[names.names[p], names.names[c], count] for (p, c), count in sums.parents.items()],
        "coupling": [totals.coupling.count, *totals.coupling.step.tolist()],
        "lines": {names.names[id]: _line_rows(totals, id) for id in {id for id, _ in totals.lines} - {IN_STEPS}},
        "step_lines": _line_rows(totals, IN_STEPS),
        "loop_begin_ns": totals.loop_begin_ns,
        "by_loader": [[serial, *table.ravel().tolist()] for serial, table in totals.loaders.tables.items()],
        "first_fetch_ns": totals.first_fetch_ns,
        "machine": machine_to_data(totals.machine),
        "batches": totals.batches,
        "samples": totals.samples,
        "flops": totals.flops,
        "slow_steps": totals.slow_steps,
        **({"late_exchange_ns": totals.late_exchange_ns} if totals.late_exchange_ns else {}),
        "dropped": totals.dropped,
        "unended": totals.unended,
    }


def _line_rows(totals: Totals, id: int) -> list[list[Any]]:
    """Return a row a line of section ``id``: how many samples, and where in the user's code they were, if anywhere."""
    return [[count, *(location or ())] for (section, location), count in totals.lines.items() if section == id]


def _add_lines(totals: Totals, id: int, rows: list[list[Any]]) -> None:
    for count, *place in rows:
        totals.lines[id, Location(*place) if place else None] += count


def totals_from_data(data: dict[str, Any], names: SectionNames) -> tuple[Totals, list[int]]:
    """Return the totals and step durations that ``totals_to_data`` was given.

    Raises:
        KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError: the data is not of that form.
    """
    totals = Totals(data["begin_ns"], data["first_step"])
    totals.end_ns = data["end_ns"]
    totals.disturbed = [int(at) for at in data.get("disturbed", ())]
    ids = {name: 0 if name == NO_SECTION else names.id_of(name) for name in data["sections"]}
    rows = rows_for(len(names.names))
    totals.sections.grow(rows)
    totals.coupling.grow(rows)
    for name, row in data["sections"].items():
        _fill_row(totals, ids[name], row)
    for parent, child, count in data["parents"]:
        edge = (0 if parent == NO_SECTION else names.id_of(parent), names.id_of(child))
        totals.sections.parents[edge] = count
    totals.coupling.count, *step = data["coupling"]
    totals.coupling.step[:] = step
    for name, lines in data.get("lines", {}).items():  # journals of earlier versions have none
        _add_lines(totals, 0 if name == NO_SECTION else names.id_of(name), lines)
    _add_lines(totals, IN_STEPS, data.get("step_lines", []))
    totals.loop_begin_ns = data.get("loop_begin_ns")
    for serial, *cells in data.get("by_loader", []):
        totals.loaders.add_table(serial, np.array(cells, np.int64).reshape(-1, 2))
    totals.first_fetch_ns = data["first_fetch_ns"]
    totals.machine = machine_from_data(data.get("machine", {}))
    totals.batches, totals.samples = data.get("batches"), data.get("samples")
    totals.slow_steps = data.get("slow_steps", 0)
    totals.late_exchange_ns = data.get("late_exchange_ns", 0)
    counted = data.get("flops")
    totals.flops = None if counted is None else StepFlops(*counted)
    totals.dropped, totals.unended = data["dropped"], data["unended"]
    return totals, data["step_ns"]


def _fill_row(totals: Totals, id: int, row: dict[str, Any]) -> None:
    sums = totals.sections
    for key in _COUNTS:
        if key in row:
            getattr(sums, key)[id] = row[key]
    if "bins" in row:
        sums.mean_ns[id], sums.m2[id] = row["mean_ns"], row["m2"]
        sums.bins[id, row["bins"][0]] = row["bins"][1]
    if "early" in row:
        steps, ns = (np.array(column, np.int64) for column in row["early"])
        totals.add_early(steps, np.full(len(steps), id), ns)
    if "coupling" in row:
        totals.coupling.sections[:, id] = row["coupling"]
