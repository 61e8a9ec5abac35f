"""The rules about a trace, and what they have in common."""

from typing import Final

from training_profiler.findings.registry import Registry
from training_profiler.trace_analysis.analysis import Analysis

RULES: Final[Registry[Analysis]] = Registry()


def share_of_steps(analysis: Analysis, ns: int) -> float | None:
    """Return a time as a share of all steps; None without steps."""
    return ns / analysis.in_steps_ns if analysis.in_steps_ns else None


def gap_ns(analysis: Analysis, *causes: str) -> int:
    """Return the length of the gaps of these causes that begin within steps; of several devices the mean."""
    total = sum(place.gap.length_ns for place in analysis.gaps if place.gap.cause in causes and place.step)
    return total // max(1, len(analysis.devices))
