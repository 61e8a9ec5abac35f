"""Each second is claimed by one finding: what a finding could save beyond those with the same cause."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.device import CAUSES, GPU_UTILIZATION
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES
from training_profiler.diagnosis.shares import RUN_SHARES, STEP_SHARES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.recording.known_sections import (
    BACKWARD_PASS,
    DATA_LOADING,
    FIRST_FETCH,
    SYNCHRONIZATION,
    WORKER_START,
)
from training_profiler.snapshot.snapshot import OTHER, Snapshot

STEP_TIME_VARIES: Final = "step-time-varies"
SLOWING_DOWN: Final = "slowing-down"

_SECTIONS: Final = {
    **{row.code: row.section for row in (*STEP_SHARES, *RUN_SHARES)},
    "loader-slow": DATA_LOADING,
    "first-batch-slow": DATA_LOADING,
    "backward-slow": BACKWARD_PASS,
    "synchronization-heavy": SYNCHRONIZATION,
    "unexplained": OTHER,
}
_INSIDE: Final = {FIRST_FETCH: DATA_LOADING, WORKER_START: DATA_LOADING}


def section_of(finding: Finding) -> str | None:
    """Return the section whose time a finding is about; None if it is about several, or none."""
    return _SECTIONS.get(finding.code)


def each_second_once(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings, each with the saving that no costlier finding claims.

    Findings about one section share its time. A finding about all sections, such as an idle device or uneven steps, has
    what is left beside the findings about single ones; where hardly anything is left, uneven steps are left out.
    """
    claimed_s: dict[str, float] = {}
    single = []
    for finding in sorted(findings, key=lambda finding: -finding.potential_saving_s):
        section = section_of(finding)
        if section is None:
            continue
        before_s = claimed_s.get(section, 0.0)
        claimed_s[section] = max(before_s, finding.potential_saving_s)
        single.append(replace(finding, potential_saving_s=max(0.0, finding.potential_saving_s - before_s)))
    by_code = {finding.code: finding for finding in single}
    kept = [
        _beside_others(by_code.get(each.code, each), list(by_code.values()), findings, snapshot) for each in findings
    ]
    return [finding for finding in kept if finding is not None]


def _beside_others(
    finding: Finding, single: Sequence[Finding], findings: Sequence[Finding], snapshot: Snapshot
) -> Finding | None:
    saving_s, settled_s = finding.potential_saving_s, 0.0 if snapshot.step is None else snapshot.step.settled_s
    in_steps_s = sum(each.potential_saving_s for each in single if RULES[each.code].saving is Saving.STEPS)
    if finding.code == GPU_UTILIZATION:
        claimed_s = sum(each.potential_saving_s for each in single if each.code in CAUSES)
        return replace(finding, potential_saving_s=max(0.0, saving_s - claimed_s))
    if finding.code not in (STEP_TIME_VARIES, SLOWING_DOWN) or not settled_s:
        return finding
    # The time above the median, or above the pace of the start, lies in the claimed sections as much as in the others.
    cause = str(finding.evidence.get("moves_with", ""))
    is_claimed = _INSIDE.get(cause, cause) in {section_of(each) for each in single}
    explained = float(finding.evidence.get("explained", 0.0)) if is_claimed else 0.0
    left_s = saving_s * (1 - max(explained, min(1.0, in_steps_s / settled_s)))
    if finding.code == STEP_TIME_VARIES:  # a rise makes steps uneven as well
        left_s -= sum(each.potential_saving_s for each in findings if each.code == SLOWING_DOWN)
    return replace(finding, potential_saving_s=left_s) if left_s >= MIN_SAVING_S else None
