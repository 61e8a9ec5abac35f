"""Two traces side by side as text."""

from training_profiler.findings.tables import table
from training_profiler.trace_analysis.compare import Comparison, Difference
from training_profiler.trace_analysis.report.formats import ms, ms_number, percent


def render_comparison(comparison: Comparison) -> str:
    """Return the difference of two traces per step."""
    rows = [
        (
            row.name,
            ms(row.before_ns),
            ms(row.after_ns),
            f"{'+' if row.change_ns >= 0 else ''}{ms(row.change_ns)}",
            _band(row),
            _verdict(row),
        )
        for row in comparison.differences
    ]
    before, after = comparison.utilization
    lines = [
        "=== Comparison per step ===",
        f"before: {comparison.before.path.name} ({len(comparison.before.steps)} steps)",
        f"after:  {comparison.after.path.name} ({len(comparison.after.steps)} steps)",
        "",
        table(("", "before", "after", "difference", "noise band", ""), rows),
    ]
    if before is not None and after is not None:
        lines += ["", f"GPU utilization in steps: {percent(before)} before, {percent(after)} after"]
    return "\n".join(lines) + "\n"


def _band(row: Difference) -> str:
    return "" if row.band_ns is None else f"±{ms_number(row.band_ns)}"


def _verdict(row: Difference) -> str:
    return {None: "", True: "noise", False: "faster" if row.change_ns < 0 else "slower"}[row.is_noise]
