"""The views of one analysed trace, each as text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.findings.check import check_lines
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import checks
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.operators import sorted_by
from training_profiler.trace_analysis.report.ranks import communication_over_ranks
from training_profiler.trace_analysis.report.tables import amount, counted, kernel, ms, percent, short, table, us
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, recommendations
from training_profiler.trace_analysis.trace_json import gap_causes, saving_ms

MOST_ROWS: Final = 25
MOST_GAPS: Final = 10
VIEWS: Final = (
    "overview",
    "operators",
    "kernels",
    "trace",
    "memory",
    "communication",
    "checklist",
    "recommendations",
)


def render_view(
    name: str,
    analysis: Analysis,
    sort: str,
    over_ranks: Sequence[RankCollective] = (),
    thresholds: Mapping[str, float] = THRESHOLDS,
) -> str:
    """Return one of ``VIEWS`` as text, with its heading."""
    if name == "operators":
        body = _operators(analysis, sort)
    elif name == "communication":
        body = _communication(analysis, over_ranks)
    elif name == "recommendations":
        body = _recommendations(analysis, thresholds)
    else:
        body = _RENDERERS[name](analysis)
    return f"=== {name.capitalize()} ===\n{body}\n"


def _overview(analysis: Analysis) -> str:
    lines = [_title(analysis), ""]
    if analysis.steps:
        lines += [_steps(analysis), ""]
    else:
        lines += ["No steps are marked (profiler.step() after each step marks them).", ""]
    if len(analysis.devices) > 1:
        lines += [_devices(analysis), ""]
    if analysis.has_gpu:
        if analysis.utilization_in_steps is not None:
            lines.append(f"GPU utilization: {analysis.utilization_in_steps:.1%} of the steps")
        busy = analysis.device.busy.total_ns
        lines.append(
            f"Over the whole span of {ms(analysis.span_ns)}: {busy / max(1, analysis.span_ns):.1%} busy ({ms(busy)}), "
            f"{counted(len(analysis.gaps), 'gap')} of 30 us or more"
        )
    loading = analysis.data_loading
    if loading.count:
        lines.append(f"DataLoader: {ms(loading.total_ns)} in {counted(loading.count, 'wait')} for a batch")
    if analysis.step_variation is not None:
        lines.append(f"Step time varies by {analysis.step_variation:.1%} (coefficient of variation)")
    return "\n".join(lines)


def _title(analysis: Analysis) -> str:
    devices = ", ".join(dict.fromkeys(one.name for one in analysis.devices if one.name))
    where = f" on {devices}" if devices else ""
    rank = (
        ""
        if analysis.rank is None
        else f", rank {analysis.rank}" + (f" of {analysis.world_size}" if analysis.world_size else "")
    )
    return f"{analysis.path.name}: {analysis.events} events, {analysis.gpu_events} of a device{where}{rank}"


def _steps(analysis: Analysis) -> str:
    if not analysis.has_gpu:
        return table(("step", "wall"), [(step.name, ms(step.wall_ns)) for step in analysis.steps])
    headers = ("step", "wall", "compute", "exposed communication", "exposed copies", "idle")
    keys = ("wall_ns", "compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")
    rows: list[Sequence[object]] = [
        (short(step.name), *(ms(getattr(step, key)) for key in keys)) for step in analysis.steps[:MOST_ROWS]
    ]
    sums = [sum(getattr(step, key) for step in analysis.steps) for key in keys]
    rows.append((f"all {len(analysis.steps)}", *(ms(value) for value in sums)))
    rows.append(("", *(percent(value / max(1, sums[0])) for value in sums)))
    return table(headers, rows)


def _devices(analysis: Analysis) -> str:
    """Return the devices of the file, each for itself; above they are taken together."""
    keys = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")
    rows = [
        (
            f"device {one.index}",
            ms(one.device.busy.total_ns),
            percent(one.utilization_in_steps),
            *(ms(sum(getattr(step, key) for step in one.steps)) for key in keys),
        )
        for one in analysis.devices
    ]
    headers = ("", "busy", "of the steps", "compute", "exposed communication", "exposed copies", "idle")
    return table(headers, rows)


def _operators(analysis: Analysis, sort: str) -> str:
    chosen = analysis.operators_by_shape or analysis.operators
    on_device = ("device self", "device total") if analysis.has_gpu else ()
    rows = [
        (
            short(one.name, 44),
            one.calls,
            ms(one.host_self_ns),
            ms(one.host_total_ns),
            *((ms(one.device_self_ns), ms(one.device_total_ns)) if on_device else ()),
            short(one.section, 20),
            short(one.shapes, 40),
        )
        for one in sorted_by(chosen, sort)[:MOST_ROWS]
    ]
    headers = ("operator", "calls", "host self", "host total", *on_device, "section", "input shapes")
    more = len(chosen) - len(rows)
    return table(headers, rows) + (f"\n({more} more; --json has all)" if more > 0 else "")


def _kernels(analysis: Analysis) -> str:
    kernels = analysis.kernels
    if not kernels.count:
        return "No kernel of a device is in this trace."
    rows = [
        (
            kernel(one.name),
            one.kind,
            one.calls,
            ms(one.total_ns),
            percent(one.total_ns / max(1, kernels.total_ns)),
            us(one.mean_ns),
            percent(one.occupancy),
            "" if one.blocks_per_sm is None else f"{one.blocks_per_sm:.1f}",
        )
        for one in kernels.rows[:MOST_ROWS]
    ]
    headers = ("kernel", "kind", "calls", "total", "share", "mean", "occupancy", "blocks/SM")
    lines = [
        table(headers, rows, left=2),
        "",
        f"{kernels.count} kernels, {ms(kernels.total_ns)} in all: {kernels.short_count} under 10 us "
        f"({percent(kernels.short_share)} of the time), {percent(kernels.below_100us_share)} of the time under 100 us",
        f"Tensor cores, by name: {percent(kernels.tensor_core_share)} of kernel time; flash or fused attention: "
        f"{ms(kernels.flash_ns)}",
    ]
    if kernels.launch_known_count:
        lines.append(
            f"Shorter than the call that launched them: {kernels.launch_bound_count} of {kernels.launch_known_count}"
        )
    by_kind = ", ".join(f"{kind} {percent(ns / kernels.total_ns)}" for kind, ns in kernels.by_kind_ns.items())
    lines += [f"By kind: {by_kind}", f"Unclassified: {percent(kernels.unclassified_share)} of kernel time"]
    return "\n".join(lines)


def _trace(analysis: Analysis) -> str:
    if not analysis.has_gpu:
        return "No work of a device is in this trace, so there are no gaps to explain."
    total = sum(place.gap.length_ns for place in analysis.gaps)
    lines = [f"{counted(len(analysis.gaps), 'gap')} of 30 us or more, {ms(total)} in all"]
    lines += [
        f"  {cause}: {value:.3f} ms ({percent(value * 1e6 / total)})" for cause, value in gap_causes(analysis).items()
    ]
    longest = sorted(range(len(analysis.gaps)), key=lambda i: -analysis.gaps[i].gap.length_ns)[:MOST_GAPS]
    rows = []
    for i in longest:
        place, gap = analysis.gaps[i], analysis.gaps[i].gap
        rows.append(
            (
                ms(gap.begin_ns - analysis.begin_ns),
                ms(gap.length_ns),
                gap.cause,
                short(place.operator, 30),
                place.step,
                kernel(place.next_name, 44),
            )
        )
    lines += ["", table(("at", "length", "cause", "launched by", "step", "ended by"), rows, left=0)]
    copies = [
        (short(one.name), one.count, ms(one.total_ns), "" if one.bytes is None else amount(one.bytes))
        for one in analysis.copies
    ]
    if copies:
        lines += ["", table(("copy", "count", "time", "amount"), copies)]
    waits = [(one.name, one.count, ms(one.total_ns)) for one in (*analysis.synchronizations, *analysis.allocations)]
    if waits:
        lines += ["", table(("call of the host", "count", "time"), waits)]
    return "\n".join(lines)


def _memory(analysis: Analysis) -> str:
    if not analysis.memory:
        return "Memory was not recorded (torch.profiler.profile(profile_memory=True))."
    rows = [
        (
            one.device,
            amount(one.peak_bytes) + (" above the begin" if one.is_peak_relative else ""),
            one.peak_step,
            short(one.peak_section, 24),
            "" if one.reserved_peak_bytes is None else amount(one.reserved_peak_bytes),
            "" if one.unused_at_peak_bytes is None else amount(one.unused_at_peak_bytes),
            "yes" if one.grows else "no" if len(one.step_end_bytes) > 3 else "",
        )
        for one in analysis.memory
    ]
    return table(("device", "peak", "in step", "in section", "reserved", "unused at peak", "grows"), rows)


def _communication(analysis: Analysis, over_ranks: Sequence[RankCollective]) -> str:
    if not analysis.collectives:
        return "No communication is in this trace."
    rows = [
        (
            one.kind,
            one.count,
            "" if one.bytes is None else amount(one.bytes),
            ms(one.total_ns),
            percent(one.hidden_ns / one.total_ns if one.total_ns else None),
        )
        for one in analysis.collectives
    ]
    lines = [table(("collective", "count", "sent", "time", "behind compute"), rows)]
    if over_ranks:
        lines += ["", communication_over_ranks(over_ranks)]
    return "\n".join(lines)


def _checklist(analysis: Analysis) -> str:
    return "\n".join(check_lines(checks(analysis)))


def _recommendations(analysis: Analysis, thresholds: Mapping[str, float]) -> str:
    findings = recommendations(analysis, thresholds)
    if not findings:
        return "Nothing stands out."
    lines = []
    for finding in findings:
        saved_ms = saving_ms(finding)
        worth = "" if saved_ms is None else f" Worth up to {saved_ms:.1f} ms of {counted(len(analysis.steps), 'step')}."
        lines += [f"- {finding.message}.{worth}", f"  {finding.fix}"]
    return "\n".join(lines)


_RENDERERS: Final[Mapping[str, Callable[[Analysis], str]]] = {
    "overview": _overview,
    "kernels": _kernels,
    "trace": _trace,
    "memory": _memory,
    "checklist": _checklist,
}
