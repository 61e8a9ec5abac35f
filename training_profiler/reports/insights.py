"""What the diagnosis found, as lines: the finding, what it is worth, what to change."""

from collections.abc import Iterable

from training_profiler.diagnosis import Insight
from training_profiler.diagnosis.rules import too_little_data
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import S_PER_MINUTE, seconds_text


def insight_lines(snapshot: Snapshot, insights: Iterable[Insight]) -> list[str]:
    """Return a line an insight, and what was missing for more."""
    lines = []
    for insight in insights:
        worth = f" [worth {worth_text(insight, snapshot)}]" if insight.worth_s else ""
        remedy = f" -> {insight.remedy}" if insight.remedy else ""
        lines.append(f"- {insight.finding}{worth}{remedy}")
    reason = too_little_data(snapshot)
    if reason:
        lines.append(f"- {reason}")
    return lines


def worth_text(insight: Insight, snapshot: Snapshot) -> str:
    """Return what would be gone without the cost: time, share of the run, and what a step would take."""
    minutes = insight.worth_s / S_PER_MINUTE
    text = f"{minutes:.1f} min" if minutes >= 1.5 else f"{insight.worth_s:.2f}s"
    if snapshot.wall_s:
        text += f", {insight.worth_s / snapshot.wall_s:.1%} of the run"
    if insight.step_s is not None and insight.step_if_gone_s is not None:
        text += f"; a step {seconds_text(insight.step_if_gone_s)} instead of {seconds_text(insight.step_s)}"
    return text
