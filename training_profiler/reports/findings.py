"""Findings as text, each with its potential saving and its fix."""

from collections.abc import Iterable, Sequence
from typing import Final

from training_profiler.base.units import duration_text, ms_number
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.lines import IN_WORKERS, UNKNOWN_S
from training_profiler.diagnosis.machine import THE_MACHINE
from training_profiler.diagnosis.registry import row_of, section_of
from training_profiler.diagnosis.rules import HEALTHY, too_little_data
from training_profiler.findings.finding import brief
from training_profiler.reports.layout import Layout
from training_profiler.snapshot.snapshot import LineStats, Snapshot
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS, GRAPH_REPLAY, OPTIMIZER_STEP

MOST_IMPORTANT: Final = 3  # as many changes as a reader makes before the next run
MATTERS_FROM: Final = 0.05  # of the run's wall time, or of the time in steps
UNEVEN_MATTERS_FROM: Final = 0.10
_BY_CHANCE: Final = (None, THE_MACHINE, FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, GRAPH_REPLAY)
REMARKS: Final = ("slowest-component", "data-loading-efficient")  # true of every run


def important(snapshot: Snapshot, findings: Iterable[Finding]) -> list[Finding]:
    """Return the one to three findings to act on, in their order; none where nothing is worth a change."""
    chosen = [finding for finding in findings if finding.fix and _matters(snapshot, finding)]
    return chosen[:MOST_IMPORTANT]


def has_nothing_to_fix(finding: Finding) -> bool:
    """Return whether a finding only describes the run."""
    return row_of(finding).is_harmless or finding.code in (*REMARKS, HEALTHY)


def _matters(snapshot: Snapshot, finding: Finding) -> bool:
    if has_nothing_to_fix(finding):
        return False
    if row_of(finding).is_risk:
        return True
    saving_s = finding.potential_saving_s or float(finding.evidence.get(UNKNOWN_S, 0.0))
    least = UNEVEN_MATTERS_FROM if _is_uneven_by_chance(finding) else MATTERS_FROM
    of_steps = snapshot.step is not None and saving_s >= least * snapshot.step.total_s
    return saving_s > 0 and (saving_s >= least * snapshot.wall_s or of_steps)


def _is_uneven_by_chance(finding: Finding) -> bool:
    """Return whether steps are uneven in no part or in computing, as on any machine that others use as well."""
    return finding.code == "step-time-varies" and finding.evidence.get("moves_with") in _BY_CHANCE


def source_line(snapshot: Snapshot, finding: Finding) -> tuple[LineStats, float] | None:
    """Return the line of the user's code with most of a finding's time, and its share of that; None if unknown."""
    name = section_of(finding)
    section = None if name is None else snapshot.sections.get(name)
    if name is None or section is None or not section.share:
        return None
    if IN_WORKERS in finding.evidence or finding.evidence.get("lines"):  # it names lines of its own
        return None
    hottest = snapshot.hottest(name, of_steps=True)
    if not hottest or hottest[0].place in finding.message:
        return None
    return hottest[0], min(1.0, hottest[0].share / section.share)


def insight_lines(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout) -> list[str]:
    """Return every finding with its saving and its fix, then the data that further rules lacked.

    A fix that several findings have is written once.
    """
    lines, advised = [], dict[str, str]()
    has_better = any(finding.fix for finding in findings)
    for finding in findings:
        if has_better and finding.code in REMARKS:
            continue
        saving = f" [could save {saving_text(snapshot, finding)}]" if finding.potential_saving_s else ""
        fix = f" -> {finding.advice}" if finding.fix else ""
        if finding.advice in advised:
            fix = f" -> The same change as for: {advised[finding.advice]}"
        elif fix:
            advised[finding.advice] = brief(finding.message)
        lines += layout.wrap(f"{finding.message}{saving}{fix}", first="- ")
    reason = too_little_data(snapshot)
    if reason:
        lines += layout.wrap(reason, first="- ")
    return lines


def _between(snapshot: Snapshot, finding: Finding) -> str:
    """Return the range of the saving as shares of the run; "" where it is narrower than the rounding."""
    if finding.saving_range_s is None:
        return ""
    low, high = (round(100 * seconds / snapshot.wall_s) for seconds in finding.saving_range_s)
    return f", likely {low} to {high}%" if high > low else ""


def saving_text(snapshot: Snapshot, finding: Finding) -> str:
    """Return what a change could save: time, share of the run, and the step before and after it."""
    text = duration_text(finding.potential_saving_s)
    if snapshot.wall_s:
        text += f" ({finding.potential_saving_s / snapshot.wall_s:.1%}{_between(snapshot, finding)})"
    if finding.step_s is not None and finding.step_if_gone_s is not None:
        text += f": {ms_number(finding.step_s)} -> {ms_number(finding.step_if_gone_s)} ms/step"
    cost = snapshot.cost_text(finding.potential_saving_s)
    return f"{text}, {cost}" if cost else text
