"""The figures of a comparison as plain data, for ``training-profiler trace --compare --json``; ms per step."""

from typing import Any

from training_profiler.trace_analysis.compare import BranchDifference, Comparison, Difference, WorkDifference
from training_profiler.trace_analysis.trace_json import gpu_name, ms


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return all figures of a comparison; unknown ones are None."""
    before, after = comparison.utilization
    return {
        "before": comparison.before.path.name,
        "after": comparison.after.path.name,
        "gpus": [gpu_name(comparison.before), gpu_name(comparison.after)],
        "per": comparison.unit,
        "operator_calls_in_both_pct": 100 * comparison.alike,
        "gpu_util_in_steps_pct": [None if share is None else 100 * share for share in (before, after)],
        "differences": [{"name": row.name} | _times(row) for row in comparison.differences],
        "call_tree": [_branch(row, comparison.has_gpu) for row in comparison.call_tree],
    } | {key: [_work(row) for row in rows] for key, rows in comparison.work.items()}


def _times(row: Difference) -> dict[str, Any]:
    return {
        "before_ms": ms(row.before_ns),
        "after_ms": ms(row.after_ns),
        "difference_ms": ms(row.change_ns),
        "noise_band_ms": None if row.band_ns is None else ms(row.band_ns),
        "is_noise": row.is_noise,
    }


def _work(row: WorkDifference) -> dict[str, Any]:
    counts = {"count_before": row.counts[0], "count_after": row.counts[1]}
    return {"name": row.name, "shapes": row.shapes or None} | counts | _times(row)


def _branch(row: BranchDifference, has_gpu: bool) -> dict[str, Any]:
    times = {"host_self": row.host_self, "host_total": row.host_total}
    if has_gpu:
        times |= {"device_self": row.device_self, "device_total": row.device_total}
    counts = {"count_before": row.counts[0], "count_after": row.counts[1]}
    return {"path": list(row.path)} | counts | {part: _times(difference) for part, difference in times.items()}
