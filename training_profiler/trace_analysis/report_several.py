"""Several traces as text: two side by side, and those of several ranks as one report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np

from training_profiler.base.table import shortened, table, with_details, wrapped
from training_profiler.base.units import counted
from training_profiler.diagnosis.finding import Finding
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.compare import (
    RECORDING,
    STEP,
    TIMES,
    CallPath,
    TraceComparison,
    TraceDifference,
)
from training_profiler.trace_analysis.events import PARTS
from training_profiler.trace_analysis.gaps import NO_IDLE_TIME
from training_profiler.trace_analysis.report_figures import (
    data_of,
    finding_lines,
    gpu_name,
    in_ms,
    kernel,
    ms,
    ms_number,
    not_checked_lines,
    one_step_lines,
    percent,
    us,
    warnings_of,
    without_text,
)
from training_profiler.trace_analysis.report_work import MOST_LATE, communication_over_ranks
from training_profiler.trace_analysis.rules_findings import THRESHOLDS, not_checked, recommendations, saving_ms
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 8  # of each table of operators and kernels
MOST_UNIT: Final = 50  # characters of an annotation's name
LEAST_NS: Final = 1000  # a difference of less is shown as 0.000 or 0.001 ms
_HEADERS: Final = ("before", "after", "difference", "noise band", "")
# For each table its title, and what its counts count.
_TITLES: Final = {
    "kernel_kinds": ("Kernels by kind", "runs"),
    "kernels": ("Kernels", "runs"),
    "operators": ("Operators, on the device", "launched"),
    "operators_by_shape": ("Operators by input shape, on the device", "launched"),
    "host_operators": ("Operators, on the host", "calls"),
    "host_operators_by_shape": ("Operators by input shape, on the host", "calls"),
}


def render_comparison(comparison: TraceComparison) -> str:
    """Return the difference of two traces per step, then of their operators, input shapes and kernels."""
    rows = [(row.name, ms(row.before_ns), ms(row.after_ns), *_change(row, " ms")) for row in comparison.differences]
    lines = [
        f"=== Comparison per {shortened(comparison.unit, MOST_UNIT)} ===",
        f"before: {comparison.before.path.name} ({comparison.before.scope.extent})",
        f"after:  {comparison.after.path.name} ({comparison.after.scope.extent})",
        *map(wrapped, _remarks(comparison)),
        *(wrapped(line, rest="  ") for line in warnings_of(comparison.before, "Before: ")),
        *(wrapped(line, rest="  ") for line in warnings_of(comparison.after, "After: ")),
        "",
        table(("", *_HEADERS), rows),
    ]
    before, after = comparison.utilization
    if before is not None and after is not None:
        lines += ["", wrapped(f"GPU utilization in steps: {percent(before)} before, {percent(after)} after", rest="  ")]
        for when, trace in (("Before", comparison.before), ("After", comparison.after)):
            without = without_text(trace).removeprefix(", ")
            lines += [wrapped(f"{when}: {without}", rest="  ")] if without else []
    for name, differences in comparison.work.items():
        if differences:
            lines += ["", _work(name, differences)]
    for where in ("device", "host") if comparison.has_gpu else ("host",):
        if comparison.call_tree:
            lines += ["", _tree(comparison.call_tree, where)]
    return "\n".join(lines) + "\n"


def _remarks(comparison: TraceComparison) -> list[str]:
    before, after = comparison.before, comparison.after
    gpus = [gpu_name(trace) or "unknown" for trace in (before, after)]
    remarks = []
    if before.has_gpu != after.has_gpu:
        with_device = "before" if before.has_gpu else "after"
        remarks.append(f"Only the trace {with_device} has device work: times of the host are compared.")
    elif gpus[0] != gpus[1]:
        remarks.append(f"Devices: {gpus[0]} before, {gpus[1]} after.")
    if comparison.unit == RECORDING:
        remarks.append("No steps are marked: times are of the whole recordings.")
    elif comparison.unit != STEP:
        remarks.append("No steps are marked: times are of the recordings, divided by the runs of that annotation.")
    elif min(len(before.steps), len(after.steps)) == 1:
        remarks.append("One step has no noise band: any difference may be chance.")
    if comparison.alike < 1:
        remarks.append(f"{percent(comparison.alike)} of the calls of operators are in both.")
    return remarks


def _work(name: str, differences: Sequence[TraceDifference]) -> str:
    title, counted = _TITLES[name]
    shown = [row for row in differences if abs(row.change_ns) >= LEAST_NS][:MOST_ROWS]
    if not shown:
        return f"{title}: no difference of {us(LEAST_NS)} or more"
    is_kernel = name == "kernels"
    rows = [(known_names.kind_of(row.name) if is_kernel else row.name, *_times(row, row.counts)) for row in shown]
    details = [
        ": ".join(filter(None, (_counts(row.counts, counted), kernel(row.name) if is_kernel else row.shapes)))
        for row in shown
    ]
    more = len(differences) - len(shown)
    text = with_details(table(("", *_HEADERS), rows), details)
    return f"{title} (ms)\n{text}" + (f"\n({more} more with smaller differences; --json has all)" if more else "")


def _tree(tree: Mapping[CallPath, Mapping[str, TraceDifference]], where: str) -> str:
    title = f"Call tree, on the {where}"
    own = {path: times[f"{where}_self"] for path, times in tree.items()}
    differs = [path for path, row in own.items() if abs(row.change_ns) >= LEAST_NS and not row.is_noise]
    if not differs:
        return f"{title}: no difference of {us(LEAST_NS)} or more beyond noise"
    paths = sorted(differs, key=lambda path: -abs(own[path].change_ns))[:MOST_ROWS]
    forks = {
        tuple(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        for a, b in combinations(paths, 2)
    }
    shown = {*paths, *filter(None, forks)}
    rows, details = [], []
    for path in (path for path in tree if path in shown):
        outer = [around for around in shown if around == path[: len(around)] and around != path]
        between, total = path[len(max(outer, key=len, default=())) : -1], tree[path][f"{where}_total"]
        rows.append(("  " * len(outer) + path[-1], *_times(total, total.counts)))
        # What the row does not show: its own time, its calls, the names between it and the row above.
        own_change = "" if own[path].change_ns == total.change_ns else f"itself {_change(own[path])[0]}"
        within = f"in {' > '.join(between)}" if between else ""
        details.append(", ".join(filter(None, (own_change, _counts(total.counts, "calls"), within))))
    more = len(differs) - MOST_ROWS
    text = with_details(table(("", *_HEADERS), rows), details)
    return f"{title} (ms, with all that is called)\n{text}" + (f"\n({more} more; --json has all)" if more > 0 else "")


def _counts(counts: tuple[float, float], counted: str) -> str:
    before, after = counts
    return "" if before == after else f"{counted} {before:g} before, {after:g} after"


def _times(row: TraceDifference, counts: tuple[float, float]) -> tuple[str, ...]:
    return ms_number(row.before_ns), ms_number(row.after_ns), *_change(row, counts=counts)


def _change(row: TraceDifference, unit: str = "", counts: tuple[float, float] | None = None) -> tuple[str, str, str]:
    sign = "+" if row.change_ns >= 0 else ""
    band = "" if row.band_ns is None else f"±{ms_number(row.band_ns)}"
    # A kernel that runs less often is not faster.
    less, more = ("faster", "slower") if counts is None else ("less", "more")
    verdict = {None: "", True: "noise", False: less if row.change_ns < 0 else more}[row.is_noise]
    if counts is not None and 0 in counts:
        verdict = "gone" if counts[0] else "new"
    return f"{sign}{ms_number(row.change_ns)}{unit}", band, verdict


def comparison_data(comparison: TraceComparison) -> dict[str, Any]:
    """Return all figures of a comparison; unknown ones are None."""
    before, after = comparison.utilization
    parts = TIMES if comparison.has_gpu else TIMES[:2]
    return {
        "before": comparison.before.path.name,
        "after": comparison.after.path.name,
        "gpus": [gpu_name(comparison.before), gpu_name(comparison.after)],
        "per": comparison.unit,
        "operator_calls_in_both_pct": 100 * comparison.alike,
        "gpu_util_in_steps_pct": [None if share is None else 100 * share for share in (before, after)],
        "differences": [{"name": row.name} | _times_data(row) for row in comparison.differences],
        "call_tree": [
            {"path": list(path)} | _counts_data(times[TIMES[0]]) | {part: _times_data(times[part]) for part in parts}
            for path, times in comparison.call_tree.items()
        ],
    } | {
        key: [{"name": row.name, "shapes": row.shapes or None} | _counts_data(row) | _times_data(row) for row in rows]
        for key, rows in comparison.work.items()
    }


def _counts_data(row: TraceDifference) -> dict[str, float]:
    return {"count_before": row.counts[0], "count_after": row.counts[1]}


def _times_data(row: TraceDifference) -> dict[str, Any]:
    band_ms = None if row.band_ns is None else in_ms(row.band_ns)
    times = data_of(row, "before_ms after_ms difference_ms=change_ns")
    return times | {"noise_band_ms": band_ms, "is_noise": row.is_noise}


LEAST_SHARE: Final = 0.05  # of the traces' mean time, that the waiting takes
LEAST_LONGER: Final = 0.25  # of the waiting, that something must take longer on the late rank to explain it


def late_lines(traces: Sequence[Trace], over_ranks: Sequence[RankCollective]) -> list[str]:
    """Return a finding for the collective with most waiting; nothing if it takes little of the ranks' time."""
    if not over_ranks:
        return []
    worst = max(over_ranks, key=_waiting_ns)
    mean_ns = float(np.mean([trace.scope.wall_ns for trace in traces]))
    if not worst.late or _waiting_ns(worst) < LEAST_SHARE * mean_ns:
        return []
    names = ", ".join(f"rank {rank} caused {share:.0%}" for rank, share in worst.late)
    message = (
        f"- The ranks wait {ms(_waiting_ns(worst))} each, {_waiting_ns(worst) / mean_ns:.1%} of their time, for the "
        f"last one to reach {worst.kind}. Of this {names}."
    )
    reasons = [text for rank, _ in worst.late if (text := _longer(traces, rank, _waiting_ns(worst)))]
    reason = "; ".join(reasons) or "What these ranks do longer is not in the traces: compare their data and machines"
    return [wrapped(message, rest="  "), wrapped(f"{reason}.", "  ", "  ")]


def _waiting_ns(collective: RankCollective) -> float:
    return collective.waiting_ns * collective.count


def _times_ns(trace: Trace) -> Counter[str]:
    times = Counter(
        {"computation": trace.scope.total.compute_ns, "exposed copies": trace.scope.total.exposed_copies_ns}
    )
    for cause, ns in trace.idle_ns_by_cause.items():
        if cause not in NO_IDLE_TIME:
            times[f"idle time of the cause {cause}"] = ns
    return times


def _longer(traces: Sequence[Trace], rank: int, waiting_ns: float) -> str:
    late = next(_times_ns(trace) for trace in traces if trace.rank == rank)
    others = [_times_ns(trace) for trace in traces if trace.rank != rank]
    more_ns = {what: ns - float(np.median([other[what] for other in others])) for what, ns in late.items()}
    what = max(more_ns, key=lambda key: more_ns[key])
    return f"Rank {rank} has {ms(more_ns[what])} more of {what}" if more_ns[what] >= LEAST_LONGER * waiting_ns else ""


def render_ranks(
    traces: Sequence[Trace], over_ranks: Sequence[RankCollective], thresholds: Mapping[str, float] = THRESHOLDS
) -> str:
    """Return one report over the traces of several ranks: their steps, who waits for whom, what to change."""
    ranks = Counter(trace.rank for trace in traces if trace.rank is not None)
    twice = [f"{count} files are of rank {rank}" for rank, count in ranks.most_common(MOST_LATE) if count > 1]
    not_compared = f"{', '.join(twice)}: ranks are not compared.\n" if twice else ""
    parts = [f"=== Overview of {counted(len(traces), 'trace')} ===\n{_overview(traces)}\n{not_compared}"]
    if over_ranks:
        parts.append(f"=== Communication over ranks ===\n{communication_over_ranks(over_ranks)}\n")
    parts.append(f"=== Recommendations ===\n{_recommendations(traces, over_ranks, thresholds)}\n")
    return "\n".join(parts)


def are_ranks(traces: Sequence[Trace]) -> bool:
    """Return whether these are traces of different ranks of one job, according to the traces."""
    ranks = {analysis.rank for analysis in traces}
    return None not in ranks and len(ranks) == len(traces) and len({trace.world_size for trace in traces}) == 1


def _names(traces: Sequence[Trace]) -> dict[Path, str]:
    return {trace.path: f"rank {trace.rank}" if are_ranks(traces) else trace.path.name for trace in traces}


def _overview(traces: Sequence[Trace]) -> str:
    names = _names(traces)
    rows = []
    for trace in sorted(traces, key=lambda trace: trace.rank or 0) if are_ranks(traces) else traces:
        wall_ns = trace.scope.wall_ns
        shares: list[float | None] = [None] * (1 + len(PARTS))
        if trace.has_gpu and wall_ns:
            parts_ns = (getattr(trace.scope.total, key) for key in PARTS)
            shares = [trace.scope.utilization, *(ns / wall_ns for ns in parts_ns)]
        rows.append((names[trace.path], len(trace.steps), ms(wall_ns), *map(percent, shares)))
    headers = ("", "steps", "time", "device\nbusy", "compute", "exposed\ncommunication", "exposed\ncopies", "idle")
    warned = [wrapped(line, rest="  ") for trace in traces for line in warnings_of(trace, f"{names[trace.path]}: ")]
    return "\n".join([table(headers, rows), *warned])


def _recommendations(
    traces: Sequence[Trace], over_ranks: Sequence[RankCollective], thresholds: Mapping[str, float]
) -> str:
    names = _names(traces)
    by_code: dict[str, list[tuple[Trace, Finding]]] = {}
    for trace in traces:
        for finding in recommendations(trace, thresholds):
            by_code.setdefault(finding.code, []).append((trace, finding))
    missing = not_checked_lines(_missing(traces))
    late = late_lines(traces, over_ranks)
    if not by_code and not late:
        return "\n".join(
            ["The rules that could run found no bottleneck." if missing else "No bottleneck found.", *missing]
        )
    largest = {code: max(findings, key=_rank) for code, findings in by_code.items()}
    lines = [*one_step_lines(traces), *late]
    for code in sorted(by_code, key=lambda code: -_rank(largest[code])):
        trace, finding = largest[code]
        affected = [names[trace.path] for trace, _ in by_code[code]]
        on = "all" if len(affected) == len(traces) > 1 else ", ".join(affected)
        of = "figures of" if saving_ms(finding) is None else "most on"
        most = f"; {of} {names[trace.path]}" if len(affected) > 1 else ""
        lines += finding_lines(finding, trace, f"({on}{most}) ")
    return "\n".join([*lines, *missing])


def _missing(traces: Sequence[Trace]) -> dict[str, list[str]]:
    """Return the rules that could not run, by what they need and, unless that is true of all, on which traces."""
    names = _names(traces)
    lacking: dict[str, dict[str, list[str]]] = {}
    for trace in traces:
        for what, codes in not_checked(trace).items():
            for code in codes:
                lacking.setdefault(what, {}).setdefault(code, []).append(names[trace.path])
    found: dict[str, list[str]] = {}
    for what, on_traces in lacking.items():
        for code, on in on_traces.items():
            found.setdefault(what if len(on) == len(traces) else f"{what} (on {_shortened(on)})", []).append(code)
    return found


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - MOST_LATE
    return ", ".join(names[:MOST_LATE]) + (f" and {more} more" if more > 0 else "")


def _rank(trace_and_finding: tuple[Trace, Finding]) -> float:
    saved_ms = saving_ms(trace_and_finding[1])
    return -1.0 if saved_ms is None else saved_ms
