"""The tables of a trace as rows, and as CSV: one row an operator, a kernel, a gap, a step, a collective."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.base.units import NS_PER_MS
from training_profiler.trace_analysis.analysis import Analysis, AttributedGap
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.critical_path.graph import Graph
from training_profiler.trace_analysis.critical_path.path import critical_path
from training_profiler.trace_analysis.critical_path.what_if import outcomes
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

Row = Mapping[str, float | int | str | None]
_FORMULA: Final = ("=", "+", "-", "@")  # a spreadsheet would compute a name that begins so


def operator_rows(trace: Analysis) -> list[Row]:
    """Return the operators, by shapes of their inputs where recorded."""
    has_gpu = trace.has_gpu
    return [
        {
            "operator": row.name,
            "shapes": row.shapes,
            "section": row.section,
        }
        | times_data(row, has_gpu)
        for row in trace.operators_by_shape or trace.operators
    ]


def kernel_rows(trace: Analysis) -> list[Row]:
    """Return the kernels."""
    return [
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


def gap_rows(trace: Analysis) -> list[Row]:
    """Return the gaps of 30 us or more, in order of time."""
    return _idle_rows(trace, trace.gaps)


def edge_rows(trace: Analysis) -> list[Row]:
    """Return the idle times of steps before the first work of a device and after its last."""
    return _idle_rows(trace, trace.edges)


def _idle_rows(trace: Analysis, places: Sequence[AttributedGap]) -> list[Row]:
    return [
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


def step_rows(trace: Analysis) -> list[Row]:
    """Return the steps with their parts, or the whole recording if no steps are marked."""
    has_gpu = trace.has_gpu
    return [
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


def collective_rows(trace: Analysis) -> list[Row]:
    """Return the collectives by kind."""
    return [
        {
            "collective": row.kind,
            "count": row.count,
            "bytes": row.bytes,
            "total_ms": ms(row.total_ns),
            "hidden_ms": ms(row.hidden_ns),
        }
        for row in trace.collectives
    ]


def section_rows(trace: Analysis) -> list[Row]:
    """Return the sections."""
    return [place_data(place, trace.has_gpu) for place in trace.code.sections.rows]


def module_rows(trace: Analysis) -> list[Row]:
    """Return the modules, where the trace has them."""
    return [place_data(place, trace.has_gpu) for place in trace.code.modules.rows]


def line_rows(trace: Analysis) -> list[Row]:
    """Return the lines of the program, where the trace has stacks."""
    return [place_data(place, trace.has_gpu) for place in trace.code.lines.rows]


def sampled_rows(trace: Analysis) -> list[Row]:
    """Return the lines that our own captures sampled."""
    return [{"line": row.name, "samples": row.samples, "in_gaps": row.in_gaps} for row in trace.code.sampled.rows]


def roofline_rows(trace: Analysis) -> list[Row]:
    """Return what operators achieve, beside the peak of the device."""
    return [rate_data(rate) | {"lacks": ", ".join(rate.lacks)} for rate in trace.roofline.rates]


def bandwidth_rows(trace: Analysis) -> list[Row]:
    """Return the bus bandwidth of collectives."""
    return [bandwidth_data(row) for row in trace.bus_bandwidths]


def path_rows(graph: Graph | str | None) -> list[Row]:
    """Return the links of the critical path; nothing if it is unknown or was not asked for."""
    if not isinstance(graph, Graph):
        return []
    path = critical_path(graph)
    return [link_data(link) | {"share": link.ns / path.wall_ns} for link in path.links]


def jump_rows(graph: Graph | str | None) -> list[Row]:
    """Return the collectives at which the path over ranks leads to another rank."""
    return [jump_data(jump) for jump in critical_path(graph).jumps] if isinstance(graph, Graph) else []


def what_if_rows(graph: Graph | str | None) -> list[Row]:
    """Return how long all that the path covers would take after a change."""
    if not isinstance(graph, Graph):
        return []
    path = critical_path(graph)
    return [
        outcome_data(found) | ({} if path.step_ns is None else {"step_ms": ms(found.wall_ns) / path.steps})
        for found in outcomes(graph, path)
    ]


def over_ranks_rows(ranks: Sequence[RankCollective]) -> list[Row]:
    """Return waiting and transfer of each kind of collective over ranks, means per run, and whom the ranks wait for."""
    return [
        {
            "kind": row.kind,
            "count": row.count,
            "transfer_ms": row.transfer_ns / NS_PER_MS,
            "waiting_ms": row.waiting_ns / NS_PER_MS,
            "waited_for": "; ".join(f"rank {rank}: {share:.0%}" for rank, share in row.late),
        }
        for row in ranks
    ]


TABLES: Final[Mapping[str, Callable[[Analysis], list[Row]]]] = {
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
OVER_RANKS: Final[Mapping[str, Callable[[Graph | str | None], list[Row]]]] = {
    "critical_path_over_ranks": path_rows,
    "jumps_over_ranks": jump_rows,
    "what_if_over_ranks": what_if_rows,
}


def csv_of(rows: Sequence[Row]) -> str:
    """Return rows as CSV with a line of names (RFC 4180); "" without rows. Unknown values are empty."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _cell(value: float | int | str | None) -> float | int | str | None:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
