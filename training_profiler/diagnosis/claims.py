"""Each second is claimed by one finding: what a finding could save beyond those with the same cause."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.anomaly import ANOMALY_DETECTION
from training_profiler.diagnosis.batches import TINY_BATCHES
from training_profiler.diagnosis.change import SLOWER_SINCE
from training_profiler.diagnosis.created_graphs import CREATED_GRAPHS
from training_profiler.diagnosis.device import CAUSES, GPU_UTILIZATION
from training_profiler.diagnosis.embeddings import DENSE_EMBEDDING
from training_profiler.diagnosis.few_threads import FEW_THREADS
from training_profiler.diagnosis.frozen_forward import FROZEN_FORWARD
from training_profiler.diagnosis.garbage import GARBAGE, GARBAGE_COLLECTION
from training_profiler.diagnosis.hooks import BACKWARD_HOOKS, FORWARD_HOOKS
from training_profiler.diagnosis.layout import CHANNELS_FIRST
from training_profiler.diagnosis.loaders import LOADER_RESTARTED, OUTSIDE_FETCHES_S
from training_profiler.diagnosis.machine import MACHINE_BUSY, THE_MACHINE
from training_profiler.diagnosis.memory import KEPT_GRAPHS
from training_profiler.diagnosis.page_faults import PAGE_FAULTS
from training_profiler.diagnosis.parameter_loop import PARAMETER_LOOP
from training_profiler.diagnosis.precision import FULL_PRECISION, SLOW_PRECISION
from training_profiler.diagnosis.program import (
    DOUBLE_PRECISION,
    PYTHON_IN_FORWARD,
    RECOMPILES,
    REPEATED_BACKWARD,
    SMALL_OPERATORS,
)
from training_profiler.diagnosis.python_in_backward import PYTHON_IN_BACKWARD
from training_profiler.diagnosis.recomputation import NEEDLESS_RECOMPUTATION
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, WORTH_SAYING
from training_profiler.diagnosis.repeated_forward import REPEATED_FORWARD
from training_profiler.diagnosis.samplers import SAMPLER_SLOW
from training_profiler.diagnosis.shares import RUN_SHARES, STEP_SHARES
from training_profiler.diagnosis.threads import LOCK_HELD
from training_profiler.diagnosis.time_steps import TIME_STEP_LOOP
from training_profiler.diagnosis.unused_gradients import UNUSED_GRADIENTS
from training_profiler.diagnosis.unused_graphs import UNUSED_GRAPHS
from training_profiler.diagnosis.validation import PASSES_BEFORE_TRAINING, VALIDATION_WITH_GRADIENTS
from training_profiler.diagnosis.validation_batches import SMALL_VALIDATION_BATCHES
from training_profiler.diagnosis.worker_starts import VALIDATION_WORKERS
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    DATA_LOADING,
    FIRST_FETCH,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    OPTIMIZER_STEP,
    ROLLOUT,
    STEP_PARTS,
    SYNCHRONIZATION,
    VALIDATION_EPOCH,
    WORKER_START,
)

STEP_TIME_VARIES: Final = "step-time-varies"
RISES: Final = (SLOWER_SINCE, "slowing-down")  # of step time
BACKWARD_SLOW: Final = "backward-slow"
SYNCHRONIZATION_HEAVY: Final = "synchronization-heavy"
MEMORY_GROWS: Final = ("memory-growth", "memory-rises-since")
VALIDATION_HEAVY: Final = "validation-heavy"
# Their cause is another rank. What a rank waits for it lies in the sections in which ranks meet.
OF_OTHER_RANKS: Final = ("straggler", "host-slow", "uneven-work")

# A finding about several sections has its seconds in all of them; the first has its line.
_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **{row.code: (row.section,) for row in (*STEP_SHARES, *RUN_SHARES)},
    "loader-slow": (DATA_LOADING,),
    "first-batch-slow": (DATA_LOADING,),
    SAMPLER_SLOW: (DATA_LOADING,),
    LOADER_RESTARTED: (DATA_LOADING,),
    BACKWARD_HOOKS: (BACKWARD_PASS,),
    FORWARD_HOOKS: (FORWARD_PASS,),
    PARAMETER_LOOP: (OTHER, BACKWARD_PASS),
    CREATED_GRAPHS: (BACKWARD_PASS,),
    UNUSED_GRADIENTS: (BACKWARD_PASS,),
    UNUSED_GRAPHS: (FORWARD_PASS,),
    NEEDLESS_RECOMPUTATION: (BACKWARD_PASS,),
    PYTHON_IN_BACKWARD: (BACKWARD_PASS,),
    BACKWARD_SLOW: (BACKWARD_PASS,),
    SYNCHRONIZATION_HEAVY: (SYNCHRONIZATION,),
    "unexplained": (OTHER,),
    SMALL_OPERATORS: (FORWARD_PASS, BACKWARD_PASS),
    TIME_STEP_LOOP: (FORWARD_PASS, BACKWARD_PASS),
    PYTHON_IN_FORWARD: (FORWARD_PASS,),
    FEW_THREADS: (FORWARD_PASS, BACKWARD_PASS),
    CHANNELS_FIRST: (FORWARD_PASS, BACKWARD_PASS),
    FULL_PRECISION: (FORWARD_PASS, BACKWARD_PASS),
    SLOW_PRECISION: (FORWARD_PASS, BACKWARD_PASS),
    DOUBLE_PRECISION: (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP),
    REPEATED_BACKWARD: (BACKWARD_PASS,),
    ANOMALY_DETECTION: (FORWARD_PASS, OTHER, BACKWARD_PASS),
    DENSE_EMBEDDING: (OPTIMIZER_STEP,),
    FROZEN_FORWARD: (FORWARD_PASS, FORWARD_WITHOUT_GRAD),
    REPEATED_FORWARD: (FORWARD_PASS,),
    RECOMPILES: (FORWARD_PASS, BACKWARD_PASS),
    TINY_BATCHES: (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP),
    LOCK_HELD: (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, OTHER),
    GARBAGE: (GARBAGE_COLLECTION, OTHER, *STEP_PARTS),
    PAGE_FAULTS: (FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, OTHER),
    VALIDATION_WITH_GRADIENTS: (VALIDATION_EPOCH,),
    VALIDATION_WORKERS: (VALIDATION_EPOCH,),
    SMALL_VALIDATION_BATCHES: (VALIDATION_EPOCH,),
}
# A cause that is measured is named before what only says where the time lies.
_CAUSES: Final = (
    GARBAGE,
    PAGE_FAULTS,
    LOCK_HELD,
    BACKWARD_HOOKS,
    FORWARD_HOOKS,
    PARAMETER_LOOP,
    CREATED_GRAPHS,
    UNUSED_GRADIENTS,
    UNUSED_GRAPHS,
    NEEDLESS_RECOMPUTATION,
    ANOMALY_DETECTION,
    DENSE_EMBEDDING,
    LOADER_RESTARTED,
    SAMPLER_SLOW,
    RECOMPILES,
    PYTHON_IN_FORWARD,
    PYTHON_IN_BACKWARD,
    DOUBLE_PRECISION,
    SLOW_PRECISION,
    FULL_PRECISION,
    CHANNELS_FIRST,
    FROZEN_FORWARD,
    REPEATED_FORWARD,
    TIME_STEP_LOOP,
    SMALL_OPERATORS,
    TINY_BATCHES,
    REPEATED_BACKWARD,
    VALIDATION_WITH_GRADIENTS,
    VALIDATION_WORKERS,
    SMALL_VALIDATION_BATCHES,
    FEW_THREADS,
)
# In which of their sections the seconds lie is not measured.
_IN_ANY_SECTION: Final = (PAGE_FAULTS, LOCK_HELD)
_INSIDE: Final = {FIRST_FETCH: DATA_LOADING, WORKER_START: DATA_LOADING}
UNKNOWN_S: Final = "unknown_s"  # of the evidence: time without a cause, so whether it can be saved is not known
COPYING_S: Final = "copying_s"  # of the evidence: time spent copying objects
FAULTS_OF_COPIES: Final = 0.5  # of the time of a copy, which fills new memory
SAYS_MORE_FROM: Final = 0.3  # of its own saving, beside a known cause
_EXPLAINED_FROM: Final = 0.5  # of the variance of step time


def section_of(finding: Finding) -> str | None:
    """Return the section whose line a finding is about; None if it is about none, or if that is unknown."""
    return None if finding.code in _IN_ANY_SECTION else next(iter(_sections_of(finding)), None)


def _sections_of(finding: Finding) -> tuple[str, ...]:
    """Return the sections that have the seconds of a finding; none where it is about all."""
    if finding.code == REPEATED_FORWARD and finding.evidence["without_gradients"]:
        return (VALIDATION_EPOCH,) if finding.evidence["in_validation"] else (FORWARD_WITHOUT_GRAD, ROLLOUT)
    if finding.code == PASSES_BEFORE_TRAINING and finding.evidence["is_all"]:
        return (VALIDATION_EPOCH,)
    if finding.code == FROZEN_FORWARD and not finding.evidence["with_gradients"]:
        return FORWARD_WITHOUT_GRAD, ROLLOUT, FORWARD_PASS
    if finding.code == SMALL_OPERATORS and "outside_modules" in finding.evidence:
        return OTHER, BACKWARD_PASS
    if finding.code == LOADER_RESTARTED and OUTSIDE_FETCHES_S in finding.evidence:
        return DATA_LOADING, OTHER
    return _SECTIONS.get(finding.code, ())


def each_second_once(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings, each with the saving that no other finding claims.

    Findings about one section share its time: a rise of its time and a known cause come first, then the costliest. A
    finding about all sections, such as an idle device or uneven steps, has what is left beside the findings about
    single ones; where hardly anything is left, uneven steps are left out.
    """
    findings = _without_faults_of_copies(without_waiting_for_ranks(findings, snapshot))
    claims = _Claims(snapshot)
    for rise in (finding for finding in findings if finding.code in RISES):
        claims.claim_rise(rise)
    in_order = sorted(findings, key=lambda finding: (finding.code not in _CAUSES, -finding.potential_saving_s))
    by_code = {finding.code: claims.left_of(finding) for finding in in_order if finding.code in _SECTIONS}
    has_causes = any(finding.code in _CAUSES for finding in findings)
    kept = [
        _beside_others(by_code.get(each.code, each), list(by_code.values()), findings, snapshot)
        for each in findings
        if not has_causes or each.code not in _SECTIONS or _says_more(by_code[each.code], each)
    ]
    return [finding for finding in kept if finding is not None]


def _without_faults_of_copies(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, page faults without those of copies in no section, which are gone with the copies."""
    copying_s = sum(float(finding.evidence.get(COPYING_S, 0.0)) for finding in findings)
    kept = []
    for finding in findings:
        if copying_s and finding.code == PAGE_FAULTS:
            left_s = finding.potential_saving_s - FAULTS_OF_COPIES * copying_s
            if left_s < max(MIN_SAVING_S, SAYS_MORE_FROM * finding.potential_saving_s):
                continue
            finding = replace(finding, potential_saving_s=left_s)
        kept.append(finding)
    return kept


def _says_more(left: Finding, whole: Finding) -> bool:
    """Return whether a finding says more than the causes that have its seconds already."""
    if left.code in _CAUSES or not whole.potential_saving_s:
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
        names = _sections_of(finding)
        claimed_s = sum(self._claimed_s.get(name, 0.0) for name in names)
        if finding.code in _CAUSES and len(names) > 1:
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
        if finding.code in _IN_ANY_SECTION:
            for name in names:
                self._spread_s[name] = self._spread_of_s(name) + self._claimed_s[name] - before_s.get(name, 0.0)
        return replace(finding, potential_saving_s=saving_s)

    def _spread_of_s(self, name: str) -> float:
        return self._spread_s.get(name, 0.0)

    def claim_rise(self, finding: Finding) -> None:
        """Claim the part of a rise that lies in the section which rises: a finding about that has the rest."""
        section, part = _moves_with(finding, self._snapshot)
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


def _beside_others(
    finding: Finding, single: Sequence[Finding], findings: Sequence[Finding], snapshot: Snapshot
) -> Finding | None:
    saving_s, settled_s = finding.potential_saving_s, 0.0 if snapshot.step is None else snapshot.step.settled_s
    in_steps_s = sum(each.potential_saving_s for each in single if RULES[each.code].saving is Saving.STEPS)
    if finding.code == GPU_UTILIZATION:
        claimed_s = sum(each.potential_saving_s for each in single if each.code in CAUSES)
        return replace(finding, potential_saving_s=max(0.0, saving_s - claimed_s))
    if finding.code not in (STEP_TIME_VARIES, *RISES) or snapshot.step is None or not settled_s:
        return finding
    # The time above the median, or above the pace of the start, lies in the claimed sections as much as in the others.
    section, explained = _moves_with(finding, snapshot)
    if finding.code in RISES:
        left_s = saving_s * (explained + (1 - explained) * (1 - min(1.0, in_steps_s / settled_s)))
        if finding.evidence.get("moves_with") == THE_MACHINE and any(each.code == MACHINE_BUSY for each in findings):
            return replace(finding, potential_saving_s=left_s)  # the machine's finding has the seconds, this the step
    else:
        is_claimed = any(_is_in(each, section) for each in single)
        left_s = saving_s * (1 - max(explained if is_claimed else 0.0, min(1.0, in_steps_s / settled_s)))
        # A rise makes steps uneven as well.
        left_s -= sum(each.potential_saving_s for each in findings if each.code in RISES)
    least_s = max(MIN_SAVING_S, WORTH_SAYING * settled_s if finding.code == STEP_TIME_VARIES else 0.0)
    return replace(finding, potential_saving_s=left_s) if left_s >= least_s else None


def _moves_with(finding: Finding, snapshot: Snapshot) -> tuple[str, float]:
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


def without_waiting_for_ranks(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings; a backward pass is not slow where it mostly waits for a rank that another finding names."""
    if snapshot.ranks is None or not any(finding.code in OF_OTHER_RANKS for finding in findings):
        return list(findings)
    settled_s = 0.0 if snapshot.step is None else snapshot.step.settled_s
    share = snapshot.ranks.waiting_share if snapshot.ranks.waiting_share is not None else snapshot.ranks.sync_share
    waited_s = sum(finding.potential_saving_s for finding in findings if finding.code in OF_OTHER_RANKS)
    waited_s = max(waited_s, (share or 0.0) * settled_s)
    return [finding for finding in findings if finding.code != BACKWARD_SLOW or _is_slow_without(finding, waited_s)]


def _is_slow_without(finding: Finding, waited_s: float) -> bool:
    """Return whether a backward pass exceeds its threshold without the waiting in it."""
    evidence = finding.evidence
    backward_s, forward_s, threshold = (float(evidence[key]) for key in ("backward_s", "forward_s", "threshold"))
    return backward_s - waited_s > threshold * forward_s


def cause_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, what takes time right after its own cause, at the place of the costlier of both.

    Such as synchronization after the rank that it mostly waits for, validation after the gradients that it records, and
    memory that grows after the graphs that are kept.
    """
    pairs = (
        (lambda finding: finding.code in OF_OTHER_RANKS, lambda finding: "waits_for" in finding.evidence),
        (_makes_validation_slow, lambda finding: finding.code == VALIDATION_HEAVY),
        (lambda finding: finding.code == KEPT_GRAPHS, lambda finding: finding.code in MEMORY_GROWS),
    )
    for is_cause, is_effect in pairs:
        findings = _together(findings, next(filter(is_cause, findings), None), next(filter(is_effect, findings), None))
    return list(findings)


def _makes_validation_slow(finding: Finding) -> bool:
    return finding.code in (VALIDATION_WITH_GRADIENTS, VALIDATION_WORKERS, SMALL_VALIDATION_BATCHES) or (
        finding.code == REPEATED_FORWARD and _is_in(finding, VALIDATION_EPOCH)
    )


def _is_in(finding: Finding, section: str) -> bool:
    return section in _sections_of(finding)


def _together(findings: Sequence[Finding], cause: Finding | None, effect: Finding | None) -> list[Finding]:
    if cause is None or effect is None:
        return list(findings)
    at = min(findings.index(cause), findings.index(effect))
    others = [finding for finding in findings if finding not in (cause, effect)]
    return [*others[:at], cause, effect, *others[at:]]
