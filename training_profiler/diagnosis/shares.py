"""Rules about sections that take too much of the step, or of the run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from training_profiler.base.units import duration_text, ms_text, time_text
from training_profiler.diagnosis.compute_fixes import forward_fix, is_device_idle, optimizer_fix, optimizer_saves
from training_profiler.diagnosis.loader_fixes import (
    free_cpus,
    plan_of_workers,
    transfer_fix,
    waiting_fix,
    waiting_saved,
)
from training_profiler.diagnosis.page_faults import page_fault_time
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.worker_plan import FREE_CPUS
from training_profiler.findings.finding import Evidence, Finding
from training_profiler.findings.registry import Rule, Saving
from training_profiler.snapshot.snapshot import OTHER, LineStats, SectionStats, Snapshot
from training_profiler.tables.backends import CUDA
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    BATCH_NORM_UPDATE,
    CHECKPOINTING,
    DATA_GENERATION,
    DATA_LOADING,
    DATA_TRANSFER,
    EMA_UPDATE,
    FORWARD_PASS,
    LOGGING,
    METRICS_COMPUTATION,
    OPTIMIZER_STEP,
    SAMPLING,
    SYNCHRONIZATION,
    VALIDATION_EPOCH,
)

REST_SAVED: Final = 0.5  # of the waiting that a known source leaves
HALF_AS_OFTEN: Final = 0.5
MOST_OF_IT: Final = 0.5  # share of the time spent waiting for batches, or in backward passes
A_TRIFLE: Final = 0.1  # of the forward pass
ABOUT_ONCE: Final = 1.2  # times in a step
BACKWARD_METHOD: Final = "backward"  # of torch.autograd.Function
Text = str | Callable[[Snapshot], str]  # of a rule, for all runs or for each


def _waits_in_passes(snapshot: Snapshot) -> float:
    """Return the synchronization time if it lies in the forward or backward pass (FSDP: in both); else 0."""
    waits = snapshot.sections.get(SYNCHRONIZATION)
    if waits is None or waits.parent not in (FORWARD_PASS, BACKWARD_PASS):
        return 0.0
    return snapshot.total_of_step_s(SYNCHRONIZATION) or 0.0


@dataclass(frozen=True, slots=True)
class StepShare:
    """A row of the table of rules about one section's share of step time."""

    code: str
    section: str
    threshold: float
    activity: str  # "% of step time is spent ..."
    fix: Text
    saved: float | Callable[[Snapshot], float] = 1.0  # the part of the section's time that a realistic change saves
    fires_at_threshold: bool = False
    has_severity: bool = False
    foreign_s: Callable[[Snapshot], float] | None = None  # time in the section that is not its own work
    more_evidence: Callable[[Snapshot], Evidence] | None = None

    def find(self, snapshot: Snapshot, threshold: float) -> Finding | None:
        """Return a finding if the section takes too much of the step; None below 10 steps, or without the section."""
        share, total_s, step = (
            snapshot.share_of_step(self.section),
            snapshot.total_of_step_s(self.section),
            snapshot.step,
        )
        if share is None or total_s is None or step is None or not has_enough_steps(snapshot):
            return None
        if share < threshold or (share == threshold and not self.fires_at_threshold):
            return None
        saved = self.saved if isinstance(self.saved, float) else self.saved(snapshot)
        if saved * total_s < MIN_SAVING_S:
            return None
        foreign_s = 0.0 if self.foreign_s is None else self.foreign_s(snapshot)
        if foreign_s and share - foreign_s / step.settled_s <= threshold:
            return None
        per_step_s = total_s / step.settled_count
        where = ""
        if snapshot.is_by_device(self.section):
            # Fetching queues no work, so the device is idle in it.
            where = " in which the device has no work" if self.section == DATA_LOADING else " on the device"
        evidence: dict[str, float | int | str] = {
            "share_of_step": share,
            "threshold": threshold,
            "seconds_per_step": per_step_s,
            "steps": step.settled_count,
        }
        if self.has_severity:
            evidence["severity"] = severity_of(share, threshold)
        if self.more_evidence is not None:
            evidence |= self.more_evidence(snapshot)
        return Finding(
            code=self.code,
            message=f"{share:.1%} of step time is spent {self.activity} "
            f"({self.section}: {ms_text(per_step_s)} per step{where})",
            evidence=evidence,
            potential_saving_s=saved * total_s,
            fix=_text_for(snapshot, self.fix),
        )


@dataclass(frozen=True, slots=True)
class RunShare:
    """A row of the table of rules about work between steps: one section's share of the whole run."""

    code: str
    section: str
    threshold: float
    activity: Text  # "% of the run is spent ..."
    fix: Text
    least_count: int = 1  # fewer times than this cannot be less often
    needed_count: int = 0  # of its times; 0 if that is not known
    # Returns the section without what another rule is about.
    without: Callable[[Snapshot, SectionStats], SectionStats] | None = None

    def find(self, snapshot: Snapshot, threshold: float) -> Finding | None:
        """Return a finding if the section takes too much of the run; None below 10 steps, or without the section."""
        section = snapshot.sections.get(self.section)
        if section is None or not section.count or not snapshot.wall_s or not has_enough_steps(snapshot):
            return None
        section = section if self.without is None else self.without(snapshot, section)
        share = section.total_s / snapshot.wall_s
        if share <= threshold or section.total_s < MIN_SAVING_S or section.count < max(1, self.least_count):
            return None
        return Finding(
            code=self.code,
            message=f"{share:.1%} of the run is spent {_text_for(snapshot, self.activity)} "
            f"({self.section}: {_how_often(section)})",
            evidence={
                "share_of_run": share,
                "threshold": threshold,
                "seconds": section.total_s,
                "count": section.count,
            },
            potential_saving_s=section.total_s * self._saved(snapshot, section),
            fix=_text_for(snapshot, self.fix),
        )

    def _saved(self, snapshot: Snapshot, section: SectionStats) -> float:
        """Return the part that is saved by no more than what is needed."""
        if self.needed_count:
            return 1 - self.needed_count / section.count
        return _saved_if_less_often(snapshot, section)


def _text_for(snapshot: Snapshot, text: Text) -> str:
    return text if isinstance(text, str) else text(snapshot)


def _saved_if_less_often(snapshot: Snapshot, section: SectionStats) -> float:
    """Return the share saved by running it once per epoch (half if epochs are unknown)."""
    passes = sum(epoch.is_complete for epoch in snapshot.epochs)
    return max(HALF_AS_OFTEN, 1 - passes / section.count) if passes else HALF_AS_OFTEN


def _may_be_sampling(snapshot: Snapshot) -> bool:
    """Return whether validation has more forward passes than batches: generating samples looks the same."""
    passes, batches = (snapshot.sections.get(f"{VALIDATION_EPOCH}/{name}") for name in (FORWARD_PASS, DATA_LOADING))
    return passes is not None and (batches is None or passes.count > batches.count)


def _without_passes_before(snapshot: Snapshot, section: SectionStats) -> SectionStats:
    """Return validation without the passes before the training that nothing repeats: features, perhaps."""
    before = snapshot.program.passes_before
    if before is None:
        return section
    count, total_s = max(0, section.count - before.passes), max(0.0, section.total_s - before.seconds)
    return replace(section, count=count, total_s=total_s, avg_s=total_s / count if count else 0.0)


def _validating(snapshot: Snapshot) -> str:
    return "validating or generating samples" if _may_be_sampling(snapshot) else "validating"


def _waiting_of_validation(snapshot: Snapshot) -> str:
    """Return how much of validation waits for batches, where that is most of it; else ""."""
    whole, waits = (snapshot.sections.get(name) for name in (VALIDATION_EPOCH, f"{VALIDATION_EPOCH}/{DATA_LOADING}"))
    if whole is None or waits is None or waits.total_s < MOST_OF_IT * whole.total_s:
        return ""
    return f"{duration_text(waits.total_s)} of {duration_text(whole.total_s)}"


def _less_validation(snapshot: Snapshot) -> str:
    if waiting := _waiting_of_validation(snapshot):
        free = free_cpus(snapshot)
        workers = "" if free is not None and free < FREE_CPUS else "raise num_workers of its loader, "
        return f"It mostly waits for its batches ({waiting}): {workers}prepare them once, or validate less often"
    if snapshot.sections[VALIDATION_EPOCH].count == 1:
        return "It ran once: use fewer batches or a larger batch size, or keep its results in a file for the next run"
    if _may_be_sampling(snapshot):
        return "Validate or generate samples less often, on less data, or with a larger batch size"
    return "Validate less often, on fewer batches, or with a larger batch size"


def _clips_with_foreach(snapshot: Snapshot) -> bool:
    """Return whether torch clips all gradients at once by itself, as it does on CUDA devices."""
    facts = snapshot.program.optimizer
    return facts is not None and facts.devices == (CUDA.kind,)


def _fewer_metrics(snapshot: Snapshot) -> str:
    """Return the fix for norms and metrics. Clipping is part of the training, so it cannot be done less often."""
    clip = "Pass foreach=True to clip_grad_norm_ and use" if not _clips_with_foreach(snapshot) else "Use"
    return f"{clip} the norm that clip_grad_norm_ returns; compute other norms and metrics every n-th step"


def _metrics_saved(snapshot: Snapshot) -> float:
    """Return the part of the time for norms and metrics that its fix saves: nothing where it only clips gradients,
    which happens at once already.
    """
    section, step = snapshot.sections[METRICS_COMPUTATION], snapshot.step
    is_once = step is not None and section.count <= ABOUT_ONCE * step.count
    return 0.0 if is_once and _clips_with_foreach(snapshot) else 0.5


def _how_often(section: SectionStats) -> str:
    avg_s = time_text(section.avg_s or 0.0)
    return f"once, {avg_s}" if section.count == 1 else f"{section.count} times, {avg_s} on average"


STEP_SHARES: Final = (
    StepShare(
        code="data-loading-bound",
        section=DATA_LOADING,
        threshold=0.15,
        activity="waiting for the next batch",
        fix=waiting_fix,
        saved=waiting_saved,
        fires_at_threshold=True,
        more_evidence=plan_of_workers,
    ),
    StepShare(
        code="data-generation-bound",
        section=DATA_GENERATION,
        threshold=0.30,
        activity="generating data",
        fix="Generate data in DataLoader workers or ahead of time, or use a faster generator",
        has_severity=True,
    ),
    StepShare(
        code="data-transfer",
        section=DATA_TRANSFER,
        threshold=0.10,
        activity="moving batches to the device",
        fix=transfer_fix,
    ),
    StepShare(
        code="forward-dominates",
        section=FORWARD_PASS,
        threshold=0.60,
        activity="in the forward pass",
        fix=forward_fix,
        saved=0.5,
        foreign_s=_waits_in_passes,
    ),
    StepShare(
        code="optimizer-heavy",
        section=OPTIMIZER_STEP,
        threshold=0.15,
        activity="in the optimizer",
        fix=optimizer_fix,
        saved=optimizer_saves,
    ),
    StepShare(
        code="metrics-heavy",
        section=METRICS_COMPUTATION,
        threshold=0.05,
        activity="computing metrics and norms",
        fix=_fewer_metrics,
        saved=_metrics_saved,
    ),
    StepShare(
        code="logging-heavy",
        section=LOGGING,
        threshold=0.05,
        activity="logging",
        fix="Log every n-th step, and call .item() only there",
    ),
    StepShare(
        code="ema-heavy",
        section=EMA_UPDATE,
        threshold=0.05,
        activity="updating the moving average of the weights",
        fix="Update all parameters at once with torch._foreach_lerp_, or average every n-th step with a decay to match",
    ),
)
RUN_SHARES: Final = (
    RunShare(
        code="validation-heavy",
        section=VALIDATION_EPOCH,
        threshold=0.10,
        activity=_validating,
        fix=_less_validation,
        without=_without_passes_before,
    ),
    RunShare(
        code="sampling-heavy",
        section=SAMPLING,
        threshold=0.10,
        activity="generating samples",
        fix="Generate samples less often, generate fewer, or use fewer sampling steps",
    ),
    RunShare(
        code="checkpointing-heavy",
        section=CHECKPOINTING,
        threshold=0.05,
        activity="saving checkpoints",
        fix="Save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
        least_count=2,  # the one at the end is needed
    ),
    RunShare(
        code="batch-norm-update-heavy",
        section=BATCH_NORM_UPDATE,
        threshold=0.05,
        activity="computing statistics of batch norms",
        fix="Call update_bn once, after the last epoch, before the averaged model is used; where each epoch evaluates "
        "it, pass some of the batches (itertools.islice)",
        least_count=2,
        needed_count=1,
    ),
)
for step_row in STEP_SHARES:
    RULES.add(Rule(step_row.code, step_row.threshold, step_row.find))
for run_row in RUN_SHARES:
    RULES.add(Rule(run_row.code, run_row.threshold, run_row.find, Saving.RUN))


@RULES.rule("backward-slow", threshold=3.0)  # 2x is expected: twice the arithmetic
def backward_against_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a backward pass that takes over three times the forward pass; None if either was not measured.

    Unattributed time counts as forward pass: functional code computes its loss outside of every module. With more
    backward passes than forward passes, such as gradients of gradients, each is compared with a forward pass. Page
    faults are another finding; all of them may be in the backward pass, whose gradients are new memory.
    """
    forward_s = snapshot.total_of_step_s(FORWARD_PASS)
    backward_s = snapshot.total_of_step_s(BACKWARD_PASS)
    if not forward_s or backward_s is None or not has_enough_steps(snapshot):
        return None
    if snapshot.is_by_device(FORWARD_PASS) != snapshot.is_by_device(BACKWARD_PASS):
        return None  # host time of one and device time of the other cannot be compared
    if _waits_for_host(snapshot):
        return None  # its times are those in which the host launches work, which says nothing about the work
    backward_s -= _synchronization_within(snapshot, BACKWARD_PASS)
    faults = None if snapshot.is_by_device(BACKWARD_PASS) else page_fault_time(snapshot)
    if faults is not None and snapshot.step is not None and snapshot.step.total_s:
        backward_s -= faults.seconds * snapshot.step.settled_s / snapshot.step.total_s
    other_s = 0.0 if snapshot.is_by_device(FORWARD_PASS) else snapshot.total_of_step_s(OTHER) or 0.0
    forward = "forward pass" if other_s <= A_TRIFLE * forward_s else "forward pass and the time in no section"
    forward_s = (forward_s + other_s) * max(1.0, _backwards_a_forward(snapshot))
    ratio = backward_s / forward_s
    potential_saving_s, own = backward_s - 2 * forward_s, _own_function(snapshot)
    if ratio <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    if own is not None:
        potential_saving_s = min(backward_s, own.share / snapshot.sections[BACKWARD_PASS].share * backward_s)
    return Finding(
        code="backward-slow",
        message=f"The backward pass takes {ratio:.1f}x as long as the {forward} (usual: 2x)",
        evidence={"ratio": ratio, "threshold": threshold, "backward_s": backward_s, "forward_s": forward_s},
        potential_saving_s=potential_saving_s,
        fix="Check for memory pressure, activation checkpointing (recomputation) and custom autograd functions "
        "without a fused backward"
        if own is None
        else f"Do less in {own.place} {own.what}: operations on whole tensors, and no loops over their elements",
    )


def _waits_for_host(snapshot: Snapshot) -> bool:
    """Return whether a device with measured times is idle in many of them."""
    return snapshot.is_by_device(BACKWARD_PASS) and is_device_idle(snapshot)


def _own_function(snapshot: Snapshot) -> LineStats | None:
    """Return the place in the backward method of an autograd function of the user's with most of the time, if any.

    A trainer's method of that name calls ``loss.backward()``.
    """
    section, places = snapshot.sections[BACKWARD_PASS], snapshot.hottest(BACKWARD_PASS, of_steps=True)
    if not places or places[0].share < MOST_OF_IT * section.share:
        return None
    place = places[0]
    calls_it = sum(share for name, share in place.called.items() if name.rpartition(".")[2] == BACKWARD_METHOD)
    is_own = place.function.rpartition(".")[2] == BACKWARD_METHOD and bool(place.called) and not place.inside
    return place if is_own and calls_it < MOST_OF_IT * place.share else None


def _backwards_a_forward(snapshot: Snapshot) -> float:
    forwards, backwards = (snapshot.sections[name].count for name in (FORWARD_PASS, BACKWARD_PASS))
    return backwards / forwards if forwards else 1.0


def _synchronization_within(snapshot: Snapshot, name: str) -> float:
    """Return the synchronization time within a section: waiting for other ranks is not the section's own work."""
    waits = snapshot.sections.get(SYNCHRONIZATION)
    if waits is None or waits.parent != name or snapshot.is_by_device(name):
        return 0.0
    return snapshot.total_of_step_s(SYNCHRONIZATION) or 0.0


def with_specifics(findings: list[Finding]) -> list[Finding]:
    """Return the findings; the fix for waiting for batches starts with a known source of most of the waiting."""
    by_code = {finding.code: finding for finding in findings}
    waiting = by_code.get("data-loading-bound")
    for code, source in (("loader-slow", "Mostly this loader"), ("first-batch-slow", "Mostly the first batches")):
        cause = by_code.get(code)
        if waiting is None or cause is None or cause.potential_saving_s < MOST_OF_IT * waiting.potential_saving_s:
            continue
        name = f" ({cause.evidence['loader']})" if "loader" in cause.evidence else ""
        saving_s = waiting.potential_saving_s
        if code == "first-batch-slow":  # the other batches are waited for as before
            saving_s = cause.potential_saving_s + (saving_s - cause.potential_saving_s) * REST_SAVED
        better = replace(waiting, fix=f"{source}{name}: {cause.fix}", potential_saving_s=saving_s)
        return [better if finding.code == waiting.code else finding for finding in findings]
    return findings


def severity_of(share: float, threshold: float) -> float:
    """Return how far a share is above its threshold: 0 at the threshold, 1 for a share of 1."""
    return min(1.0, max(0.0, (share - threshold) / (1 - threshold))) if threshold < 1 else 0.0
