"""Each second is claimed by one finding: what a finding could save beyond those with the same cause."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, row_of
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import DATA_LOADING, FIRST_FETCH, WORKER_START

_INSIDE: Final = {FIRST_FETCH: DATA_LOADING, WORKER_START: DATA_LOADING}
SAYS_MORE_FROM: Final = 0.3  # of its own saving, beside a known cause
_EXPLAINED_FROM: Final = 0.5  # of the variance of step time


def each_second_once(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings, each with the saving that no other finding claims.

    Findings about one section share its time: a rise of its time and a known cause come first, then the costliest. A
    finding about all sections, such as an idle device or uneven steps, has what is left beside the findings about
    single ones; where hardly anything is left, uneven steps are left out.
    """
    findings = _beside_each_other(findings, snapshot)
    claims = _Claims(snapshot)
    for rise in (finding for finding in findings if row_of(finding).is_rise):
        claims.claim_rise(rise)
    in_order = sorted(findings, key=lambda finding: (not row_of(finding).is_cause, -finding.potential_saving_s))
    left = {finding.code: claims.left_of(finding) for finding in in_order if row_of(finding).claims}
    others = [left.get(each.code, each) for each in findings]
    has_causes = any(row_of(finding).is_cause for finding in findings)
    kept = []
    for whole, finding in zip(findings, others, strict=True):
        rest = row_of(finding).rest
        if not has_causes or whole.code not in left or _says_more(finding, whole):
            kept.append(finding if rest is None else rest(finding, others, snapshot))
    return [finding for finding in kept if finding is not None]


def _beside_each_other(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings, each as its row has it beside the others."""
    kept = list(findings)
    for rule in RULES:
        at = next((i for i, finding in enumerate(kept) if finding.code == rule.code), None)
        if at is not None and rule.beside is not None:
            left = rule.beside(kept[at], kept, snapshot)
            kept[at : at + 1] = [] if left is None else [left]
    return kept


def _says_more(left: Finding, whole: Finding) -> bool:
    """Return whether a finding says more than the causes that have its seconds already."""
    if row_of(left).is_cause or not whole.potential_saving_s:
        return True
    return left.potential_saving_s >= max(MIN_SAVING_S, SAYS_MORE_FROM * whole.potential_saving_s)


class _Claims:
    """The seconds of each section that findings have claimed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._claimed_s: dict[str, float] = {}
        self._spread_s: dict[str, float] = {}  # the part of them that lies anywhere in these sections

    def left_of(self, finding: Finding) -> Finding:
        """Return the finding with what nothing before it has claimed, and claim that."""
        row = row_of(finding)
        names = row.sections_of(finding)
        claimed_s = sum(self._claimed_s.get(name, 0.0) for name in names)
        if row.is_cause and len(names) > 1:
            # Two causes may lie in the same sections and not overlap, so they share what the sections have.
            room_s = sum(self._total_s(name) for name in names) - claimed_s
            saving_s = max(0.0, min(finding.potential_saving_s, room_s))
        else:
            # A change saves its part of what is left beside causes that may lie anywhere in the section, and has
            # nothing of what others claim.
            spread_s, total_s = (sum(map(of, names)) for of in (self._spread_of_s, self._total_s))
            left = 1 - min(1.0, spread_s / total_s) if total_s else 1.0
            saving_s = max(0.0, finding.potential_saving_s * left - (claimed_s - spread_s))
        before_s = dict(self._claimed_s)
        self._claim(names, saving_s)
        if row.is_anywhere:
            for name in names:
                self._spread_s[name] = self._spread_of_s(name) + self._claimed_s[name] - before_s.get(name, 0.0)
        return replace(finding, potential_saving_s=saving_s)

    def _spread_of_s(self, name: str) -> float:
        return self._spread_s.get(name, 0.0)

    def claim_rise(self, finding: Finding) -> None:
        """Claim the part of a rise that lies in the section which rises: a finding about that has the rest."""
        section, part = moves_with(finding, self._snapshot)
        if section:
            self._claim((section,), part * finding.potential_saving_s)

    def _claim(self, names: Sequence[str], saving_s: float) -> None:
        room_s = {name: max(0.0, self._total_s(name) - self._claimed_s.get(name, 0.0)) for name in names}
        all_s = sum(room_s.values())
        for name in names:
            part = room_s[name] / all_s if all_s else 1 / len(names)
            self._claimed_s[name] = self._claimed_s.get(name, 0.0) + part * saving_s

    def _total_s(self, name: str) -> float:
        section = self._snapshot.sections.get(name)
        return 0.0 if section is None else max(section.total_s, section.self_s)


def claimed_in_steps_s(findings: Sequence[Finding]) -> float:
    """Return what findings about single sections save of the time in steps."""
    rows = ((finding, row_of(finding)) for finding in findings)
    return sum(finding.potential_saving_s for finding, row in rows if row.claims and row.saving is Saving.STEPS)


def moves_with(finding: Finding, snapshot: Snapshot) -> tuple[str, float]:
    """Return the section that a finding about step times lies in, and the part of it; ("", 0) where none is known.

    A section's share includes the sections nested in it.
    """
    explained = {} if snapshot.step is None else snapshot.step.explained
    section, part = max(explained.items(), key=lambda item: item[1], default=("", 0.0))
    named = str(finding.evidence.get("moves_with", ""))
    if named:
        section, part = named, float(finding.evidence.get("explained", explained.get(named, 0.0)))
    elif part < _EXPLAINED_FROM:
        return "", 0.0
    section = _INSIDE.get(section, section)
    whole = sum(each for name, each in explained.items() if _INSIDE.get(name, name) == section)
    return section, min(1.0, max(part, whole))


def cause_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, what takes time right after its own cause, at the place of the costlier of both.

    Such as synchronization after the rank that it mostly waits for, validation after the gradients that it records, and
    memory that grows after the graphs that are kept.
    """
    for effect in findings:
        follows = row_of(effect).follows
        if follows is not None:
            findings = _together(findings, next((each for each in findings if follows(effect, each)), None), effect)
    return list(findings)


def _together(findings: Sequence[Finding], cause: Finding | None, effect: Finding) -> list[Finding]:
    if cause is None:
        return list(findings)
    at = min(findings.index(cause), findings.index(effect))
    others = [finding for finding in findings if finding not in (cause, effect)]
    return [*others[:at], cause, effect, *others[at:]]
