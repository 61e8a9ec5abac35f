"""Rules about sections that take too much of the step, or of the run. Thresholds: PROFILING.md, "Rules"."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Rule, Saving
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import seconds_text

MOST_OF_IT: Final = 0.5  # of the waiting for batches


def _waits_in_passes(snapshot: Snapshot) -> float:
    """Return the time of exchange with other ranks if it is part of the passes, as FSDP's is of both; else 0."""
    waits = snapshot.sections.get("synchronization")
    if waits is None or waits.parent not in ("forward_pass", "backward_pass"):
        return 0.0
    return snapshot.total_of_step_s("synchronization") or 0.0


@dataclass(frozen=True, slots=True)
class StepShare:
    """A row of the table of rules about one section's share of step time."""

    code: str
    section: str
    threshold: float
    activity: str  # "% of step time is spent ..."
    fix: str
    saved: float = 1.0  # the part of the section's time that a realistic change saves
    fires_at_threshold: bool = False
    has_severity: bool = False
    foreign_s: Callable[[Snapshot], float] | None = None  # time in the section that does not count as the section's

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
        if self.saved * total_s < MIN_SAVING_S:
            return None
        foreign_s = 0.0 if self.foreign_s is None else self.foreign_s(snapshot)
        if foreign_s and share - foreign_s / step.settled_s <= threshold:
            return None
        per_step_s = total_s / step.settled_count
        where = " on the device" if snapshot.is_by_device(self.section) else ""
        evidence: dict[str, float | int | str] = {
            "share_of_step": share,
            "threshold": threshold,
            "seconds_per_step": per_step_s,
            "steps": step.settled_count,
        }
        if self.has_severity:
            evidence["severity"] = severity_of(share, threshold)
        return Finding(
            code=self.code,
            message=f"{share:.1%} of step time is spent {self.activity} "
            f"({self.section}: {seconds_text(per_step_s)} a step{where})",
            evidence=evidence,
            potential_saving_s=self.saved * total_s,
            fix=self.fix,
        )


@dataclass(frozen=True, slots=True)
class RunShare:
    """A row of the table of rules about work between steps: one section's share of the whole run."""

    code: str
    section: str
    threshold: float
    activity: str  # "% of the run is spent ..."
    fix: str

    def find(self, snapshot: Snapshot, threshold: float) -> Finding | None:
        """Return a finding if the section takes too much of the run; None below 10 steps, or without the section."""
        section = snapshot.sections.get(self.section)
        if section is None or not section.count or not snapshot.wall_s or not has_enough_steps(snapshot):
            return None
        share = section.total_s / snapshot.wall_s
        if share <= threshold or section.total_s < MIN_SAVING_S:
            return None
        return Finding(
            code=self.code,
            message=f"{share:.1%} of the run is spent {self.activity} "
            f"({self.section}: {section.count} times, {section.avg_s or 0:.4f}s avg)",
            evidence={
                "share_of_run": share,
                "threshold": threshold,
                "seconds": section.total_s,
                "count": section.count,
            },
            potential_saving_s=section.total_s / 2,  # half as often
            fix=self.fix,
        )


STEP_SHARES: Final = (
    StepShare(
        code="data-loading-bound",
        section="data_loading",
        threshold=0.15,
        activity="waiting for the next batch",
        fix="raise DataLoader(num_workers=...), then pin_memory=True, persistent_workers=True and a larger "
        "prefetch_factor; else faster storage or less preprocessing",
        fires_at_threshold=True,
    ),
    StepShare(
        code="data-generation-bound",
        section="data_generation",
        threshold=0.30,
        activity="generating data",
        fix="generate in DataLoader workers, generate ahead of time, or use a faster generator",
        has_severity=True,
    ),
    StepShare(
        code="data-transfer",
        section="data_transfer",
        threshold=0.10,
        activity="moving batches to the device",
        fix="pin_memory=True in the DataLoader together with .to(device, non_blocking=True); prefetch to the device",
    ),
    StepShare(
        code="forward-dominates",
        section="forward_pass",
        threshold=0.60,
        activity="in the forward pass",
        fix="mixed precision (torch.autocast), torch.compile, or a leaner architecture",
        saved=0.5,
        foreign_s=_waits_in_passes,
    ),
    StepShare(
        code="optimizer-heavy",
        section="optimizer_step",
        threshold=0.15,
        activity="in the optimizer",
        fix="fused=True or foreach=True in the optimizer; accumulate gradients over several batches",
        saved=0.5,
    ),
    StepShare(
        code="metrics-heavy",
        section="metrics_computation",
        threshold=0.05,
        activity="computing metrics and norms",
        fix="compute them every n-th step, and norms with torch._foreach_norm or clip_grad_norm_'s return value",
    ),
    StepShare(
        code="logging-heavy",
        section="logging",
        threshold=0.05,
        activity="logging",
        fix="log every n-th step, and call .item() only there",
    ),
    StepShare(
        code="ema-heavy",
        section="ema_update",
        threshold=0.05,
        activity="updating the moving average of the weights",
        fix="torch._foreach_lerp_ over all parameters at once, or update every n-th step",
    ),
)
RUN_SHARES: Final = (
    RunShare(
        code="validation-heavy",
        section="validation_epoch",
        threshold=0.10,
        activity="validating",
        fix="validate less often, on fewer batches, or with a larger batch size",
    ),
    RunShare(
        code="sampling-heavy",
        section="sampling",
        threshold=0.10,
        activity="generating samples",
        fix="sample less often, fewer or with fewer steps",
    ),
    RunShare(
        code="checkpointing-heavy",
        section="checkpointing",
        threshold=0.10,
        activity="saving checkpoints",
        fix="save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    ),
)
for step_row in STEP_SHARES:
    RULES.add(Rule(step_row.code, step_row.threshold, step_row.find))
for run_row in RUN_SHARES:
    RULES.add(Rule(run_row.code, run_row.threshold, run_row.find, Saving.RUN))


@RULES.rule("backward-slow", threshold=3.0)  # twice is what the arithmetic asks for
def backward_against_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a backward pass longer than three forward passes; None where either was not seen."""
    forward_s = snapshot.total_of_step_s("forward_pass")
    backward_s = snapshot.total_of_step_s("backward_pass")
    if not forward_s or backward_s is None or not has_enough_steps(snapshot):
        return None
    if snapshot.is_by_device("forward_pass") != snapshot.is_by_device("backward_pass"):
        return None  # the host's time of the one says nothing about the device's of the other
    backward_s -= _exchanged_within(snapshot, "backward_pass")
    ratio = backward_s / forward_s
    potential_saving_s = backward_s - 2 * forward_s
    if ratio <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code="backward-slow",
        message=f"the backward pass takes {ratio:.1f}x the forward pass (2x is usual)",
        evidence={"ratio": ratio, "threshold": threshold, "backward_s": backward_s, "forward_s": forward_s},
        potential_saving_s=potential_saving_s,
        fix="look for memory pressure, activation checkpointing (recomputation) and custom autograd functions "
        "without a fused backward",
    )


def _exchanged_within(snapshot: Snapshot, name: str) -> float:
    """Return the time of exchange between ranks within a section: what ranks wait for each other is no work of it."""
    exchange = snapshot.sections.get("synchronization")
    if exchange is None or exchange.parent != name or snapshot.is_by_device(name):
        return 0.0
    return snapshot.total_of_step_s("synchronization") or 0.0


def with_specifics(found: list[Finding]) -> list[Finding]:
    """Return the insights; that of waiting for batches says first what others know of where the waiting comes from."""
    by_code = {finding.code: finding for finding in found}
    waiting = by_code.get("data-loading-bound")
    for code, whence in (("loader-slow", "this loader above all"), ("first-batch-slow", "the first batches above all")):
        cause = by_code.get(code)
        if waiting is None or cause is None or cause.potential_saving_s < MOST_OF_IT * waiting.potential_saving_s:
            continue
        named = f" ({cause.evidence['loader']})" if "loader" in cause.evidence else ""
        fix = f"{whence}{named}: {cause.fix}"
        return [replace(one, fix=fix) if one.code == waiting.code else one for one in found]
    return found


def severity_of(share: float, threshold: float) -> float:
    """Return how far a share is above its threshold: 0 at the threshold, 1 where all is that."""
    return min(1.0, max(0.0, (share - threshold) / (1 - threshold))) if threshold < 1 else 0.0
