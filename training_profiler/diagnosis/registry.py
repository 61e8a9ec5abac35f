"""Rules, and the registry that collects them; what a row about a run holds, and which finding claims a second."""

import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from training_profiler.base.errors import SettingsError
from training_profiler.base.sections import BACKWARD_PASS, DATA_LOADING, FIRST_FETCH, WITHIN, WORKER_START
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.finding import Change, Evidence, Finding, Fix
from training_profiler.model.snapshot import OUTSIDE_STEPS, Snapshot

Measured = TypeVar("Measured")  # input of the rules: a snapshot of a run, or an analysis of a trace
Find = Callable[[Measured, float], Finding | None]

DEFAULTS: Final[Mapping[str, float]] = MappingProxyType({})  # no threshold is overridden


class Saving(Enum):
    """What would be shorter without the cost that a rule finds."""

    STEPS = "every step"
    RUN = "the run, but not its steps"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Need(Generic[Measured]):
    """What a measurement must have for a rule to say anything, in words."""

    what: str
    is_met: Callable[[Measured], bool]


@dataclass(frozen=True, slots=True)
class Rule(Generic[Measured]):
    """A row: a rule's code, its default threshold, and what finds it. A kind of measurement adds facts of its own."""

    code: str
    threshold: float
    finder: Find[Measured] | None = None  # a subclass may have a method ``find`` instead
    saving: Saving = Saving.STEPS
    needs: tuple[Need[Measured], ...] = ()

    def __call__(self, measured: Measured, thresholds: Mapping[str, float] = DEFAULTS) -> Finding | None:
        """Return the rule's finding; ``thresholds`` holds the overridden thresholds by code."""
        if self.missing(measured) is not None:
            return None
        return self.find(measured, thresholds.get(self.code, self.threshold))

    def find(self, measured: Measured, threshold: float) -> Finding | None:
        """Return the finding where the measurement exceeds ``threshold``."""
        assert self.finder is not None, f"{self.code} has no function"
        return self.finder(measured, threshold)

    def missing(self, measured: Measured) -> Need[Measured] | None:
        """Return the first need that is not met; None if the rule can run."""
        return next((need for need in self.needs if not need.is_met(measured)), None)


Row = TypeVar("Row", bound=Rule[Any])


class Registry(Generic[Measured, Row]):
    """The rules of one kind of measurement, in the order in which they were added."""

    def __init__(self, row: Callable[..., Row]) -> None:
        self._row = row
        self._rules: dict[str, Row] = {}

    def rule(self, code: str, threshold: float, **facts: Any) -> Callable[[Find[Measured]], Row]:
        """Return a decorator that makes a function a rule; ``facts`` are the other fields of its row."""
        return lambda find: self.add(self._row(code, threshold, find, **facts))

    def add(self, rule: Row) -> Row:
        """Add a rule and return it."""
        assert rule.code not in self._rules, f"two rules are called {rule.code}"
        self._rules[rule.code] = rule
        return rule

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rules.values())

    def __getitem__(self, code: str) -> Row:
        return self._rules[code]

    def get(self, code: str) -> Row | None:
        """Return the row of a rule; None for an unknown code."""
        return self._rules.get(code)

    def thresholds(self) -> Mapping[str, float]:
        """Return the default threshold of every rule by its code."""
        return MappingProxyType({rule.code: rule.threshold for rule in self})

    def findings(self, measured: Measured, thresholds: Mapping[str, float] = DEFAULTS) -> list[Finding]:
        """Return the findings of all rules; ``thresholds`` holds the overridden thresholds by code."""
        return [finding for rule in self if (finding := rule(measured, thresholds)) is not None]

    def not_run(self, measured: Measured) -> dict[str, list[str]]:
        """Return the codes of the rules that cannot run, by what they need."""
        codes: dict[str, list[str]] = {}
        for rule in self:
            if (need := rule.missing(measured)) is not None:
                codes.setdefault(need.what, []).append(rule.code)
        return codes


def read_thresholds(given: object, known: Collection[str], example: str) -> dict[str, float]:
    """Return the threshold of each rule that ``given`` names, a mapping or a text such as ``unexplained=0.15``.

    Raises:
        SettingsError: a rule is not in ``known``, or a threshold is not a number of at least 0.
    """
    if isinstance(given, Mapping):
        pairs = [(str(code), value) for code, value in given.items()]
    else:
        parts = [part.partition("=") for part in str(given).split(",") if part.strip()]
        pairs = [(code, value) for code, _, value in parts]
    thresholds = {}
    for code, value in pairs:
        code = code.strip()
        if code not in known:
            close = difflib.get_close_matches(code, known, n=1, cutoff=0.0)
            raise SettingsError(f"names {code!r}, which is not a rule; did you mean {close[0]}? {example}")
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise SettingsError(f"has {str(value)!r} for {code}, which is not a number >= 0; {example}")
        thresholds[code] = number
    return thresholds


Sections = tuple[str, ...]
Range = tuple[float, float]
# Returns what is left of a finding beside all of a run; None if nothing is.
Left = Callable[[Finding, Sequence[Finding], Snapshot], Finding | None]
_INSIDE: Final = {FIRST_FETCH: DATA_LOADING, WORKER_START: DATA_LOADING}
SAYS_MORE_FROM: Final = 0.3  # of its own saving, beside a known cause
ALONE: Final = "alone_saves_times"  # of the evidence: as much without the changes of other findings
ALONE_FROM: Final = 0.8  # of its own saving: what is left of more needs no word


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRule(Rule[Snapshot]):
    """A row: everything that claims, reports and trials must know of a rule about runs."""

    label: str = ""  # in the verdict; "" is the code in capitals
    claims: Sections | Callable[[Finding], Sections] = ()  # whose seconds a finding has; the first has its line
    lies_in: Callable[[Finding], Sections] | None = None  # the same, of seconds that no other finding can have
    is_anywhere: bool = False  # in which of its sections its seconds lie is not measured
    says_where: bool = False  # it only says where the time lies: what is measured, and claims that, is named before
    saves: Range | Callable[[Finding, Snapshot], Range] = (0.5, 1.0)  # least and most of the estimate that a fix saves
    changes: tuple[Change, ...] = ()  # that the fix names, where it is the same in all runs
    try_: tuple[str, ...] = ()  # families of treatments that may help
    call: str | Callable[[Finding], str] = ""  # the kind of call whose arguments the fix is about
    explains_idle: bool = False  # why a device is idle
    is_of_host: bool = False  # time in which the host queues nothing; whatever else it does may be work of the device
    is_uneven: bool = False  # time that comes and goes, as on a busy machine whatever the program does
    is_rise: bool = False  # of step time
    is_of_other_rank: bool = False  # what a rank waits for another one lies in the sections in which ranks meet
    is_of_workers: bool = False  # its lines are those of the loader's workers
    is_first: bool = False  # before all others: the run fails, or every other time is in doubt
    is_risk: bool = False  # it matters although no time that it costs is known
    is_before_training: bool = False  # its saving is of the start, so no part of the training time
    is_harmless: bool = False  # a run with no other finding is healthy
    beside: Left | None = None  # before seconds are claimed
    rest: Left | None = None  # after that: of a finding about all sections, beside those about single ones
    follows: Callable[[Finding, Finding], bool] | None = None  # whether another finding is its cause, and comes first

    def __call__(self, measured: Snapshot, thresholds: Mapping[str, float] = DEFAULTS) -> Finding | None:
        """Return the rule's finding, with its code, and with the row's changes where its own fix names none."""
        finding = Rule.__call__(self, measured, thresholds)
        if finding is None:
            return None
        actions = finding.fix.actions if isinstance(finding.fix, Fix) else ()
        return replace(finding, code=self.code, fix=Fix(finding.fix, finding.changes or self.changes, actions))

    @property
    def is_cause(self) -> bool:
        """Whether its seconds are measured to have this cause."""
        return bool(self.claims) and not self.says_where

    def sections_of(self, finding: Finding) -> Sections:
        """Return the sections that have the seconds of a finding; none where it is about all."""
        if self.lies_in is not None:
            return self.lies_in(finding)
        return self.claims(finding) if callable(self.claims) else self.claims


RULES: Final[Registry[Snapshot, RunRule]] = Registry(RunRule)
REMARK: Final = RunRule("", 0.0)  # stands for the row of a finding without a rule

# Steps after warm-up. A share of fewer steps means little, unless they are long: with LBFGS, or accumulated gradients.
STEPS_NEEDED: Final = 10
PASSES_NEEDED: Final = 20  # backward passes in them
# A saving of less than this over the whole run is not reported, whatever its share.
MIN_SAVING_S: Final = 0.02
WORTH_SAYING: Final = 0.01  # of the time of steps: a few long ones among hundreds vary by much and cost nothing


@dataclass(frozen=True, slots=True)
class Cost:
    """What takes a share of the steps, or of the run."""

    seconds: float
    share: float
    threshold: float
    saving_s: float
    share_of: str  # its name in the evidence
    is_worth_saying: bool  # it is more than the threshold, and saves at least 20 ms
    steps: int = 1

    @property
    def per_step(self) -> str:
        """How long it takes in each step."""
        return ms_text(self.seconds / self.steps)

    def finding(self, message: str, fix: str, **evidence: float | int | str) -> Finding | None:
        """Return the finding, with the share and its threshold before other evidence; None if it is too small."""
        shares = {self.share_of: self.share, "threshold": self.threshold}
        return found(message, {**shares, **evidence}, fix, saving_s=self.saving_s) if self.is_worth_saying else None


def found(message: str, evidence: Evidence, fix: str = "", *, saving_s: float = 0.0) -> Finding:
    """Return the finding of a rule, whose row gives it its code."""
    return Finding("", message, evidence, saving_s, fix)


def cost_of_steps(snapshot: Snapshot, threshold: float, seconds: float, *, saved: float = 1.0) -> Cost:
    """Return the cost of what takes ``seconds`` of all steps, of which a fix saves a part; too small in few steps."""
    step, saving_s = snapshot.step, saved * seconds
    share = seconds / step.settled_s if step is not None and step.settled_s and has_enough_steps(snapshot) else 0.0
    is_worth_saying = share > threshold and saving_s >= MIN_SAVING_S
    steps = 1 if step is None else max(1, step.settled_count)
    return Cost(seconds, share, threshold, saving_s, "share_of_step", is_worth_saying, steps)


def cost_of_run(
    snapshot: Snapshot, threshold: float, seconds: float, *, saving_s: float | None = None, within_s: float = 0.0
) -> Cost:
    """Return the cost of what takes ``seconds`` of the run; a fix saves ``saving_s``, or all of it.

    ``within_s`` lie from the first step to the last, of which they may be more than of a run that takes long to start.
    """
    saving_s, training_s = seconds if saving_s is None else saving_s, snapshot.training_s
    share, share_of = seconds / snapshot.wall_s if snapshot.wall_s else 0.0, "share_of_run"
    if share <= threshold and within_s > threshold * training_s > 0:
        share, share_of = min(1.0, within_s / training_s), "share_of_training"
    return Cost(seconds, share, threshold, saving_s, share_of, share > threshold and saving_s >= MIN_SAVING_S)


def row_of(finding: Finding) -> RunRule:
    """Return the row of a finding's rule; of a remark, one without any facts."""
    return RULES.get(finding.code) or REMARK


def section_of(finding: Finding) -> str | None:
    """Return the section whose line a finding is about; None if it is about none, or if that is unknown."""
    row = row_of(finding)
    return None if row.is_anywhere else next(iter(row.sections_of(finding)), None)


def has_enough_steps(snapshot: Snapshot) -> bool:
    """Return whether shares of the step can be trusted: of many steps, or of few ones with many passes."""
    step, backward = snapshot.step, snapshot.sections.get(BACKWARD_PASS)
    if step is None or step.settled_count >= STEPS_NEEDED:
        return step is not None
    if backward is None or step.settled_s < 1:
        return False
    return backward.count * step.settled_count >= PASSES_NEEDED * step.count


def per_step(snapshot: Snapshot, name: str) -> float:
    """Return how often a section that lies in steps ran in each."""
    section, step = snapshot.sections.get(name), snapshot.step
    return 0.0 if section is None or step is None or not step.count else section.spans_in_steps / step.count


def threshold_of(code: str, snapshot: Snapshot) -> float:
    """Return the threshold of a rule in this run."""
    return snapshot.thresholds.get(code, RULES[code].threshold)


def part_in_training(finding: Finding, snapshot: Snapshot) -> float:
    """Return the part of a finding's section that is not after the training, 0 to 1; 1 of what is in no section."""
    name = section_of(finding)
    parts = [each for each in snapshot.sections.values() if name in (each.name.partition(WITHIN)[0], each.parent)]
    after_s = 0.0 if name in (None, OUTSIDE_STEPS) else sum(each.after_s for each in parts)
    return 1 - after_s / sum(each.after_s + each.training_s for each in parts) if after_s else 1.0


def with_step_time(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return a finding with its saving in the training, or after it; about steps, with the mean step now and after."""
    step, saving_s = snapshot.step, finding.potential_saving_s
    if RULES[finding.code].saving is not Saving.STEPS or not saving_s or step is None:
        return replace(finding, potential_saving_s=part_in_training(finding, snapshot) * saving_s or saving_s)
    saved_a_step_s = saving_s / max(1, step.settled_count)  # the saving is of those after warm-up
    if step.settled_s:  # first steps may be shorter, as before other programs began
        saving_s *= max(1.0, min(step.total_s / step.settled_s, step.count / step.settled_count))
    if step.disturbed_count and step.settled_s:  # the mean step leaves out those that a capture window slowed down
        saved_a_step_s *= step.avg_s * step.settled_count / step.settled_s
    after_s = max(0.0, step.avg_s - saved_a_step_s)
    return replace(finding, potential_saving_s=saving_s, step_s=step.avg_s, step_if_fixed_s=after_s)


def each_second_once(findings: Sequence[Finding], snapshot: Snapshot) -> list[Finding]:
    """Return the findings, each with the saving that no other finding claims.

    Findings about one section share its time: a rise of its time and a known cause come first, then the costliest. A
    finding about all sections, such as an idle device or uneven steps, has what is left beside the findings about
    single ones; where hardly anything is left, uneven steps are left out.
    """
    findings = list(findings)
    for rule in RULES:
        at = next((i for i, finding in enumerate(findings) if finding.code == rule.code), None)
        if at is not None and rule.beside is not None:
            beside = rule.beside(findings[at], findings, snapshot)
            findings[at : at + 1] = [] if beside is None else [beside]
    claims = _Claims(snapshot)
    for rise in (finding for finding in findings if row_of(finding).is_rise):
        # A finding about the section that rises has the rest of its time.
        section, part = moves_with(rise, snapshot)
        if section:
            claims.claim((section,), part * rise.potential_saving_s)
    in_order = sorted(findings, key=lambda finding: (not row_of(finding).is_cause, -finding.potential_saving_s))
    left = {finding.code: claims.left_of(finding) for finding in in_order if row_of(finding).claims}
    others = [left.get(each.code, each) for each in findings]
    has_causes = any(row_of(finding).is_cause for finding in findings)
    kept = []
    for whole, finding in zip(findings, others, strict=True):
        rest, least_s = row_of(finding).rest, max(MIN_SAVING_S, SAYS_MORE_FROM * whole.potential_saving_s)
        # It has to say more than the causes that have its seconds already.
        is_own = not has_causes or whole.code not in left or row_of(finding).is_cause or not whole.potential_saving_s
        if is_own or finding.potential_saving_s >= least_s:
            kept.append(finding if rest is None else rest(finding, others, snapshot))
    return [finding for finding in kept if finding is not None]


class _Claims:
    """The seconds of each section that findings have claimed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._claimed_s = defaultdict[str, float](float)
        self._spread_s = defaultdict[str, float](float)  # the part of them that lies anywhere in these sections

    def left_of(self, finding: Finding) -> Finding:
        """Return the finding with what nothing before it has claimed, and claim that."""
        row = row_of(finding)
        names = row.sections_of(finding)
        claimed_s = sum(self._claimed_s[name] for name in names)
        if row.is_cause and len(names) > 1:
            # Two causes may lie in the same sections and not overlap, so they share what the sections have.
            room_s = sum(self._total_s(name) for name in names) - claimed_s
            saving_s = max(0.0, min(finding.potential_saving_s, room_s))
        else:
            # A change saves its part of what is left beside causes that may lie anywhere in the section, and has
            # nothing of what others claim.
            spread_s, total_s = sum(self._spread_s[name] for name in names), sum(map(self._total_s, names))
            left = 1 - min(1.0, spread_s / total_s) if total_s else 1.0
            saving_s = max(0.0, finding.potential_saving_s * left - (claimed_s - spread_s))
        before_s = self._claimed_s.copy()
        self.claim(names, saving_s)
        for name in names if row.is_anywhere else ():
            self._spread_s[name] += self._claimed_s[name] - before_s[name]
        is_less = 0 < saving_s < ALONE_FROM * finding.potential_saving_s
        alone: Evidence = {ALONE: finding.potential_saving_s / saving_s} if is_less else {}
        return replace(finding, potential_saving_s=saving_s, evidence={**finding.evidence, **alone})

    def claim(self, names: Sequence[str], saving_s: float) -> None:
        """Claim seconds of these sections, of each as much as it has left."""
        room_s = {name: max(0.0, self._total_s(name) - self._claimed_s[name]) for name in names}
        all_s = sum(room_s.values())
        for name in names:
            self._claimed_s[name] += (room_s[name] / all_s if all_s else 1 / len(names)) * saving_s

    def _total_s(self, name: str) -> float:
        section = self._snapshot.sections.get(name)
        if section is None:
            return 0.0
        # A host that is ahead queues in milliseconds what takes the device seconds.
        return max(section.total_s, section.self_s, self._snapshot.total_of_step_s(name) or 0.0)


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
    elif part < 0.5:  # of the variance of step time
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
        cause = next((each for each in findings if follows and follows(effect, each)), None)
        if cause is not None:
            at = min(findings.index(cause), findings.index(effect))
            others = [finding for finding in findings if finding not in (cause, effect)]
            findings = [*others[:at], cause, effect, *others[at:]]
    return list(findings)
