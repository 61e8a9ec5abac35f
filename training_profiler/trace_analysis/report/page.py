"""The analysis of traces as one HTML page that loads nothing: its tables can be sorted and searched."""

from collections.abc import Mapping, Sequence
from typing import Final

from training_profiler.base.html import Html, element, joined, part
from training_profiler.base.units import counted
from training_profiler.findings.finding import Finding
from training_profiler.page.document import document
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.critical_path.graph import Graph
from training_profiler.trace_analysis.report.formats import one_step_lines, saving_text, without_text
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, not_checked, recommendations
from training_profiler.trace_analysis.tables import (
    bandwidth_rows,
    edge_rows,
    gap_rows,
    jump_rows,
    kernel_rows,
    line_rows,
    module_rows,
    operator_rows,
    over_ranks_rows,
    path_rows,
    roofline_rows,
    sampled_rows,
    section_rows,
    step_rows,
    what_if_rows,
)
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 500  # of a table, those with most time
_TABLES: Final = (
    ("steps", "Steps", step_rows, ""),
    ("operators", "Operators", operator_rows, "host_self_ms"),
    ("kernels", "Kernels", kernel_rows, "total_ms"),
    ("roofline", "What operators achieve", roofline_rows, "device_ms"),
    ("bandwidth", "Bus bandwidth of collectives", bandwidth_rows, "total_ms"),
    ("gaps", "Gaps of the device", gap_rows, "length_ms"),
    ("idle_at_ends", "Idle before the first work and after the last", edge_rows, "length_ms"),
    ("sections", "Sections", section_rows, "host_total_ms"),
    ("modules", "Modules", module_rows, "host_total_ms"),
    ("lines", "Lines of the program", line_rows, "host_total_ms"),
    ("sampled", "Sampled lines", sampled_rows, "samples"),
)


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
    for name, title, table_of, by in _TABLES:
        found = table_of(trace)
        left = len(found.rows) - MOST_ROWS
        caption = f"{title} ({left} more with less time)" if left > 0 else title
        shown.append(part(f"{id}{name}", f"{of}{title}", found.html(caption, MOST_ROWS, by)))
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
