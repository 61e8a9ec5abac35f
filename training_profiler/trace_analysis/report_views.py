"""The views of one analysed trace, and the critical path over ranks and a memory snapshot, each as text."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.base.table import shortened, table, text_width, with_details, wrapped
from training_profiler.base.units import NS_PER_MS, counted
from training_profiler.diagnosis.finding import check_lines
from training_profiler.trace_analysis import report_work as work
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.critical_path import Link, Path, critical_path, outcomes
from training_profiler.trace_analysis.events import PARTS, sum_of
from training_profiler.trace_analysis.memory_snapshot import Held, MemoryPeak, SnapshotOfDevice
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.report_figures import (
    amount,
    finding_lines,
    gap_causes,
    kernel,
    listing,
    ms,
    not_checked_lines,
    one_step_lines,
    percent,
    warnings_of,
    without_text,
)
from training_profiler.trace_analysis.rules_findings import THRESHOLDS, checks, not_checked, recommendations
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 25
MOST_GAPS: Final = 10
UNTRUSTED: Final = "These gaps cannot be trusted: the overview says what is missing or cannot be right."
MUCH_LATER: Final = 0.1  # of the steps
MOST_MARK: Final = 60  # characters of an annotation's name
CRITICAL_PATH: Final = "critical-path"  # needs the graph of the trace
# Each takes a trace, the order of operators, communication over ranks, and thresholds of rules.
VIEWS: Final[Mapping[str, Callable[[Trace, str, Sequence[RankCollective], Mapping[str, float]], str]]] = {
    "overview": lambda trace, *_: _overview(trace),
    "operators": lambda trace, sort, *_: work.operators(trace, sort),
    "code": lambda trace, *_: work.code(trace),
    "kernels": lambda trace, *_: work.kernels(trace),
    "roofline": lambda trace, *_: work.roofline(trace),
    "trace": lambda trace, *_: _trace(trace),
    "counters": lambda trace, *_: work.counters(trace),
    "memory": lambda trace, *_: _memory(trace),
    "communication": lambda trace, _, over_ranks, __: work.communication(trace, over_ranks),
    CRITICAL_PATH: lambda trace, *_: render_path(trace.graph),
    "checklist": lambda trace, *_: "\n".join(check_lines(checks(trace), text_width())),
    "recommendations": lambda trace, _, __, thresholds: _recommendations(trace, thresholds),
}


def render_view(
    name: str,
    analysis: Trace,
    sort: str,
    over_ranks: Sequence[RankCollective] = (),
    thresholds: Mapping[str, float] = THRESHOLDS,
) -> str:
    """Return one of ``VIEWS`` as text, with its heading."""
    text = VIEWS[name](analysis, sort, over_ranks, thresholds)
    return f"=== {name.replace('-', ' ').capitalize()} ===\n{text}\n"


def _overview(analysis: Trace) -> str:
    devices = ", ".join(dict.fromkeys(device.name for device in analysis.devices if device.name))
    where = f" ({devices})" if devices else ""
    of = f" of {analysis.world_size}" if analysis.world_size else ""
    rank = "" if analysis.rank is None else f", rank {analysis.rank}{of}"
    on_device = analysis.gpu_events or "none"
    events = f"{counted(analysis.events, 'event')}, {on_device} of them on the device{where}{rank}"
    warned = [wrapped(line, rest="  ") for line in warnings_of(analysis)]
    lines = [analysis.path.name, wrapped(events), *warned, ""]
    lines += [_steps(analysis) if analysis.steps else wrapped(_without_steps(analysis)), ""]
    if len(analysis.devices) > 1:
        lines += [_devices(analysis), ""]
    if analysis.has_gpu:
        mark = "" if analysis.is_whole else " (incomplete, see above)"
        if analysis.utilization_in_steps is not None:
            used = f"GPU utilization: {analysis.utilization_in_steps:.1%} of the steps{without_text(analysis)}{mark}"
            lines.append(wrapped(used, rest="  "))
            later_ns = analysis.settled_ns - analysis.program_ns  # then the idle time of the steps says little
            if later_ns > MUCH_LATER * analysis.program_ns:
                said = f"The host runs ahead: the device needs {ms(later_ns)} more for the work of the steps"
                lines.append(wrapped(said, rest="  "))
        busy = analysis.device.busy.total_ns
        part = busy / max(1, analysis.span_ns)
        extent = f"First to last device work: {ms(analysis.span_ns)}, {part:.1%} of it busy ({ms(busy)}){mark}"
        lines += [wrapped(extent, rest="  "), f"Idle time: {counted(len(analysis.gaps), 'gap')} of 30 us or more{mark}"]
    loading = analysis.data_loading
    if loading.count:
        lines.append(f"DataLoader: {ms(loading.total_ns)} in {counted(loading.count, 'wait')} for a batch")
    if analysis.host_collectives:
        lines.append(wrapped(work.on_host(analysis), rest="  "))
    if analysis.step_variation is not None:
        said = f"Step time varies by {percent(analysis.step_variation)}"
        varies, later = analysis.step_variation, analysis.later_variation
        if varies is not None and later is not None and 2 * later < varies:
            said += f", {percent(later)} without the first step"
        lines.append(wrapped(f"{said} (coefficient of variation)", rest="  "))
        pace = analysis.pace_variation
        if pace is not None and pace < analysis.step_variation:
            ahead = f"The host runs ahead: the time that the device needs for each step varies by {pace:.1%}"
            lines.append(wrapped(ahead, rest="  "))
    return "\n".join(lines)


def _without_steps(analysis: Trace) -> str:
    scope = analysis.scope
    recurs = f" {shortened(scope.recurs, MOST_MARK)} recurs {scope.repetitions} times." if scope.recurs else ""
    return (
        f"No steps are marked, so shares are of the whole recording.{recurs} Call profiler.step() after each step to "
        "mark them."
    )


def _steps(analysis: Trace) -> str:
    if not analysis.has_gpu:
        return table(("step", "wall"), [(step.name, ms(step.wall_ns)) for step in analysis.steps])
    headers = ("step", "wall", "compute", "exposed\ncommunication", "exposed\ncopies", "idle")
    keys = ("wall_ns", *PARTS)
    rows: list[Sequence[object]] = [
        (step.name, *(ms(getattr(step, key)) for key in keys)) for step in analysis.steps[:MOST_ROWS]
    ]
    sums = [getattr(analysis.scope.total, key) for key in keys]
    rows.append((f"all {len(analysis.steps)}", *(ms(value) for value in sums)))
    rows.append(("", *(percent(value / max(1, sums[0])) for value in sums)))
    return table(headers, rows)


def _devices(analysis: Trace) -> str:
    rows = []
    for device in analysis.devices:
        busy = ms(device.device.busy.total_ns), percent(device.utilization_in_steps)
        parts = (ms(getattr(sum_of(device.steps), key)) for key in PARTS)
        rows.append((f"device {device.index}", *busy, *parts))
    headers = ("", "busy", "of\nsteps", "compute", "exposed\ncomm.", "exposed\ncopies", "idle")
    return table(headers, rows)


def _trace(analysis: Trace) -> str:
    if not analysis.has_gpu:
        return "This trace contains no work of a device, so there are no gaps to explain."
    total = sum(gap.length_ns for gap in analysis.gaps)
    lines = [] if analysis.is_whole else [wrapped(UNTRUSTED)]
    lines += [f"{counted(len(analysis.gaps), 'gap')} of 30 us or more, {ms(total)} in total"]
    lines += [
        f"  {cause}: {value:.3f} ms ({percent(value * NS_PER_MS / total)})"
        for cause, value in gap_causes(analysis).items()
    ]
    lines += _edges(analysis)
    longest = sorted(analysis.gaps, key=lambda gap: -gap.length_ns)[:MOST_GAPS]
    rows = [(ms(gap.at_ns), ms(gap.length_ns), gap.cause, gap.step) for gap in longest]
    gaps = table(("at", "length", "cause", "step"), rows, left=(2, 3), name=3)
    details = []
    for gap in longest:  # where the host was, and what ended it
        is_known = gap.where and gap.operator  # then the name of the kernel says least
        parts = (
            gap.stall_by and f"host in {gap.stall_by}",
            gap.where,
            "" if is_known else f"ended by {kernel(gap.next_name)}",
            gap.operator and f"launched by {gap.operator}",
        )
        details.append(", ".join(filter(None, parts)))
    lines += ["", with_details(gaps, details)] if rows else []
    copies = [(copy.name, copy.count, ms(copy.total_ns), amount(copy.bytes)) for copy in analysis.copies]
    if copies:
        lines += ["", table(("copy", "count", "time", "amount"), copies)]
    calls = [(call.name, call.count, ms(call.total_ns)) for call in (*analysis.synchronizations, *analysis.allocations)]
    if calls:
        lines += ["", table(("call of the host", "count", "time"), calls)]
    return "\n".join(lines)


def _edges(analysis: Trace) -> list[str]:
    if not analysis.edges:
        return []
    total = sum(edge.in_scope_ns for edge in analysis.edges)
    said = f"Idle in the steps before a device's first work and after its last: {ms(total)}"
    lines = ["", wrapped(said, rest="  ")]
    sums: Counter[tuple[int, str, str]] = Counter()  # the recording can hold up the host several times
    for edge in analysis.edges:
        when = "before" if edge.next_name else "after"
        around = ", ".join(filter(None, (edge.stall_by and f"host in {edge.stall_by}", edge.where)))
        for cause, _ in edge.shares:
            at = f" ({around})" if around and cause == edge.cause else ""
            sums[edge.device, when, cause + at] += edge.ns_of(cause)
    for (_, when, what), ns in sums.items():
        lines.append(wrapped(f"{when}: {ms(ns)}, {what}", first="  ", rest="    "))
    return lines


def _memory(analysis: Trace) -> str:
    if not analysis.memory:
        return "Memory was not recorded (torch.profiler.profile(profile_memory=True) does)."
    rows = []
    for row in analysis.memory:
        peak = amount(row.peak_bytes) + (" above start" if row.is_peak_relative else "")
        reserved, unused = amount(row.reserved_peak_bytes), amount(row.unused_at_peak_bytes)
        grows = "yes" if row.grows else "no" if len(row.step_end_bytes) > 3 else ""
        rows.append((row.device, peak, row.peak_step, row.peak_section, reserved, unused, grows))
    headers = ("device", "peak", "in step", "in section", "reserved", "unused\nat peak", "grows")
    return table(headers, rows, name=3)


def _recommendations(analysis: Trace, thresholds: Mapping[str, float]) -> str:
    lines = [line for finding in recommendations(analysis, thresholds) for line in finding_lines(finding, analysis)]
    missing = not_checked(analysis)
    if not lines:
        lines = ["No bottleneck found." if not missing else "The rules that could run found no bottleneck."]
    return "\n".join([*one_step_lines([analysis]), *lines, *not_checked_lines(missing)])


MOST_LINKS: Final = 15
MOST_JUMPS: Final = 5
NO_NAME: Final = "(no operator or annotation)"
ASSUMED: Final = (
    "An estimate from what waits for what, with all other times as recorded. A change brings less if it slows down "
    "something else."
)


def render_path(graph: Graph | str | None, what: str = "of this trace", of: str = "this trace") -> str:
    """Return the critical path ``what`` as text, or why there is none; ``of`` is the trace, or the traces."""
    if graph is None or isinstance(graph, str):
        return wrapped(f"The critical path {what} is unknown: {graph or 'it was not computed'}.")
    path = critical_path(graph)
    if not path.wall_ns:
        return f"Nothing in {of} takes time."
    parts = [_title(path, len(graph.sides))]
    if graph.is_of_ranks:
        parts.append(_sums(path, {f"rank {rank}": ns for rank, ns in path.ranks_ns.items()}))
    if graph.is_of_ranks and path.jumps:
        headers = ("the path leaves a collective", "of", "for", "times")
        jumps = [
            (kernel(jump.name), f"rank {jump.waiting}", f"rank {jump.waited_for}", jump.count) for jump in path.jumps
        ]
        parts.append(listing(headers, jumps, list, MOST_JUMPS, left=(0, 1, 2)))
    parts += [_sums(path, path.kinds_ns | {"all": path.wall_ns}), _path_links(path, graph.is_of_ranks)]
    each, of = (1, "it takes") if path.step_ns is None else (path.steps, "a step takes")
    rows = []
    for what_if, wall_ns in outcomes(graph, path):
        name = f": {kernel(what_if.name)}" if what_if.name else ""
        change = percent(round(wall_ns / path.wall_ns - 1, 3) + 0.0)  # without a sign if it rounds to nothing
        rows.append((f"{what_if.what}{name}", ms(wall_ns / each), change))
    return "\n\n".join([*parts, table(("if", of, "change"), rows), wrapped(ASSUMED)])


def _title(path: Path, ranks: int) -> str:
    over = f" over {ranks} ranks" if ranks > 1 else ""
    after = f", from when the device began with it, after {ms(path.earlier_ns)}" if path.earlier_ns else ""
    after += f", without {ms(path.recording_ns)} of the recording itself" if path.recording_ns else ""
    if not path.steps:
        what = f"the recording{over} and the work that it launched"
    else:
        what = f"{counted(path.steps, 'step')}{over} and the work that {'they' if path.steps > 1 else 'it'} launched"
    each = f", {ms(path.step_ns)} a step" if path.steps > 1 and path.step_ns is not None else ""
    return wrapped(f"What determines the length of {what}{after}: {ms(path.wall_ns)}{each}")


def _sums(path: Path, times_ns: Mapping[str, int]) -> str:
    rows = [(what, ms(ns), percent(ns / path.wall_ns)) for what, ns in times_ns.items()]
    return table(("on the path", "time", "share"), rows)


def _path_links(path: Path, is_of_ranks: bool) -> str:
    headers = ("longest", *(("rank",) if is_of_ranks else ()), "kind", "time", "share")

    def row_of(link: Link) -> tuple[object, ...]:
        rank = (link.rank,) if is_of_ranks else ()
        return kernel(link.name) or NO_NAME, *rank, link.kind, ms(link.ns), percent(link.ns / path.wall_ns)

    return listing(headers, path.links, row_of, MOST_LINKS, left=(0, headers.index("kind")))


MOST_PLACES: Final = 12
MOST_FAILED: Final = 3
PLACE_WIDTH: Final = 70


def render_snapshot(name: str, devices: Sequence[SnapshotOfDevice]) -> str:
    """Return what fills the memory of each device."""
    if not devices:
        return f"{name}: no device memory was reserved, and no history was recorded."
    return "\n\n".join(_device(name, device) for device in devices)


def _device(name: str, device: SnapshotOfDevice) -> str:
    reserved = device.reserved_bytes
    parts = [
        wrapped(f"{name}, device {device.device}: {amount(reserved)} reserved in {counted(device.segments, 'segment')}")
    ]
    if reserved:
        sizes = [
            ("tensors", device.requested_bytes),
            ("rounding of their sizes", device.rounding_bytes),
            ("freed, another stream may still use it", device.awaiting_bytes),
            ("unused, in segments partly in use", device.unused_in_use_bytes),
            ("unused, in empty segments", device.unused_empty_bytes),
            ("reserved", reserved),
        ]
        parts.append(table(("", "", "of reserved"), [(what, amount(n), percent(n / reserved)) for what, n in sizes]))
        if device.largest_unused_bytes:
            parts.append(f"Largest unused block: {amount(device.largest_unused_bytes)}")
    if device.by_place:
        parts.append(_held("Live tensors", device.by_phase, device.by_place, device.requested_bytes))
    if device.peak is not None:
        parts.append(_peak(device.peak))
    parts += [
        wrapped(
            f"Out of memory: {amount(failed.bytes)} requested at {shortened(failed.place, PLACE_WIDTH)}"
            + ("" if failed.free_bytes is None else f", with {amount(failed.free_bytes)} free on the device")
        )
        for failed in device.out_of_memory[-MOST_FAILED:]
    ]
    return "\n\n".join(parts)


def _peak(peak: MemoryPeak) -> str:
    when = "" if peak.before_end_s is None else f", {peak.before_end_s:.3f} s before the end"
    title = f"Peak of {amount(peak.bytes)}{when} (the highest in a history of {counted(peak.entries, 'event')})"
    return _held(title, peak.by_phase, peak.by_place, peak.bytes)


def _held(title: str, by_phase: Sequence[Held], by_place: Sequence[Held], total: int) -> str:
    phases = ", ".join(f"{held.phase} {percent(held.bytes / max(1, total))}" for held in by_phase)
    rows = [
        (held.place, held.phase, held.blocks, amount(held.bytes), percent(held.bytes / max(1, total)))
        for held in by_place[:MOST_PLACES]
    ]
    rest = by_place[MOST_PLACES:]
    if rest:
        rest_bytes = sum(held.bytes for held in rest)
        blocks = sum(held.blocks for held in rest)
        rows.append((f"{len(rest)} more places", "", blocks, amount(rest_bytes), percent(rest_bytes / max(1, total))))
    headers = ("requested at", "phase", "blocks", "", "")
    return f"{wrapped(f'{title}: {phases}')}\n{table(headers, rows, left=(0, 1))}"
