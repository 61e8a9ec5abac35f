"""The tables of a trace as rows, and as CSV: one row an operator, a kernel, a gap, a step, a collective."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.trace_json import bandwidth_data, ms, place_data, rate_data, times_data

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
    return [
        {
            "device": place.gap.device,
            "at_ms": ms(place.gap.begin_ns - trace.begin_ns),
            "length_ms": ms(place.gap.length_ns),
            "cause": place.gap.cause,
            "share_of_cause": place.gap.part,
            "step": place.step,
            "section": place.section,
            "module": place.module,
            "line": place.line,
            "host_in": place.stall.by,
            "ended_by": place.next_name,
            "launched_by": place.operator,
        }
        for place in trace.gaps
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


TABLES: Final[Mapping[str, Callable[[Analysis], list[Row]]]] = {
    "steps": step_rows,
    "operators": operator_rows,
    "kernels": kernel_rows,
    "gaps": gap_rows,
    "collectives": collective_rows,
    "roofline": roofline_rows,
    "bus_bandwidth": bandwidth_rows,
    "sections": section_rows,
    "modules": module_rows,
    "lines": line_rows,
    "sampled_lines": sampled_rows,
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
