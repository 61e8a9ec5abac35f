"""Two traces side by side as text."""

from collections.abc import Sequence
from itertools import combinations, takewhile
from typing import Any, Final

from training_profiler.base.table import shortened, table, with_details, wrapped
from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.compare import (
    RECORDING,
    STEP,
    BranchDifference,
    CallPath,
    TraceComparison,
    TraceDifference,
    WorkDifference,
)
from training_profiler.trace_analysis.report.figures import (
    gpu_name,
    in_ms,
    kernel,
    ms,
    ms_number,
    percent,
    us,
    warnings_of,
    without_text,
)

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
        *warnings_of(comparison.before, "Before: "),
        *warnings_of(comparison.after, "After: "),
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
    """Return what limits the comparison."""
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


def _work(name: str, differences: Sequence[WorkDifference]) -> str:
    """Return the table of the rows that differ most; where counts differ, they are below the row."""
    title, counted = _TITLES[name]
    shown = [row for row in differences if abs(row.change_ns) >= LEAST_NS][:MOST_ROWS]
    if not shown:
        return f"{title}: no difference of {us(LEAST_NS)} or more"
    is_kernel = name == "kernels"
    rows = [(kernel_names.kind_of(row.name) if is_kernel else row.name, *_times(row, row.counts)) for row in shown]
    details = [
        ": ".join(filter(None, (_counts(row.counts, counted), kernel(row.name) if is_kernel else row.shapes)))
        for row in shown
    ]
    more = len(differences) - len(shown)
    text = with_details(table(("", *_HEADERS), rows), details)
    return f"{title} (ms)\n{text}" + (f"\n({more} more with smaller differences; --json has all)" if more else "")


def _tree(branches: Sequence[BranchDifference], where: str) -> str:
    """Return the branches whose own time differs most, and those in which several of them are."""
    title = f"Call tree, on the {where}"
    own = {branch.path: getattr(branch, f"{where}_self") for branch in branches}
    differs = [path for path, row in own.items() if abs(row.change_ns) >= LEAST_NS and not row.is_noise]
    if not differs:
        return f"{title}: no difference of {us(LEAST_NS)} or more beyond noise"
    shown = _with_forks(sorted(differs, key=lambda path: -abs(own[path].change_ns))[:MOST_ROWS])
    rows, details = [], []
    for branch in branches:
        if branch.path in shown:
            outer = [path for path in shown if path == branch.path[: len(path)] and path != branch.path]
            between = branch.path[len(max(outer, key=len, default=())) : -1]
            total: TraceDifference = getattr(branch, f"{where}_total")
            rows.append(("  " * len(outer) + branch.path[-1], *_times(total, branch.counts)))
            details.append(_branch(between, own[branch.path], total, branch.counts))
    more = len(differs) - MOST_ROWS
    text = with_details(table(("", *_HEADERS), rows), details)
    return f"{title} (ms, with all that is called)\n{text}" + (f"\n({more} more; --json has all)" if more > 0 else "")


def _branch(between: CallPath, own: TraceDifference, total: TraceDifference, counts: tuple[float, float]) -> str:
    """Return what the row does not show: its own time, its calls, the names between it and the row above."""
    own_change = "" if own.change_ns == total.change_ns else f"itself {_change(own)[0]}"
    within = f"in {' > '.join(between)}" if between else ""
    return ", ".join(filter(None, (own_change, _counts(counts, "calls"), within)))


def _with_forks(paths: Sequence[CallPath]) -> set[CallPath]:
    """Return the paths, and those around several of them where they part."""
    forks = {_common(a, b) for a, b in combinations(paths, 2)}
    return {*paths, *filter(None, forks)}


def _common(a: CallPath, b: CallPath) -> CallPath:
    return tuple(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _counts(counts: tuple[float, float], counted: str) -> str:
    before, after = counts
    return "" if before == after else f"{counted} {before:g} before, {after:g} after"


def _times(row: TraceDifference, counts: tuple[float, float]) -> tuple[str, ...]:
    return ms_number(row.before_ns), ms_number(row.after_ns), *_change(row, counts=counts)


def _change(row: TraceDifference, unit: str = "", counts: tuple[float, float] | None = None) -> tuple[str, str, str]:
    sign = "+" if row.change_ns >= 0 else ""
    band = "" if row.band_ns is None else f"±{ms_number(row.band_ns)}"
    return f"{sign}{ms_number(row.change_ns)}{unit}", band, _verdict(row, counts)


def _verdict(row: TraceDifference, counts: tuple[float, float] | None) -> str:
    less, more = "faster", "slower"
    if counts is not None:
        if 0 in counts:
            return "gone" if counts[0] else "new"
        less, more = "less", "more"  # a kernel that runs less often is not faster
    return {None: "", True: "noise", False: less if row.change_ns < 0 else more}[row.is_noise]


def comparison_data(comparison: TraceComparison) -> dict[str, Any]:
    """Return all figures of a comparison; unknown ones are None."""
    before, after = comparison.utilization
    return {
        "before": comparison.before.path.name,
        "after": comparison.after.path.name,
        "gpus": [gpu_name(comparison.before), gpu_name(comparison.after)],
        "per": comparison.unit,
        "operator_calls_in_both_pct": 100 * comparison.alike,
        "gpu_util_in_steps_pct": [None if share is None else 100 * share for share in (before, after)],
        "differences": [{"name": row.name} | _times_data(row) for row in comparison.differences],
        "call_tree": [_branch_data(row, comparison.has_gpu) for row in comparison.call_tree],
    } | {key: [_work_data(row) for row in rows] for key, rows in comparison.work.items()}


def _times_data(row: TraceDifference) -> dict[str, Any]:
    return {
        "before_ms": in_ms(row.before_ns),
        "after_ms": in_ms(row.after_ns),
        "difference_ms": in_ms(row.change_ns),
        "noise_band_ms": None if row.band_ns is None else in_ms(row.band_ns),
        "is_noise": row.is_noise,
    }


def _work_data(row: WorkDifference) -> dict[str, Any]:
    counts = {"count_before": row.counts[0], "count_after": row.counts[1]}
    return {"name": row.name, "shapes": row.shapes or None} | counts | _times_data(row)


def _branch_data(row: BranchDifference, has_gpu: bool) -> dict[str, Any]:
    times = {"host_self": row.host_self, "host_total": row.host_total}
    if has_gpu:
        times |= {"device_self": row.device_self, "device_total": row.device_total}
    counts = {"count_before": row.counts[0], "count_after": row.counts[1]}
    return {"path": list(row.path)} | counts | {part: _times_data(difference) for part, difference in times.items()}
