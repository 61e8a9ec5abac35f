"""What to change, from one trace."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.trace_analysis.rules import device, host  # noqa: F401
from training_profiler.trace_analysis.rules.registry import RULES
from training_profiler.trace_analysis.trace import Trace

LEAST_SAID_S: Final = 0.00005  # less would be printed as 0.0 ms


def claimed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what each saves beyond larger ones about the same work, without those worth nothing.

    Gaps have one owner each by their cause. The device's work is claimed by several rules.
    """
    taken: defaultdict[str, float] = defaultdict(float)
    conversions_s = sum(finding.potential_saving_s for finding in findings if RULES[finding.code].is_conversion)
    kept = []
    for finding in sorted(findings, key=lambda finding: -finding.potential_saving_s):
        row = RULES[finding.code]
        if row.saving is Saving.UNKNOWN:
            kept.append(finding)
            continue
        worth_s = finding.potential_saving_s - conversions_s * row.has_conversions
        if row.work:
            worth_s -= taken[row.work]
            taken[row.work] = max(taken[row.work], finding.potential_saving_s)
        if worth_s >= LEAST_SAID_S or not (row.is_measured or row.work):
            kept.append(replace(finding, potential_saving_s=worth_s))
    return kept


THRESHOLDS: Final = RULES.thresholds()
SMALL_S: Final = 0.001  # findings with no known saving come before those that save less than this over all steps


def recommendations(analysis: Trace, thresholds: Mapping[str, float] = THRESHOLDS) -> list[Finding]:
    """Return the findings, the largest saving first. Findings without a known saving come before small ones.

    Args:
        analysis: the trace.
        thresholds: the thresholds of rules by code; rules not named keep their defaults.
    """
    return sorted(claimed(RULES.findings(analysis, thresholds)), key=lambda finding: -_rank_s(finding))


def not_checked(analysis: Trace) -> dict[str, list[str]]:
    """Return the codes of the rules that could not run on this trace, by what they need."""
    return RULES.not_run(analysis)


def _rank_s(finding: Finding) -> float:
    return SMALL_S if RULES[finding.code].saving is Saving.UNKNOWN else finding.potential_saving_s
