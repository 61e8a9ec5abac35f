"""The tables of a trace: one row an operator, a kernel, a gap, a step, a collective."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.base.table import Column, Table
from training_profiler.base.units import NS_PER_MS
from training_profiler.trace_analysis.code_places import TracedPlaces
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.critical_path.graph import Graph
from training_profiler.trace_analysis.critical_path.path import critical_path
from training_profiler.trace_analysis.critical_path.what_if import outcomes
from training_profiler.trace_analysis.idle_times import AttributedGap
from training_profiler.trace_analysis.operators import SORT_KEYS, sorted_by
from training_profiler.trace_analysis.trace import Trace
from training_profiler.trace_analysis.trace_json import (
    bandwidth_data,
    jump_data,
    link_data,
    ms,
    outcome_data,
    place_data,
    rate_data,
    times_data,
)


def ms_column(name: str, header: str) -> Column:
    """Return a column of times in ms, which text shows without their unit."""
    return Column(name, header, lambda value: f"{value:.3f}")


ON_HOST: Final = (Column("calls"), ms_column("host_self_ms", "host\nself"), ms_column("host_total_ms", "host\ntotal"))
ON_DEVICE: Final = (ms_column("device_self_ms", "device\nself"), ms_column("device_total_ms", "device\ntotal"))


def operator_rows(trace: Trace, sort: str = SORT_KEYS[0]) -> Table:
    """Return the operators, by shapes of their inputs where recorded."""
    rows = sorted_by(trace.operators_by_shape or trace.operators, sort)
    columns = (Column("operator", "operator\n(times in ms)"), *ON_HOST, *(ON_DEVICE if trace.has_gpu else ()))
    return Table(
        [
            {"operator": row.name, "shapes": row.shapes, "section": row.section} | times_data(row, trace.has_gpu)
            for row in rows
        ],
        columns,
    )


def kernel_rows(trace: Trace) -> Table:
    """Return the kernels."""
    return Table(
        [
            {
                "kernel": row.name,
                "kind": row.kind,
                "calls": row.calls,
                "total_ms": ms(row.total_ns),
                "mean_us": row.mean_ns / 1000,
                "occupancy": row.occupancy,
                "blocks_per_sm": row.blocks_per_sm,
                "tensor_cores": int(row.is_tensor_core),
            }
            for row in trace.kernels.rows
        ]
    )


def gap_rows(trace: Trace) -> Table:
    """Return the gaps of 30 us or more, in order of time."""
    return _idle_rows(trace, trace.gaps)


def edge_rows(trace: Trace) -> Table:
    """Return the idle times of steps before the first work of a device and after its last."""
    return _idle_rows(trace, trace.edges)


def _idle_rows(trace: Trace, places: Sequence[AttributedGap]) -> Table:
    return Table(
        [
            {
                "device": place.gap.device,
                "at_ms": ms(place.gap.begin_ns - trace.begin_ns),
                "length_ms": ms(place.gap.length_ns),
                "cause": place.gap.cause,
                "share_of_cause": place.gap.share_of(place.gap.cause),
                "step": place.step,
                "section": place.section,
                "module": place.module,
                "line": place.line,
                "host_in": place.stall.by,
                "ended_by": place.next_name,
                "launched_by": place.operator,
            }
            for place in places
        ]
    )


def step_rows(trace: Trace) -> Table:
    """Return the steps with their parts, or the whole recording if no steps are marked."""
    has_gpu = trace.has_gpu
    return Table(
        [
            {
                "step": part.name or "whole recording",
                "wall_ms": ms(part.wall_ns),
                "compute_ms": ms(part.compute_ns) if has_gpu else None,
                "exposed_communication_ms": ms(part.exposed_communication_ns) if has_gpu else None,
                "exposed_copies_ms": ms(part.exposed_copies_ns) if has_gpu else None,
                "idle_ms": ms(part.idle_ns) if has_gpu else None,
            }
            for part in trace.scope.parts
        ]
    )


def collective_rows(trace: Trace) -> Table:
    """Return the collectives by kind."""
    return Table(
        [
            {
                "collective": row.kind,
                "count": row.count,
                "bytes": row.bytes,
                "total_ms": ms(row.total_ns),
                "hidden_ms": ms(row.hidden_ns),
            }
            for row in trace.collectives
        ]
    )


def place_rows(places: TracedPlaces, trace: Trace, header: str = "", name_of: Callable[[str], str] = str) -> Table:
    """Return places of the code; text has names under ``header`` as ``name_of`` shortens them."""
    on_device = (*ON_DEVICE, ms_column("gaps_ms", "gaps")) if trace.has_gpu else ()
    columns = (Column("name", header, name_of), *ON_HOST, *on_device)
    return Table([place_data(place, trace.has_gpu) for place in places.rows], columns)


def section_rows(trace: Trace) -> Table:
    """Return the sections."""
    return place_rows(trace.code.sections, trace)


def module_rows(trace: Trace) -> Table:
    """Return the modules, where the trace has them."""
    return place_rows(trace.code.modules, trace)


def line_rows(trace: Trace) -> Table:
    """Return the lines of the program, where the trace has stacks."""
    return place_rows(trace.code.lines, trace)


def sampled_rows(trace: Trace) -> Table:
    """Return the lines that our own captures sampled."""
    return Table(
        [{"line": row.name, "samples": row.samples, "in_gaps": row.in_gaps} for row in trace.code.sampled.rows]
    )


def roofline_rows(trace: Trace) -> Table:
    """Return what operators achieve, beside the peak of the device."""
    return Table([rate_data(rate) | {"lacks": ", ".join(rate.lacks)} for rate in trace.roofline.rates])


def bandwidth_rows(trace: Trace) -> Table:
    """Return the bus bandwidth of collectives."""
    return Table([bandwidth_data(row) for row in trace.bus_bandwidths])


def path_rows(graph: Graph | str | None) -> Table:
    """Return the links of the critical path; nothing if it is unknown or was not asked for."""
    if not isinstance(graph, Graph):
        return Table([])
    path = critical_path(graph)
    return Table([link_data(link) | {"share": link.ns / path.wall_ns} for link in path.links])


def jump_rows(graph: Graph | str | None) -> Table:
    """Return the collectives at which the path over ranks leads to another rank."""
    return Table([jump_data(jump) for jump in critical_path(graph).jumps] if isinstance(graph, Graph) else [])


def what_if_rows(graph: Graph | str | None) -> Table:
    """Return how long all that the path covers would take after a change."""
    if not isinstance(graph, Graph):
        return Table([])
    path = critical_path(graph)
    return Table(
        [
            outcome_data(found) | ({} if path.step_ns is None else {"step_ms": ms(found.wall_ns) / path.steps})
            for found in outcomes(graph, path)
        ]
    )


def over_ranks_rows(ranks: Sequence[RankCollective]) -> Table:
    """Return waiting and transfer of each kind of collective over ranks, means per run, and whom the ranks wait for."""
    return Table(
        [
            {
                "kind": row.kind,
                "count": row.count,
                "transfer_ms": row.transfer_ns / NS_PER_MS,
                "waiting_ms": row.waiting_ns / NS_PER_MS,
                "waited_for": "; ".join(f"rank {rank}: {share:.0%}" for rank, share in row.late),
            }
            for row in ranks
        ]
    )


TABLES: Final[Mapping[str, Callable[[Trace], Table]]] = {
    "steps": step_rows,
    "operators": operator_rows,
    "kernels": kernel_rows,
    "gaps": gap_rows,
    "idle_at_ends": edge_rows,
    "collectives": collective_rows,
    "roofline": roofline_rows,
    "bus_bandwidth": bandwidth_rows,
    "sections": section_rows,
    "modules": module_rows,
    "lines": line_rows,
    "sampled_lines": sampled_rows,
    "critical_path": lambda trace: path_rows(trace.graph),
    "what_if": lambda trace: what_if_rows(trace.graph),
}
OVER_RANKS: Final[Mapping[str, Callable[[Graph | str | None], Table]]] = {
    "critical_path_over_ranks": path_rows,
    "jumps_over_ranks": jump_rows,
    "what_if_over_ranks": what_if_rows,
}
