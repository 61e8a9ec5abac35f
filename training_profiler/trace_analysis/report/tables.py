"""The tables of a trace: one row an operator, a kernel, a gap, a step, a collective."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.base.html import Html, element, joined, part
from training_profiler.base.table import Column, Table
from training_profiler.base.units import NS_PER_MS, counted
from training_profiler.findings.finding import Finding
from training_profiler.page.document import document
from training_profiler.trace_analysis.code_places import TracedPlaces
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.critical_path import critical_path, outcomes
from training_profiler.trace_analysis.idle_times import AttributedGap
from training_profiler.trace_analysis.operators import SORT_KEYS, sorted_by
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.report.figures import (
    bandwidth_data,
    in_ms,
    jump_data,
    link_data,
    one_step_lines,
    outcome_data,
    place_data,
    rate_data,
    saving_text,
    times_data,
    without_text,
)
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, not_checked, recommendations
from training_profiler.trace_analysis.trace import Trace


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
                "total_ms": in_ms(row.total_ns),
                "mean_us": row.mean_ns / 1000,
                "occupancy": row.occupancy,
                "blocks_per_sm": row.blocks_per_sm,
                "tensor_cores": int(row.is_tensor_core),
            }
            for row in trace.kernels.rows
        ]
    )


def idle_rows(trace: Trace, places: Sequence[AttributedGap]) -> Table:
    """Return idle times in order of time."""
    return Table(
        [
            {
                "device": place.gap.device,
                "at_ms": in_ms(place.gap.begin_ns - trace.begin_ns),
                "length_ms": in_ms(place.gap.length_ns),
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
                "wall_ms": in_ms(part.wall_ns),
                "compute_ms": in_ms(part.compute_ns) if has_gpu else None,
                "exposed_communication_ms": in_ms(part.exposed_communication_ns) if has_gpu else None,
                "exposed_copies_ms": in_ms(part.exposed_copies_ns) if has_gpu else None,
                "idle_ms": in_ms(part.idle_ns) if has_gpu else None,
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
                "total_ms": in_ms(row.total_ns),
                "hidden_ms": in_ms(row.hidden_ns),
            }
            for row in trace.collectives
        ]
    )


def place_rows(places: TracedPlaces, trace: Trace, header: str = "", name_of: Callable[[str], str] = str) -> Table:
    """Return places of the code; text has names under ``header`` as ``name_of`` shortens them."""
    on_device = (*ON_DEVICE, ms_column("gaps_ms", "gaps")) if trace.has_gpu else ()
    columns = (Column("name", header, name_of), *ON_HOST, *on_device)
    return Table([place_data(place, trace.has_gpu) for place in places.rows], columns)


def sampled_rows(trace: Trace) -> Table:
    """Return the lines that our own captures sampled."""
    return Table(
        [{"line": row.name, "samples": row.samples, "in_gaps": row.in_gaps} for row in trace.code.sampled.rows]
    )


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
            outcome_data(found) | ({} if path.step_ns is None else {"step_ms": in_ms(found.wall_ns) / path.steps})
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
    "gaps": lambda trace: idle_rows(trace, trace.gaps),
    "idle_at_ends": lambda trace: idle_rows(trace, trace.edges),
    "collectives": collective_rows,
    "roofline": lambda trace: Table(
        [rate_data(rate) | {"lacks": ", ".join(rate.lacks)} for rate in trace.roofline.rates]
    ),
    "bus_bandwidth": lambda trace: Table([bandwidth_data(row) for row in trace.bus_bandwidths]),
    "sections": lambda trace: place_rows(trace.code.sections, trace),
    "modules": lambda trace: place_rows(trace.code.modules, trace),
    "lines": lambda trace: place_rows(trace.code.lines, trace),
    "sampled_lines": sampled_rows,
    "critical_path": lambda trace: path_rows(trace.graph),
    "what_if": lambda trace: what_if_rows(trace.graph),
}
OVER_RANKS: Final[Mapping[str, Callable[[Graph | str | None], Table]]] = {
    "critical_path_over_ranks": path_rows,
    "jumps_over_ranks": jump_rows,
    "what_if_over_ranks": what_if_rows,
}


MOST_ROWS: Final = 500  # of a table, those with most time
# The tables of a page: the end of their id if it is not their name, their title, and by what rows come first.
_ON_PAGE: Final = {
    "steps": ("", "Steps", ""),
    "operators": ("", "Operators", "host_self_ms"),
    "kernels": ("", "Kernels", "total_ms"),
    "roofline": ("", "What operators achieve", "device_ms"),
    "bus_bandwidth": ("bandwidth", "Bus bandwidth of collectives", "total_ms"),
    "gaps": ("", "Gaps of the device", "length_ms"),
    "idle_at_ends": ("", "Idle before the first work and after the last", "length_ms"),
    "sections": ("", "Sections", "host_total_ms"),
    "modules": ("", "Modules", "host_total_ms"),
    "lines": ("", "Lines of the program", "host_total_ms"),
    "sampled_lines": ("sampled", "Sampled lines", "samples"),
}


def render_traces(
    traces: Sequence[Trace],
    thresholds: Mapping[str, float] = THRESHOLDS,
    over_ranks: Sequence[RankCollective] = (),
    joined_graph: Graph | str | None = None,
) -> str:
    """Return the page of these traces: how ranks wait for each other, then what to change in each, and tables."""
    parts = []
    if over_ranks:
        title = "Communication over ranks"
        parts.append(part("ranks", title, over_ranks_rows(over_ranks).html(f"{title}, means per run")))
    parts += _path(joined_graph, "ranks", "over ranks")
    parts += [_trace(trace, f"t{i}", len(traces) > 1, thresholds) for i, trace in enumerate(traces)]
    title = traces[0].path.name if len(traces) == 1 else f"{len(traces)} traces"
    return document(title, _subtitle(traces), joined(parts), {})


def _subtitle(traces: Sequence[Trace]) -> str:
    devices = {device.name for trace in traces for device in trace.devices if device.name}
    events = sum(trace.events for trace in traces)
    works = sum(trace.gpu_events for trace in traces)
    return " · ".join([f"{counted(events, 'event')}, {works or 'none'} of them on a device", *sorted(devices)])


def _trace(trace: Trace, id: str, is_one_of_many: bool, thresholds: Mapping[str, float]) -> Html:
    of = f"{trace.path.name}: " if is_one_of_many else ""
    shown = []
    for name, (short, title, by) in _ON_PAGE.items():
        found = TABLES[name](trace)
        left = len(found.rows) - MOST_ROWS
        caption = f"{title} ({left} more with less time)" if left > 0 else title
        shown.append(part(f"{id}{short or name}", f"{of}{title}", found.html(caption, MOST_ROWS, by)))
    shown += _path(trace.graph, id, "", of)
    return joined([part(f"{id}findings", f"{of}What to change", _findings(trace, thresholds)), *shown])


def _path(graph: Graph | str | None, id: str, over: str, of: str = "") -> list[Html]:
    """Return the critical path and what changes would bring."""
    title = f"{of}Critical path {over}".rstrip()
    if graph is None or isinstance(graph, str):
        return [] if graph is None else [part(f"{id}path", title, element("p", f"Unknown: {graph}."))]
    caption = f"Critical path {over}".rstrip() + ": what determines the length"
    jumped = "Where the path leads to the rank that reached a collective last"
    tables = [path_rows(graph).html(caption, MOST_ROWS), jump_rows(graph).html(jumped, MOST_ROWS)]
    changes = what_if_rows(graph).html("All steps after a change")
    return [part(f"{id}path", title, joined(tables)), part(f"{id}whatif", f"{of}What if {over}".rstrip(), changes)]


def _findings(trace: Trace, thresholds: Mapping[str, float]) -> Html:
    warned = [f"Incomplete: {doubt.message}." for doubt in trace.doubts] + [f"File: {note}." for note in trace.notes]
    scope = "Shares are of the steps." if trace.scope.is_steps else "No steps are marked: shares are of the recording."
    used = trace.scope.utilization if trace.has_gpu else None
    busy = "" if used is None else f" The device is busy for {used:.1%} of {trace.scope.time}{without_text(trace)}."
    missing = [f"{what}: {', '.join(codes)}" for what, codes in not_checked(trace).items()]
    found = [_finding(trace, finding) for finding in recommendations(trace, thresholds)]
    parts = [element("p", line, class_="note") for line in warned]
    parts.append(element("p", scope + busy))
    parts += [element("p", line) for line in one_step_lines([trace]) if line]
    parts.append(element("ol", *found) if found else element("p", "The rules that could run found no bottleneck."))
    if missing:
        parts.append(element("p", "Not checked, because the trace lacks:"))
        parts.append(element("ul", *(element("li", line) for line in missing)))
    return joined(parts)


def _finding(trace: Trace, finding: Finding) -> Html:
    saving = saving_text(finding, trace)
    return element("li", element("strong", f"{finding.message}."), saving, element("br"), f"{finding.fix}.")
