"""Two traces side by side as text."""

from training_profiler.trace_analysis.compare import Comparison, Difference
from training_profiler.trace_analysis.report.tables import ms, percent, table


def render_comparison(found: Comparison) -> str:
    """Return the difference of two traces, a step."""
    rows = [
        (one.name, ms(one.before_ns), ms(one.after_ns), f"{one.change_ns / 1e6:+.3f} ms", _band(one), _verdict(one))
        for one in found.differences
    ]
    before, after = found.utilization
    lines = [
        "=== Comparison, a step ===",
        f"before: {found.before.path.name} ({len(found.before.steps)} steps)",
        f"after:  {found.after.path.name} ({len(found.after.steps)} steps)",
        "",
        table(("", "before", "after", "difference", "noise band", ""), rows),
    ]
    if before is not None and after is not None:
        lines += ["", f"GPU utilization in steps: {percent(before)} before, {percent(after)} after"]
    return "\n".join(lines) + "\n"


def _band(one: Difference) -> str:
    return "" if one.band_ns is None else f"±{one.band_ns / 1e6:.3f} ms"


def _verdict(one: Difference) -> str:
    return {None: "", True: "within noise", False: "faster" if one.change_ns < 0 else "slower"}[one.is_noise]
