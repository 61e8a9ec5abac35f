"""The rules about a run: what a row holds, and what the rules have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.findings.finding import Finding, Fix
from training_profiler.findings.losses import Change
from training_profiler.findings.registry import DEFAULTS, Registry, Rule, Saving
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import BACKWARD_PASS

Sections = tuple[str, ...]
Range = tuple[float, float]
# Returns what is left of a finding beside all of a run; None if nothing is.
Left = Callable[[Finding, Sequence[Finding], Snapshot], Finding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRule(Rule[Snapshot]):
    """A row: everything that claims, reports and trials must know of a rule about runs."""

    label: str = ""  # in the verdict; "" is the code in capitals
    claims: Sections | Callable[[Finding], Sections] = ()  # whose seconds a finding has; the first has its line
    lies_in: Callable[[Finding], Sections] | None = None  # the same, of seconds that no other finding can have
    is_anywhere: bool = False  # in which of its sections its seconds lie is not measured
    is_cause: bool = False  # it is measured, and named before what only says where the time lies
    saves: Range | Callable[[Finding, Snapshot], Range] = (0.5, 1.0)  # least and most of the estimate that a fix saves
    changes: tuple[Change, ...] = ()  # that the fix names, where it is the same in all runs
    try_: tuple[str, ...] = ()  # families of treatments that may help
    call: str | Callable[[Finding], str] = ""  # the kind of call whose arguments the fix is about
    explains_idle: bool = False  # why a device is idle
    is_of_host: bool = False  # time in which the host queues nothing; whatever else it does may be work of the device
    is_uneven: bool = False  # time that comes and goes, as on a busy machine whatever the program does
    has_loss: bool = False  # it has the time lost on a busy machine itself, or has taken it off
    is_rise: bool = False  # of step time
    is_of_other_rank: bool = False  # what a rank waits for another one lies in the sections in which ranks meet
    is_of_workers: bool = False  # its lines are those of the loader's workers
    is_first: bool = False  # before all others: the run fails, or every other time is in doubt
    is_risk: bool = False  # it matters although no time that it costs is known
    is_harmless: bool = False  # a run with no other finding is healthy
    beside: Left | None = None  # before seconds are claimed
    rest: Left | None = None  # after that: of a finding about all sections, beside those about single ones
    follows: Callable[[Finding, Finding], bool] | None = None  # whether another finding is its cause, and comes first

    def __call__(self, measured: Snapshot, thresholds: Mapping[str, float] = DEFAULTS) -> Finding | None:
        """Return the rule's finding, with the row's changes where its own fix names none."""
        finding = Rule.__call__(self, measured, thresholds)
        return finding if finding is None or finding.changes else replace(finding, fix=Fix(finding.fix, self.changes))

    def sections_of(self, finding: Finding) -> Sections:
        """Return the sections that have the seconds of a finding; none where it is about all."""
        if self.lies_in is not None:
            return self.lies_in(finding)
        return self.claims(finding) if callable(self.claims) else self.claims

    def call_of(self, finding: Finding) -> str:
        """Return the kind of call whose arguments the fix of a finding is about; "" for none."""
        return self.call(finding) if callable(self.call) else self.call

    def range_of(self, finding: Finding, snapshot: Snapshot) -> Range:
        """Return the least and the most that the fix of a finding saves, as parts of its saving."""
        return self.saves(finding, snapshot) if callable(self.saves) else self.saves


RULES: Final[Registry[Snapshot, RunRule]] = Registry(RunRule)
REMARK: Final = RunRule("", 0.0)  # stands for the row of a finding without a rule

# Steps after warm-up. A share of fewer steps means little, unless they are long: with LBFGS, or accumulated gradients.
STEPS_NEEDED: Final = 10
LONG_S: Final = 1.0  # of all these steps
PASSES_NEEDED: Final = 20  # backward passes in them
# A saving of less than this over the whole run is not reported, whatever its share.
MIN_SAVING_S: Final = 0.02
WORTH_SAYING: Final = 0.01  # of the time of steps: a few long ones among hundreds vary by much and cost nothing


@dataclass(frozen=True, slots=True)
class Cost:
    """What takes more of the steps, or of the run, than a threshold, and saves at least 20 ms."""

    seconds: float
    share: float
    threshold: float
    saving_s: float
    share_of: str  # its name in the evidence
    steps: int = 0

    @property
    def per_step(self) -> str:
        """How long it takes in each step."""
        return ms_text(self.seconds / self.steps)

    def finding(self, code: str, message: str, fix: str, **evidence: float | int | str) -> Finding:
        """Return the finding, with the share and its threshold before other evidence."""
        shares = {self.share_of: self.share, "threshold": self.threshold}
        return Finding(code, message, {**shares, **evidence}, self.saving_s, fix)


def cost_of_steps(snapshot: Snapshot, threshold: float, seconds: float, *, saved: float = 1.0) -> Cost | None:
    """Return the cost of what takes ``seconds`` of all steps; None in few steps, or if it is too small to report.

    ``saved`` is the part of it that a fix saves.
    """
    step = snapshot.step
    if step is None or not step.settled_s or not has_enough_steps(snapshot):
        return None
    share = seconds / step.settled_s
    if share <= threshold or saved * seconds < MIN_SAVING_S:
        return None
    return Cost(seconds, share, threshold, saved * seconds, "share_of_step", step.settled_count)


def cost_of_run(snapshot: Snapshot, threshold: float, seconds: float, *, saving_s: float | None = None) -> Cost | None:
    """Return the cost of what takes ``seconds`` of the run; None if it is too small to report.

    A fix saves ``saving_s``, or all of it.
    """
    saving_s = seconds if saving_s is None else saving_s
    if not snapshot.wall_s or seconds / snapshot.wall_s <= threshold or saving_s < MIN_SAVING_S:
        return None
    return Cost(seconds, seconds / snapshot.wall_s, threshold, saving_s, "share_of_run")


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
    if backward is None or step.settled_s < LONG_S:
        return False
    return backward.count * step.settled_count >= PASSES_NEEDED * step.count


def threshold_of(code: str, snapshot: Snapshot) -> float:
    """Return the threshold of a rule in this run."""
    return snapshot.thresholds.get(code, RULES[code].threshold)


def with_step_time(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with the mean step now and without the cost, if the cost lies in steps."""
    step, saving_s = snapshot.step, finding.potential_saving_s
    if RULES[finding.code].saving is not Saving.STEPS or not saving_s or step is None:
        return finding
    # The saving is of all steps. The mean step leaves out those that a capture window slowed down.
    if step.disturbed_count and step.settled_s:
        saved_a_step_s = saving_s / step.settled_s * step.avg_s
    else:
        saved_a_step_s = saving_s / max(1, step.settled_count)
    return replace(finding, step_s=step.avg_s, step_if_gone_s=max(0.0, step.avg_s - saved_a_step_s))
