"""What is written to files: the tables of a trace as CSV and HTML, and a copy of the trace for Perfetto."""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from training_profiler.base.errors import TraceError
from training_profiler.base.html import Html, element, joined, part
from training_profiler.base.table import Column, Table
from training_profiler.base.units import counted
from training_profiler.reports.page_document import document
from training_profiler.trace_analysis.columns import GAP_CATEGORY, NONE, OWN_PROCESS, PATH_CATEGORY, Columns, Ints
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.counters import charts_of
from training_profiler.trace_analysis.critical_path import critical_path, outcomes, spans_of
from training_profiler.trace_analysis.events import PARTS
from training_profiler.trace_analysis.gaps import Gap
from training_profiler.trace_analysis.operators import SORT_KEYS, sorted_by
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.reader import read_text
from training_profiler.trace_analysis.report_figures import (
    bandwidth_data,
    counter_data,
    data_of,
    in_ms,
    jump_data,
    link_data,
    one_step_lines,
    outcome_data,
    place_data,
    rate_data,
    times_data,
    warnings_of,
    without_text,
)
from training_profiler.trace_analysis.rules_findings import THRESHOLDS, not_checked, recommendations, saving_text
from training_profiler.trace_analysis.trace import Trace, analyse


def ms_column(name: str, header: str) -> Column:
    """Return a column of times in ms, which text shows without their unit."""
    return Column(name, header, lambda value: f"{value:.3f}")


ON_HOST: Final = (Column("calls"), ms_column("host_self_ms", "host\nself"), ms_column("host_total_ms", "host\ntotal"))
ON_DEVICE: Final = (ms_column("device_self_ms", "device\nself"), ms_column("device_total_ms", "device\ntotal"))


def operator_rows(trace: Trace, sort: str = SORT_KEYS[0]) -> Table:
    """Return the operators, by shapes of their inputs where recorded."""
    rows = sorted_by(trace.operators_by_shape or trace.operators, sort)
    columns = (Column("operator", "operator\n(times in ms)"), *ON_HOST, *(ON_DEVICE if trace.has_gpu else ()))
    named = [data_of(row, "operator=name shapes section") | times_data(row, trace.has_gpu) for row in rows]
    return Table(named, columns)


def idle_rows(places: Sequence[Gap]) -> Table:
    """Return idle times in order of time."""
    fields = (
        "device at_ms length_ms cause share_of_cause=share step section module line host_in=stall_by "
        "ended_by=next_name launched_by=operator"
    )
    return Table([data_of(place, fields) for place in places])


def place_rows(kind: str, trace: Trace, header: str = "", name_of: Callable[[str], str] = str) -> Table:
    """Return places of one kind; text has names under ``header`` as ``name_of`` shortens them."""
    on_device = (*ON_DEVICE, ms_column("gaps_ms", "gaps")) if trace.has_gpu else ()
    columns = (Column("name", header, name_of), *ON_HOST, *on_device)
    return Table(place_data(kind, trace), columns)


def path_tables(graph: Graph | str | None) -> tuple[Table, Table, Table]:
    """Return the links of the critical path, the collectives at which it leads to another rank, and what if.

    They are empty if the path is unknown or was not asked for.
    """
    if not isinstance(graph, Graph):
        return Table([]), Table([]), Table([])
    path = critical_path(graph)
    changes = [
        outcome_data(*found) | ({} if path.step_ns is None else {"step_ms": in_ms(found[1]) / path.steps})
        for found in outcomes(graph, path)
    ]
    links = [link_data(link) | {"share": link.ns / path.wall_ns} for link in path.links]
    return Table(links), Table([jump_data(jump) for jump in path.jumps]), Table(changes)


def over_ranks_rows(ranks: Sequence[RankCollective]) -> Table:
    """Return waiting and transfer of each kind of collective over ranks, means per run, and whom the ranks wait for."""
    return Table(
        [
            data_of(row, "kind count transfer_ms waiting_ms")
            | {"waited_for": "; ".join(f"rank {rank}: {share:.0%}" for rank, share in row.late)}
            for row in ranks
        ]
    )


def counter_rows(trace: Trace) -> Table:
    """Return the counters, each of each device."""
    numbers = (Column(name, "", "{:.4g}".format) for name in ("least", "mean", "most", "busy", "gaps"))
    return Table(counter_data(trace), (*map(Column, ("counter", "device", "samples")), *numbers))


TABLES: Final[Mapping[str, Callable[[Trace], Table]]] = {
    "steps": lambda trace: Table(
        [
            {
                "step": part.name or "whole recording",
                "wall_ms": in_ms(part.wall_ns),
                **{f"{key[:-3]}_ms": in_ms(getattr(part, key)) if trace.has_gpu else None for key in PARTS},
            }
            for part in trace.scope.parts
        ]
    ),
    "operators": operator_rows,
    "kernels": lambda trace: Table(
        [
            data_of(row, "kernel=name kind calls total_ms mean_us occupancy blocks_per_sm")
            | {"tensor_cores": int(row.is_tensor_core)}
            for row in trace.kernels.rows
        ]
    ),
    "gaps": lambda trace: idle_rows(trace.gaps),
    "idle_at_ends": lambda trace: idle_rows(trace.edges),
    "counters": counter_rows,
    "collectives": lambda trace: Table(
        [data_of(row, "collective=kind count bytes total_ms hidden_ms") for row in trace.collectives]
    ),
    "roofline": lambda trace: Table(
        [rate_data(rate) | {"lacks": ", ".join(rate.lacks)} for rate in trace.roofline.rates]
    ),
    "bus_bandwidth": lambda trace: Table(bandwidth_data(trace)),
    "sections": lambda trace: place_rows("sections", trace),
    "modules": lambda trace: place_rows("modules", trace),
    "lines": lambda trace: place_rows("lines", trace),
    "sampled_lines": lambda trace: Table([data_of(row, "line=name samples in_gaps") for row in trace.code.sampled]),
    "critical_path": lambda trace: path_tables(trace.graph)[0],
    "what_if": lambda trace: path_tables(trace.graph)[2],
}
OVER_RANKS: Final = ("critical_path_over_ranks", "jumps_over_ranks", "what_if_over_ranks")  # as path_tables has them


MOST_ROWS: Final = 500  # of a table, those with most time
# The tables of a page: the end of their id if it is not their name, their title, and by what rows come first.
_ON_PAGE: Final = {
    "steps": ("", "Steps", ""),
    "operators": ("", "Operators", "host_self_ms"),
    "kernels": ("", "Kernels", "total_ms"),
    "roofline": ("", "What operators achieve", "device_ms"),
    "bus_bandwidth": ("bandwidth", "Bus bandwidth of collectives", "total_ms"),
    "gaps": ("", "Gaps of the device", "length_ms"),
    "counters": ("", "Counters, while the device is busy and in its gaps", ""),
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
    only = traces[0] if len(traces) == 1 else None  # the axis of the charts is of one recording
    charts = charts_of(only.counters, only.devices, only.extent) if only else []
    parts.append(
        part(
            "machine", "Counters over time", *(element("div", id="machine-charts", class_="charts") for _ in charts[:1])
        )
    )
    parts += [_trace(trace, f"t{i}", len(traces) > 1, thresholds) for i, trace in enumerate(traces)]
    title = traces[0].path.name if len(traces) == 1 else f"{len(traces)} traces"
    devices = {device.name for trace in traces for device in trace.devices if device.name}
    events = sum(trace.events for trace in traces)
    works = sum(trace.gpu_events for trace in traces)
    return document(
        title,
        " · ".join([f"{counted(events, 'event')}, {works or 'none'} of them on a device", *sorted(devices)]),
        joined(parts),
        {"machine": charts},
    )


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
    title = f"{of}Critical path {over}".rstrip()
    if graph is None or isinstance(graph, str):
        return [] if graph is None else [part(f"{id}path", title, element("p", f"Unknown: {graph}."))]
    caption = f"Critical path {over}".rstrip() + ": what determines the length"
    jumped = "Where the path leads to the rank that reached a collective last"
    links, jumps, changes = path_tables(graph)
    found = joined([links.html(caption, MOST_ROWS), jumps.html(jumped, MOST_ROWS)])
    what_if = part(f"{id}whatif", f"{of}What if {over}".rstrip(), changes.html("All steps after a change"))
    return [part(f"{id}path", title, found), what_if]


def _findings(trace: Trace, thresholds: Mapping[str, float]) -> Html:
    scope = "Shares are of the steps." if trace.scope.is_steps else "No steps are marked: shares are of the recording."
    used = trace.scope.utilization if trace.has_gpu else None
    busy = "" if used is None else f" The device is busy for {used:.1%} of {trace.scope.time}{without_text(trace)}."
    missing = [f"{what}: {', '.join(codes)}" for what, codes in not_checked(trace).items()]
    found = [
        element("li", element("strong", f"{each.message}."), saving_text(each, trace), element("br"), f"{each.fix}.")
        for each in recommendations(trace, thresholds)
    ]
    parts = [element("p", line, class_="note") for line in warnings_of(trace)]
    parts.append(element("p", scope + busy))
    parts += [element("p", line) for line in one_step_lines([trace]) if line]
    parts.append(element("ol", *found) if found else element("p", "The rules that could run found no bottleneck."))
    if missing:
        parts.append(element("p", "Not checked, because the trace lacks:"))
        parts.append(element("ul", *(element("li", line) for line in missing)))
    return joined(parts)


_LIST: Final = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[')


def annotated(path: Path) -> bytes:
    """Return the trace in ``path`` with more events: all of its own are kept as they are. Gzipped if the file is.

    Raises:
        TraceError: The file cannot be read or is not a trace. The message has one line.
    """
    analysis = analyse(path)
    text = read_text(path)
    begin = _LIST.search(text)
    if begin is None:
        raise TraceError(f"{path} cannot be annotated: its list of events was not found")
    added = ",\n".join(_written(event) for event in _events(analysis)).encode()
    copy = b"".join((text[: begin.end()], b"\n", added, b",\n", text[begin.end() :]))
    return gzip.compress(copy, compresslevel=4, mtime=0) if path.suffix == ".gz" else copy


def _events(analysis: Trace) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, OWN_PROCESS)
    devices = [device.index for device in analysis.devices]
    for index in devices:
        yield _named("thread_name", index, f"gaps of device {index}")
    for place in analysis.idle_times:
        details = {
            "step": place.step,
            "module": place.module,
            "line": place.line,
            "host in": place.stall_by,
            "ended by": place.next_name,
            "launched by": place.operator,
        }
        known = {key: value for key, value in details.items() if value}
        yield _span(GAP_CATEGORY, place.cause, place.device, place.begin_ns, place.end_ns, known)
    if isinstance(analysis.graph, Graph):
        thread = 1 + max(devices, default=0)
        yield _named("thread_name", thread, "critical path")
        for span in spans_of(analysis.graph):
            name = span.name or span.kind
            yield _span(PATH_CATEGORY, name, thread, span.begin_ns, span.end_ns, {"kind": span.kind})
    for index in devices:
        yield from _counters(analysis.columns, analysis.launches.call, index)


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": OWN_PROCESS, "tid": thread, "args": {"name": name}}


def _span(category: str, name: str, thread: int, begin_ns: int, end_ns: int, args: dict[str, str]) -> dict[str, Any]:
    times = {"ts": begin_ns, "dur": end_ns - begin_ns}
    return {"ph": "X", "cat": category, "name": name, "pid": OWN_PROCESS, "tid": thread, **times, "args": args}


def _counters(columns: Columns, call: Ints, device: int) -> Iterator[dict[str, Any]]:
    works = np.flatnonzero(columns.is_gpu() & (columns.device == device) & (call != NONE))
    begins = columns.begin_ns[works]
    launched = np.minimum(columns.begin_ns[call[works]], begins)
    yield from _counter(f"queued work of device {device}", "launched", launched, begins, np.ones(len(works)))
    copies = np.flatnonzero(columns.is_of("gpu_memcpy") & (columns.device == device) & (columns.bytes > 0))
    lengths = columns.end_ns[copies] - columns.begin_ns[copies]
    copies, lengths = copies[lengths > 0], lengths[lengths > 0]
    rates = columns.bytes[copies] / lengths  # bytes per ns are GB per s
    name = f"copies of device {device}"
    yield from _counter(name, "GB/s", columns.begin_ns[copies], columns.end_ns[copies], rates)


def _counter(
    name: str, unit: str, begin_ns: Ints, end_ns: Ints, height: "np.ndarray[Any, np.dtype[np.float64]]"
) -> Iterator[dict[str, Any]]:
    at_ns = np.concatenate([begin_ns, end_ns])
    changes = np.concatenate([height, -height])
    order = np.argsort(at_ns, kind="stable")
    times, sums = at_ns[order], np.cumsum(changes[order])
    is_last = np.append(times[1:] != times[:-1], True)[: len(times)]  # of several changes at a time the sum counts
    for at, value in zip(times[is_last].tolist(), sums[is_last].tolist(), strict=True):
        shown = round(abs(value), 3)
        yield {"ph": "C", "name": name, "pid": OWN_PROCESS, "tid": 0, "ts": at, "args": {unit: shown}}


def _written(event: Mapping[str, Any]) -> str:
    """Return an event as JSON; times are given in ns and written in us, digit by digit: a float has too few."""
    times = "".join(f', "{key}": {event[key] // 1000}.{event[key] % 1000:03d}' for key in ("ts", "dur") if key in event)
    return json.dumps({key: value for key, value in event.items() if key not in ("ts", "dur")})[:-1] + times + "}"
