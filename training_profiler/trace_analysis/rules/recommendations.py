"""What to change, from one trace."""

from collections.abc import Mapping
from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.trace_analysis.analysis import Analysis

# Importing a module of rules registers them.
from training_profiler.trace_analysis.rules import balance, device, host  # noqa: F401
from training_profiler.trace_analysis.rules.claims import claimed
from training_profiler.trace_analysis.rules.registry import RULES

THRESHOLDS: Final = RULES.thresholds()
SMALL_S: Final = 0.001  # findings with no known saving come before those that save less than this over all steps


def recommendations(analysis: Analysis, thresholds: Mapping[str, float] = THRESHOLDS) -> list[Finding]:
    """Return the findings, the largest saving first. Findings without a known saving come before small ones.

    Args:
        analysis: the trace.
        thresholds: the thresholds of rules by code; rules not named keep their defaults.
    """
    return sorted(claimed(RULES.findings(analysis, thresholds)), key=lambda finding: -_rank_s(finding))


def not_checked(analysis: Analysis) -> dict[str, list[str]]:
    """Return the codes of the rules that could not run on this trace, by what they need."""
    return RULES.not_run(analysis)


def _rank_s(finding: Finding) -> float:
    return SMALL_S if RULES[finding.code].saving is Saving.UNKNOWN else finding.potential_saving_s
