"""Rules about sections that take too much of the step, or of the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from training_profiler.base.backends import CUDA
from training_profiler.base.sections import (
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
    WITHIN,
)
from training_profiler.base.units import duration_text, ms_text, time_text
from training_profiler.diagnosis.compute_fixes import (
    COMPUTING_TRIALS,
    FEW_TENSORS,
    forward_fix,
    optimizer_fix,
    optimizer_saves,
)
from training_profiler.diagnosis.finding import Change, Evidence, Finding, Fix
from training_profiler.diagnosis.loader_fixes import (
    LOADING_TRIALS,
    plan_of_workers,
    slowest_loader,
    transfer_fix,
    waiting_fix,
    waiting_saved,
)
from training_profiler.diagnosis.registry import (
    MIN_SAVING_S,
    RULES,
    RunRule,
    Saving,
    cost_of_run,
    found,
    has_enough_steps,
    row_of,
)
from training_profiler.diagnosis.worker_plan import FREE_CPUS, free_cpus
from training_profiler.model.program import LOADER, OPTIMIZER
from training_profiler.model.snapshot import SectionStats, Snapshot

HALF_AS_OFTEN: Final = 0.5
MANY: Final = 20  # times, of which two are left by each 10th
MOST_OF_IT: Final = 0.5  # share of the time spent waiting for batches, or in backward passes
Advice = Fix | Callable[[Snapshot], Fix]


def _waits_in_passes(snapshot: Snapshot) -> float:
    """Return the synchronization time if it lies in the forward or backward pass (FSDP: in both); else 0."""
    waits = snapshot.sections.get(SYNCHRONIZATION)
    if waits is None or waits.parent not in (FORWARD_PASS, BACKWARD_PASS):
        return 0.0
    return snapshot.total_of_step_s(SYNCHRONIZATION) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShare(RunRule):
    """A row of the table of rules about one section's share of step time."""

    says_where: bool = True
    section: str  # which it claims
    activity: str  # "% of step time is spent ..."
    fix: Advice
    saved: float | Callable[[Snapshot], float] = 1.0  # the part of the section's time that a realistic change saves
    fires_at_threshold: bool = False
    has_severity: bool = False
    foreign_s: Callable[[Snapshot], float] | None = None  # time in the section that is not its own work
    more_evidence: Callable[[Snapshot], Evidence] | None = None

    def find(self, snapshot: Snapshot, threshold: float) -> Finding | None:
        """Return a finding if the section takes too much of the step; None below 10 steps, or without the section."""
        share, total_s = snapshot.share_of_step(self.section), snapshot.total_of_step_s(self.section)
        step = snapshot.step
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
        evidence: dict[str, float | int | str] = {"share_of_step": share, "threshold": threshold}
        evidence |= {"seconds_per_step": per_step_s, "steps": step.settled_count}
        if self.has_severity:
            evidence["severity"] = severity_of(share, threshold)
        if self.more_evidence is not None:
            evidence |= self.more_evidence(snapshot)
        return found(
            f"{share:.1%} of step time is spent {self.activity} "
            f"({self.section}: {ms_text(per_step_s)} per step{where})",
            evidence,
            _fix_for(snapshot, self.fix),
            saving_s=saved * total_s,
        )


def _passes(snapshot: Snapshot) -> int:
    return sum(epoch.is_complete for epoch in snapshot.epochs)


def _once_an_epoch(snapshot: Snapshot, count: int) -> float:
    """Return the part that once in each pass saves; half where passes are unknown."""
    return max(HALF_AS_OFTEN, 1 - (_passes(snapshot) or count) / count)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShare(RunRule):
    """A row of the table of rules about work between steps: one section's share of the whole run."""

    says_where: bool = True
    section: str  # which it claims
    activity: str | Callable[[Snapshot], str]  # "% of the run is spent ..."
    fix: Advice
    saving: Saving = Saving.RUN
    least_count: int = 1  # fewer times than this cannot be less often
    saved: Callable[[Snapshot, int], float] = _once_an_epoch  # the part that its fix saves of so many times
    # Returns the section without what another rule is about.
    without: Callable[[Snapshot, SectionStats], SectionStats] | None = None

    def find(self, snapshot: Snapshot, threshold: float) -> Finding | None:
        """Return a finding if the section takes too much of the run; None below 10 steps, or without the section."""
        section = snapshot.sections.get(self.section)
        if section is None or not section.count or not has_enough_steps(snapshot):
            return None
        section = section if self.without is None else self.without(snapshot, section)
        parts = (
            each for name, each in snapshot.sections.items() if f"{name}{WITHIN}".startswith(f"{self.section}{WITHIN}")
        )
        within_s = min(section.total_s, sum(each.training_s for each in parts))
        cost = cost_of_run(snapshot, threshold, section.total_s, within_s=within_s)
        if section.count < max(1, self.least_count):
            return None
        activity = self.activity if isinstance(self.activity, str) else self.activity(snapshot)
        avg = time_text(section.avg_s or 0.0)
        of = "run" if cost.share_of == "share_of_run" else "training time"
        how_often = f"once, {avg}" if section.count == 1 else f"{section.count} times, {avg} on average"
        return replace(cost, saving_s=section.total_s * self.saved(snapshot, section.count)).finding(
            f"{cost.share:.1%} of the {of} is spent {activity} ({self.section}: {how_often})",
            _fix_for(snapshot, self.fix),
            seconds=section.total_s,
            count=section.count,
        )


def _rarer(snapshot: Snapshot, count: int) -> tuple[str, float]:
    """Return how often is enough of what is done ``count`` times, and the part of its time that this saves."""
    passes = _passes(snapshot)
    if 0 < 2 * passes <= count:
        return "once an epoch", 1 - passes / count
    return ("at each 10th of these times", 0.9) if count >= MANY else ("half as often", HALF_AS_OFTEN)


def _rarer_checkpoints(snapshot: Snapshot) -> Fix:
    how_often, _ = _rarer(snapshot, snapshot.sections[CHECKPOINTING].count)
    return Fix(f"Save {how_often}, or asynchronously (torch.distributed.checkpoint.async_save)", (Change.LESS_OUTPUT,))


def _fix_for(snapshot: Snapshot, fix: Advice) -> Fix:
    return fix if isinstance(fix, Fix) else fix(snapshot)


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


def _less_validation(snapshot: Snapshot) -> Fix:
    whole, waits = snapshot.sections[VALIDATION_EPOCH], snapshot.sections.get(f"{VALIDATION_EPOCH}/{DATA_LOADING}")
    if waits is not None and waits.total_s >= MOST_OF_IT * whole.total_s:
        waiting = f"{duration_text(waits.total_s)} of {duration_text(whole.total_s)}"
        free, loaders = free_cpus(snapshot), [each for each in snapshot.loaders if each.phase == "val"]
        which = f"loader {max(loaders, key=lambda each: each.wait_s).name}" if len(loaders) > 1 else "its loader"
        workers = "Prepare" if free is not None and free < FREE_CPUS else f"Raise num_workers of {which}, prepare"
        text = f"{workers} its batches once, or validate less often: it mostly waits for them ({waiting})"
        return Fix(text, (Change.LESS_VALIDATION,))
    if whole.count == 1:
        return Fix(
            "Use fewer batches or a larger batch size, or keep its results in a file for the next run: it ran once"
        )
    if _may_be_sampling(snapshot):
        text = "Validate or generate samples less often, on less data, or with a larger batch size"
        return Fix(text, (Change.LESS_VALIDATION,))
    return Fix("Validate less often, on fewer batches, or with a larger batch size", (Change.LESS_VALIDATION,))


def _clips_at_once(snapshot: Snapshot) -> bool:
    """Return whether torch clips all gradients at once by itself, as it does on CUDA devices."""
    facts = snapshot.program.optimizer
    return facts is not None and facts.devices == (CUDA.kind,)


def _fewer_metrics(snapshot: Snapshot) -> Fix:
    """Return the fix for norms and metrics. Clipping is part of the training, so it cannot be done less often."""
    if calls := _clips_one_by_one(snapshot):
        return Fix(
            f"Call clip_grad_norm_ once for all parameters, not {calls:.0f} times a step; torch._foreach_norm and "
            "torch._foreach_mul_ clip each by its own norm",
            (Change.ONE_NORM, Change.FOREACH),
        )
    rest = "the norm that clip_grad_norm_ returns; compute other norms and metrics every n-th step"
    if _clips_at_once(snapshot):
        return Fix(f"Use {rest}", (Change.LESS_OFTEN,))
    return Fix(f"Pass foreach=True to clip_grad_norm_ and use {rest}", (Change.FOREACH, Change.LESS_OFTEN))


def _metrics_saved(snapshot: Snapshot) -> float:
    """Return the part of the time that its fix saves: nothing where it only clips gradients, and all at once."""
    section, step = snapshot.sections[METRICS_COMPUTATION], snapshot.step
    are_inside = {bool(line.inside) for line in snapshot.lines_of_steps(METRICS_COMPUTATION)}
    if (are_inside or {snapshot.has_hugging_face_trainer}) == {True}:
        return 0.0  # a trainer clips, in a call that the user cannot edit
    if _clips_one_by_one(snapshot):
        return 0.8
    is_once = step is not None and section.count <= 1.2 * step.count
    return 0.0 if is_once and _clips_at_once(snapshot) else 0.5


def _clips_one_by_one(snapshot: Snapshot) -> float:
    """Return how often a step clips gradients, where a loop over parameters does; 0 for a few calls."""
    section, step = snapshot.sections[METRICS_COMPUTATION], snapshot.step
    calls = section.spans_in_steps / step.count if step is not None and step.count else 0.0
    lines = snapshot.lines_of_steps(METRICS_COMPUTATION)
    clipping = sum(share for line in lines for name, share in line.called.items() if name.endswith("clip_grad_norm_"))
    return calls if calls >= FEW_TENSORS and clipping >= 0.5 * section.share > 0 else 0.0


def _saves_of_waiting(finding: Finding, _: Snapshot) -> tuple[float, float]:
    """Return the range: a faster data set saves all waiting, more workers a part."""
    waited_s = float(finding.evidence["seconds_per_step"]) * int(finding.evidence["steps"])
    return 0.5, max(1.0, waited_s / finding.potential_saving_s)


def _with_source(finding: Finding, findings: Sequence[Finding], snapshot: Snapshot) -> Finding:
    """Return the finding; its fix starts with a known source of most of the waiting."""
    by_code = {each.code: each for each in findings}
    for code, source in (("loader-slow", "Mostly this loader"), ("first-batch-slow", "Mostly the first batches")):
        cause = by_code.get(code)
        if cause is None or cause.potential_saving_s < MOST_OF_IT * finding.potential_saving_s:
            continue
        name = f" ({cause.evidence['loader']})" if "loader" in cause.evidence else ""
        saving_s = finding.potential_saving_s
        if code == "first-batch-slow":  # the other batches are waited for as before
            saving_s = cause.potential_saving_s + (saving_s - cause.potential_saving_s) * 0.5
        loader, actions = slowest_loader(snapshot), cause.actions
        if loader is not None and loader.name == cause.evidence.get("loader"):
            actions = tuple(action.of_loader(loader.name) for action in finding.actions)
        fix = Fix(f"{source}{name}: {cause.fix}", cause.changes, actions)
        return replace(finding, fix=fix, potential_saving_s=saving_s)
    return finding


STEP_SHARES: Final = (
    StepShare(
        code="data-loading-bound",
        threshold=0.15,
        section=DATA_LOADING,
        activity="waiting for the next batch",
        fix=waiting_fix,
        saved=waiting_saved,
        fires_at_threshold=True,
        more_evidence=plan_of_workers,
        label="INPUT-BOUND",
        saves=_saves_of_waiting,
        try_=(*LOADING_TRIALS, "jemalloc", "tcmalloc"),
        call=LOADER,
        explains_idle=True,
        is_of_host=True,
        is_of_workers=True,
        beside=_with_source,
    ),
    StepShare(
        code="data-generation-bound",
        threshold=0.30,
        section=DATA_GENERATION,
        activity="generating data",
        fix=Fix(
            "Generate data in DataLoader workers or ahead of time, or use a faster generator", (Change.AHEAD_OF_TIME,)
        ),
        has_severity=True,
        label="INPUT-BOUND",
        try_=("num_threads",),
        explains_idle=True,
        is_of_host=True,
    ),
    StepShare(
        code="data-transfer",
        threshold=0.10,
        section=DATA_TRANSFER,
        activity="moving batches to the device",
        fix=transfer_fix,
        label="TRANSFER-BOUND",
        saves=(0.3, 1.0),
        try_=("pin_memory",),
        call=LOADER,
        explains_idle=True,
    ),
    StepShare(
        code="forward-dominates",
        threshold=0.60,
        section=FORWARD_PASS,
        activity="in the forward pass",
        fix=forward_fix,
        saved=0.5,
        foreign_s=_waits_in_passes,
        label="COMPUTE-BOUND",
        saves=(0.0, 1.5),
        try_=COMPUTING_TRIALS,
    ),
    StepShare(
        code="optimizer-heavy",
        threshold=0.15,
        section=OPTIMIZER_STEP,
        activity="in the optimizer",
        fix=optimizer_fix,
        saved=optimizer_saves,
        label="OPTIMIZER",
        saves=(0.4, 1.3),
        try_=("fused", "foreach", "set_to_none"),
        call=OPTIMIZER,
    ),
    StepShare(
        code="metrics-heavy",
        threshold=0.05,
        section=METRICS_COMPUTATION,
        activity="computing metrics and norms",
        fix=_fewer_metrics,
        saved=_metrics_saved,
        label="METRICS",
        explains_idle=True,
    ),
    StepShare(
        code="logging-heavy",
        threshold=0.05,
        section=LOGGING,
        activity="logging",
        fix=Fix("Log every n-th step, and call .item() only there", (Change.LESS_OUTPUT,)),
        label="LOGGING",
        try_=("no_scalars",),
        explains_idle=True,
        is_of_host=True,
    ),
    StepShare(
        code="ema-heavy",
        threshold=0.05,
        section=EMA_UPDATE,
        activity="updating the moving average of the weights",
        fix=Fix(
            "Average every n-th step with a decay to match, or all parameters at once (multi_avg_fn, "
            "torch._foreach_lerp_) where a loop does",
            (Change.RARER_AVERAGE, Change.FOREACH_AVERAGE),
        ),
        label="EMA",
        explains_idle=True,
    ),
)
RUN_SHARES: Final = (
    RunShare(
        code="validation-heavy",
        threshold=0.10,
        section=VALIDATION_EPOCH,
        activity=lambda run: "validating or generating samples" if _may_be_sampling(run) else "validating",
        fix=_less_validation,
        without=_without_passes_before,
        label="VALIDATION",
        saves=(0.5, 1.1),
        try_=("no_validation",),
        follows=lambda _, other: row_of(other).is_cause and VALIDATION_EPOCH in row_of(other).sections_of(other),
    ),
    RunShare(
        code="sampling-heavy",
        threshold=0.10,
        section=SAMPLING,
        activity="generating samples",
        fix=Fix("Generate samples less often, generate fewer, or use fewer sampling steps", (Change.LESS_VALIDATION,)),
        label="SAMPLING",
        saves=(0.5, 1.8),
    ),
    RunShare(
        code="checkpointing-heavy",
        threshold=0.05,
        section=CHECKPOINTING,
        activity="saving checkpoints",
        fix=_rarer_checkpoints,
        saved=lambda snapshot, count: _rarer(snapshot, count)[1],
        least_count=2,  # the one at the end is needed
        label="CHECKPOINTS",
        saves=(0.5, 1.1),
        try_=("no_checkpoints",),
        explains_idle=True,
        is_of_host=True,
    ),
    RunShare(
        code="batch-norm-update-heavy",
        threshold=0.05,
        section=BATCH_NORM_UPDATE,
        activity="computing statistics of batch norms",
        fix=Fix(
            "Call update_bn once, after the last epoch, before the averaged model is used; where each epoch evaluates "
            "it, pass some of the batches (itertools.islice)",
            (Change.ONE_BN_UPDATE,),
        ),
        least_count=2,
        saved=lambda _, count: 1 - 1 / count,
        label="BATCH NORM UPDATE",
        saves=(0.8, 1.1),
    ),
)
for row in (*STEP_SHARES, *RUN_SHARES):
    RULES.add(replace(row, claims=(row.section,)))


def severity_of(share: float, threshold: float) -> float:
    """Return how far a share is above its threshold: 0 at the threshold, 1 for a share of 1."""
    return min(1.0, max(0.0, (share - threshold) / (1 - threshold))) if threshold < 1 else 0.0
