"""The views of one analysed trace, each as text."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.base.table import WIDTH, shortened, table, with_details, wrapped
from training_profiler.base.units import NS_PER_MS, counted
from training_profiler.findings.finding import check_lines
from training_profiler.trace_analysis.checklist import checks
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.idle_times import AttributedGap
from training_profiler.trace_analysis.report import work
from training_profiler.trace_analysis.report.critical_path import render_critical_path
from training_profiler.trace_analysis.report.figures import (
    amount,
    finding_lines,
    gap_causes,
    kernel,
    ms,
    not_checked_lines,
    one_step_lines,
    percent,
    warnings_of,
    without_text,
)
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, not_checked, recommendations
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 25
MOST_GAPS: Final = 10
UNTRUSTED: Final = "These gaps cannot be trusted: the overview says what is missing or cannot be right."
MUCH_LATER: Final = 0.1  # of the steps
MOST_MARK: Final = 60  # characters of an annotation's name
CRITICAL_PATH: Final = "critical-path"  # needs the graph of the trace
VIEWS: Final = (
    "overview",
    "operators",
    "code",
    "kernels",
    "roofline",
    "trace",
    "memory",
    "communication",
    CRITICAL_PATH,
    "checklist",
    "recommendations",
)
PARTS: Final = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")  # of a step


def render_view(
    name: str,
    analysis: Trace,
    sort: str,
    over_ranks: Sequence[RankCollective] = (),
    thresholds: Mapping[str, float] = THRESHOLDS,
) -> str:
    """Return one of ``VIEWS`` as text, with its heading."""
    views: dict[str, Callable[[], str]] = {
        "overview": lambda: _overview(analysis),
        "operators": lambda: work.operators(analysis, sort),
        "code": lambda: work.code(analysis),
        "kernels": lambda: work.kernels(analysis),
        "roofline": lambda: work.roofline(analysis),
        "trace": lambda: _trace(analysis),
        "memory": lambda: _memory(analysis),
        "communication": lambda: work.communication(analysis, over_ranks),
        CRITICAL_PATH: lambda: render_critical_path(analysis.graph),
        "checklist": lambda: "\n".join(check_lines(checks(analysis), WIDTH)),
        "recommendations": lambda: _recommendations(analysis, thresholds),
    }
    return f"=== {name.replace('-', ' ').capitalize()} ===\n{views[name]()}\n"


def _overview(analysis: Trace) -> str:
    lines = [*_title(analysis), ""]
    lines += [_steps(analysis) if analysis.steps else wrapped(_without_steps(analysis)), ""]
    if len(analysis.devices) > 1:
        lines += [_devices(analysis), ""]
    if analysis.has_gpu:
        mark = "" if analysis.is_whole else " (incomplete, see above)"
        if analysis.utilization_in_steps is not None:
            used = f"GPU utilization: {analysis.utilization_in_steps:.1%} of the steps{without_text(analysis)}{mark}"
            lines.append(wrapped(used, rest="  "))
            lines += _ahead(analysis)
        busy = analysis.device.busy.total_ns
        part = busy / max(1, analysis.span_ns)
        extent = f"First to last device work: {ms(analysis.span_ns)}, {part:.1%} of it busy ({ms(busy)}){mark}"
        lines += [
            wrapped(extent, rest="  "),
            f"Idle time: {counted(len(analysis.gaps), 'gap')} of 30 us or more{mark}",
        ]
    loading = analysis.data_loading
    if loading.count:
        lines.append(f"DataLoader: {ms(loading.total_ns)} in {counted(loading.count, 'wait')} for a batch")
    if analysis.host_collectives:
        lines.append(wrapped(work.on_host(analysis), rest="  "))
    if analysis.step_variation is not None:
        lines.append(wrapped(_variation(analysis), rest="  "))
        pace = analysis.pace_variation
        if pace is not None and pace < analysis.step_variation:
            ahead = f"The host runs ahead: the time that the device needs for each step varies by {pace:.1%}"
            lines.append(wrapped(ahead, rest="  "))
    return "\n".join(lines)


def _ahead(analysis: Trace) -> list[str]:
    """Return how long the device works on after the steps, if that is much: their idle time says little then."""
    later_ns = analysis.settled_ns - analysis.program_ns
    if later_ns <= MUCH_LATER * analysis.program_ns:
        return []
    return [wrapped(f"The host runs ahead: the device needs {ms(later_ns)} more for the work of the steps", rest="  ")]


def _variation(analysis: Trace) -> str:
    """Return how much steps vary; without the first where that is half or less: the recording starts in it."""
    said = f"Step time varies by {percent(analysis.step_variation)}"
    varies, later = analysis.step_variation, analysis.later_variation
    if varies is not None and later is not None and 2 * later < varies:
        said += f", {percent(later)} without the first step"
    return f"{said} (coefficient of variation)"


def _without_steps(analysis: Trace) -> str:
    repeated = analysis.scope.repetition
    recurs = f" {shortened(repeated.name, MOST_MARK)} recurs {repeated.count} times." if repeated else ""
    return (
        f"No steps are marked, so shares are of the whole recording.{recurs} Call profiler.step() after each step to "
        "mark them."
    )


def _title(analysis: Trace) -> list[str]:
    devices = ", ".join(dict.fromkeys(device.name for device in analysis.devices if device.name))
    where = f" ({devices})" if devices else ""
    of = f" of {analysis.world_size}" if analysis.world_size else ""
    rank = "" if analysis.rank is None else f", rank {analysis.rank}{of}"
    on_device = analysis.gpu_events or "none"
    events = f"{counted(analysis.events, 'event')}, {on_device} of them on the device{where}{rank}"
    return [analysis.path.name, wrapped(events), *warnings_of(analysis)]


def _steps(analysis: Trace) -> str:
    if not analysis.has_gpu:
        return table(("step", "wall"), [(step.name, ms(step.wall_ns)) for step in analysis.steps])
    headers = ("step", "wall", "compute", "exposed\ncommunication", "exposed\ncopies", "idle")
    keys = ("wall_ns", *PARTS)
    rows: list[Sequence[object]] = [
        (step.name, *(ms(getattr(step, key)) for key in keys)) for step in analysis.steps[:MOST_ROWS]
    ]
    sums = [sum(getattr(step, key) for step in analysis.steps) for key in keys]
    rows.append((f"all {len(analysis.steps)}", *(ms(value) for value in sums)))
    rows.append(("", *(percent(value / max(1, sums[0])) for value in sums)))
    return table(headers, rows)


def _devices(analysis: Trace) -> str:
    """Return the devices of the file one by one; the table of steps takes them together."""
    rows = [
        (
            f"device {device.index}",
            ms(device.device.busy.total_ns),
            percent(device.utilization_in_steps),
            *(ms(sum(getattr(step, key) for step in device.steps)) for key in PARTS),
        )
        for device in analysis.devices
    ]
    headers = ("", "busy", "of\nsteps", "compute", "exposed\ncomm.", "exposed\ncopies", "idle")
    return table(headers, rows)


def _trace(analysis: Trace) -> str:
    if not analysis.has_gpu:
        return "This trace contains no work of a device, so there are no gaps to explain."
    total = sum(gap.gap.length_ns for gap in analysis.gaps)
    lines = [] if analysis.is_whole else [wrapped(UNTRUSTED)]
    lines += [f"{counted(len(analysis.gaps), 'gap')} of 30 us or more, {ms(total)} in total"]
    lines += [
        f"  {cause}: {value:.3f} ms ({percent(value * NS_PER_MS / total)})"
        for cause, value in gap_causes(analysis).items()
    ]
    lines += _edges(analysis)
    longest = sorted(analysis.gaps, key=lambda gap: -gap.gap.length_ns)[:MOST_GAPS]
    rows = [
        (ms(gap.gap.begin_ns - analysis.begin_ns), ms(gap.gap.length_ns), gap.gap.cause, gap.step) for gap in longest
    ]
    gaps = table(("at", "length", "cause", "step"), rows, left=(2, 3), name=3)
    lines += ["", with_details(gaps, [_around(gap) for gap in longest])] if rows else []
    copies = [(copy.name, copy.count, ms(copy.total_ns), amount(copy.bytes)) for copy in analysis.copies]
    if copies:
        lines += ["", table(("copy", "count", "time", "amount"), copies)]
    calls = [(call.name, call.count, ms(call.total_ns)) for call in (*analysis.synchronizations, *analysis.allocations)]
    if calls:
        lines += ["", table(("call of the host", "count", "time"), calls)]
    return "\n".join(lines)


def _edges(analysis: Trace) -> list[str]:
    """Return the idle time of steps that lies before the first work and after the last."""
    if not analysis.edges:
        return []
    total = sum(edge.in_scope_ns for edge in analysis.edges)
    said = f"Idle in the steps before a device's first work and after its last: {ms(total)}"
    lines = ["", wrapped(said, rest="  ")]
    sums: Counter[tuple[int, str, str]] = Counter()  # the recording can hold up the host several times
    for edge in analysis.edges:
        when = "before" if edge.next_name else "after"
        around = ", ".join(filter(None, (edge.stall.by and f"host in {edge.stall.by}", edge.where)))
        for cause, _ in edge.gap.shares:
            at = f" ({around})" if around and cause == edge.gap.cause else ""
            sums[edge.gap.device, when, cause + at] += edge.ns_of(cause)
    for (_, when, what), ns in sums.items():
        lines.append(wrapped(f"{when}: {ms(ns)}, {what}", first="  ", rest="    "))
    return lines


def _around(gap: AttributedGap) -> str:
    """Return where the host was in a gap, and what ended it."""
    is_known = gap.where and gap.operator  # then the name of the kernel says least
    parts = (
        gap.stall.by and f"host in {gap.stall.by}",
        gap.where,
        "" if is_known else f"ended by {kernel(gap.next_name)}",
        gap.operator and f"launched by {gap.operator}",
    )
    return ", ".join(filter(None, parts))


def _memory(analysis: Trace) -> str:
    if not analysis.memory:
        return "Memory was not recorded (torch.profiler.profile(profile_memory=True) does)."
    rows = [
        (
            row.device,
            amount(row.peak_bytes) + (" above start" if row.is_peak_relative else ""),
            row.peak_step,
            row.peak_section,
            amount(row.reserved_peak_bytes),
            amount(row.unused_at_peak_bytes),
            "yes" if row.grows else "no" if len(row.step_end_bytes) > 3 else "",
        )
        for row in analysis.memory
    ]
    headers = ("device", "peak", "in step", "in section", "reserved", "unused\nat peak", "grows")
    return table(headers, rows, name=3)


def _recommendations(analysis: Trace, thresholds: Mapping[str, float]) -> str:
    lines = [line for finding in recommendations(analysis, thresholds) for line in finding_lines(finding, analysis)]
    missing = not_checked(analysis)
    if not lines:
        lines = ["No bottleneck found." if not missing else "The rules that could run found no bottleneck."]
    return "\n".join([*one_step_lines([analysis]), *lines, *not_checked_lines(missing)])
