"""What the diagnosis found, as lines: the finding, what it is worth, what to change."""

from collections.abc import Iterable

from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.rules import too_little_data
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import S_PER_MINUTE, seconds_text


def finding_lines(snapshot: Snapshot, findings: Iterable[Finding]) -> list[str]:
    """Return a line an insight, and what was missing for more."""
    lines = []
    for finding in findings:
        worth = f" [worth {saving_text(finding, snapshot)}]" if finding.potential_saving_s else ""
        fix = f" -> {finding.fix}" if finding.fix else ""
        lines.append(f"- {finding.message}{worth}{fix}")
    reason = too_little_data(snapshot)
    if reason:
        lines.append(f"- {reason}")
    return lines


def saving_text(finding: Finding, snapshot: Snapshot) -> str:
    """Return what would be gone without the cost: time, share of the run, and what a step would take."""
    minutes = finding.potential_saving_s / S_PER_MINUTE
    text = f"{minutes:.1f} min" if minutes >= 1.5 else f"{finding.potential_saving_s:.2f}s"
    if snapshot.wall_s:
        text += f", {finding.potential_saving_s / snapshot.wall_s:.1%} of the run"
    if finding.step_s is not None and finding.step_if_gone_s is not None:
        text += f"; a step {seconds_text(finding.step_if_gone_s)} instead of {seconds_text(finding.step_s)}"
    return text
