"""Each moment is claimed by one finding: a finding is worth what it saves beyond those about the same time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.trace_analysis.rules.registry import RULES

# Gaps have one owner each by their cause. The device's work is claimed by several rules: a faster matrix product is
# also a faster forward pass.
_SAME_WORK: Final = (
    ("no-tensor-cores", "math-attention", "backward-slow", "forward-dominates"),
    ("single-tensor-optimizer", "optimizer-heavy"),
    ("frequent-copies", "pageable-copies", "data-transfer"),
)
# These contain the work of the first, and are worth what they save beyond it.
_PART_OF: Final = {"layout-conversions": ("no-tensor-cores", "backward-slow", "forward-dominates")}
LEAST_SAID_S: Final = 0.00005  # less would be printed as 0.0 ms
# Their saving is measured, so none means that nothing would be gained. For other rules 0 means that it is not known.
_MEASURED: Final = (
    "data-loading-bound",
    "launch-bound",
    "host-stall",
    "synchronizing-reads",
    "blocking-copies",
    "allocations",
    "exposed-communication",
    "layout-conversions",
    *(code for codes in _SAME_WORK for code in codes),
)


def claimed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what each saves beyond larger ones about the same work, without those worth nothing."""
    taken = [0.0] * len(_SAME_WORK)
    parts_s = {finding.code: finding.potential_saving_s for finding in findings if finding.code in _PART_OF}
    kept = []
    for finding in sorted(findings, key=lambda finding: -finding.potential_saving_s):
        if RULES[finding.code].saving is Saving.UNKNOWN:
            kept.append(finding)
            continue
        worth_s = finding.potential_saving_s
        worth_s -= sum(part_s for code, part_s in parts_s.items() if finding.code in _PART_OF[code])
        for i, codes in enumerate(_SAME_WORK):
            if finding.code in codes:
                worth_s -= taken[i]
                taken[i] = max(taken[i], finding.potential_saving_s)
        if worth_s >= LEAST_SAID_S or finding.code not in _MEASURED:
            kept.append(replace(finding, potential_saving_s=worth_s))
    return kept
