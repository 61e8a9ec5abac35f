"""Rules about sections that take too large a share of the step or of the run."""

from typing import Final, NamedTuple

from training_profiler.diagnosis.insight import Insight
from training_profiler.snapshot import OTHER, Snapshot
from training_profiler.units import seconds_text

# A share means nothing before a few steps have been seen.
STEPS_NEEDED: Final = 10
# No alarm about trifles: what is worth less than this over the run is not mentioned, whatever its share.
WORTH_AT_LEAST_S: Final = 0.02


class ShareRule(NamedTuple):
    """A section, the share from which on it is remarkable, and the way to make it smaller."""

    section: str
    share: float
    code: str
    what: str
    remedy: str
    fires_at_threshold: bool = False

    def is_below(self, share: float) -> bool:
        """Return whether ``share`` is too small for the rule."""
        return share < self.share or (share == self.share and not self.fires_at_threshold)


# Thresholds: PROFILING.md, "Rules". Worth is the whole cost, for each of these can be hidden or avoided,
# but for those marked in HALF, of which a realistic change saves about half.
OF_STEP: Final = (
    ShareRule(
        "data_loading",
        0.15,
        "data-loading-bound",
        "waiting for the next batch",
        "raise DataLoader(num_workers=...), then pin_memory=True, persistent_workers=True and a larger "
        "prefetch_factor; else faster storage or less preprocessing",
        fires_at_threshold=True,
    ),
    ShareRule(
        "data_generation",
        0.30,
        "data-generation-bound",
        "generating data",
        "generate in DataLoader workers, generate ahead of time, or use a faster generator",
    ),
    ShareRule(
        "data_transfer",
        0.10,
        "data-transfer",
        "moving batches to the device",
        "pin_memory=True in the DataLoader together with .to(device, non_blocking=True); prefetch to the device",
    ),
    ShareRule(
        "forward_pass",
        0.60,
        "forward-dominates",
        "in the forward pass",
        "mixed precision (torch.autocast), torch.compile, or a leaner architecture",
    ),
    ShareRule(
        "optimizer_step",
        0.15,
        "optimizer-heavy",
        "in the optimizer",
        "fused=True or foreach=True in the optimizer; accumulate gradients over several batches",
    ),
    ShareRule(
        "metrics_computation",
        0.05,
        "metrics-heavy",
        "computing metrics and norms",
        "compute them every n-th step, and norms with torch._foreach_norm or clip_grad_norm_'s return value",
    ),
    ShareRule(
        "logging",
        0.05,
        "logging-heavy",
        "logging",
        "log every n-th step, and call .item() only there",
    ),
    ShareRule(
        "ema_update",
        0.05,
        "ema-heavy",
        "updating the moving average of the weights",
        "torch._foreach_lerp_ over all parameters at once, or update every n-th step",
    ),
    ShareRule(
        "synchronization",
        0.10,
        "synchronization-heavy",
        "waiting for other ranks",
        "look for the slowest rank first; then larger DDP buckets, gradient accumulation, or a faster network",
    ),
)
HALF: Final = ("forward_pass", "optimizer_step")
OF_RUN: Final = (
    ShareRule(
        "validation_epoch",
        0.10,
        "validation-heavy",
        "validating",
        "validate less often, on fewer batches, or with a larger batch size",
    ),
    ShareRule(
        "sampling",
        0.10,
        "sampling-heavy",
        "generating samples",
        "sample less often, fewer or with fewer steps",
    ),
    ShareRule(
        "checkpointing",
        0.10,
        "checkpointing-heavy",
        "saving checkpoints",
        "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    ),
)
OTHER_SHARE: Final = 0.10
BACKWARD_TO_FORWARD: Final = 3.0  # twice is what the arithmetic asks for


def has_enough_steps(snapshot: Snapshot) -> bool:
    """Return whether shares of the step can be trusted."""
    return snapshot.step is not None and snapshot.step.settled_count >= STEPS_NEEDED


def share_of_step(snapshot: Snapshot, rule: ShareRule) -> Insight | None:
    """Flag a section that takes ``rule.share`` of step time or more; None below 10 steps."""
    share = snapshot.share_of_step(rule.section)
    total_s = snapshot.total_of_step_s(rule.section)
    if share is None or total_s is None or not has_enough_steps(snapshot) or rule.is_below(share):
        return None
    worth_s = total_s / 2 if rule.section in HALF else total_s
    if worth_s < WORTH_AT_LEAST_S or snapshot.step is None:
        return None
    per_step_s = total_s / snapshot.step.settled_count
    return Insight(
        code=rule.code,
        finding=f"{share:.1%} of step time is spent {rule.what} ({rule.section}: {seconds_text(per_step_s)} a step)",
        evidence={
            "share_of_step": share,
            "threshold": rule.share,
            "seconds_per_step": per_step_s,
            "steps": snapshot.step.settled_count,
        },
        worth_s=worth_s,
        remedy=rule.remedy,
    )


def share_of_run(snapshot: Snapshot, rule: ShareRule) -> Insight | None:
    """Flag work between steps that takes ``rule.share`` of the run or more; None below 10 steps."""
    section = snapshot.sections.get(rule.section)
    if section is None or not section.count or not snapshot.wall_s or not has_enough_steps(snapshot):
        return None
    share = section.total_s / snapshot.wall_s
    if rule.is_below(share) or section.total_s < WORTH_AT_LEAST_S:
        return None
    return Insight(
        code=rule.code,
        finding=f"{share:.1%} of the run is spent {rule.what} ({rule.section}: {section.count} times, "
        f"{section.avg_s or 0:.4f}s avg)",
        evidence={
            "share_of_run": share,
            "threshold": rule.share,
            "seconds": section.total_s,
            "count": section.count,
        },
        worth_s=section.total_s / 2,  # half as often
        remedy=rule.remedy,
    )


def backward_against_forward(snapshot: Snapshot) -> Insight | None:
    """Flag a backward pass longer than three forward passes; None where either was not seen."""
    forward_s = snapshot.total_of_step_s("forward_pass")
    backward_s = snapshot.total_of_step_s("backward_pass")
    if not forward_s or backward_s is None or not has_enough_steps(snapshot):
        return None
    ratio = backward_s / forward_s
    worth_s = backward_s - 2 * forward_s
    if ratio <= BACKWARD_TO_FORWARD or worth_s < WORTH_AT_LEAST_S:
        return None
    return Insight(
        code="backward-slow",
        finding=f"the backward pass takes {ratio:.1f}x the forward pass (2x is usual)",
        evidence={
            "ratio": ratio,
            "threshold": BACKWARD_TO_FORWARD,
            "backward_s": backward_s,
            "forward_s": forward_s,
        },
        worth_s=worth_s,
        remedy="look for memory pressure, activation checkpointing (recomputation) and custom autograd functions "
        "without a fused backward",
    )


def unexplained(snapshot: Snapshot) -> Insight | None:
    """Flag step time that no section covers, above 10 %; None below 10 steps."""
    other = snapshot.sections.get(OTHER)
    if other is None or snapshot.step is None or not has_enough_steps(snapshot) or not snapshot.step.settled_s:
        return None
    share = other.settled_total_s / snapshot.step.settled_s
    has_sections = any(section.count for section in snapshot.sections.values())
    if share <= OTHER_SHARE or other.settled_total_s < WORTH_AT_LEAST_S or not has_sections:
        return None
    per_step_s = other.settled_total_s / snapshot.step.settled_count
    evidence: dict[str, float | int | str] = {
        "share_of_step": share,
        "threshold": OTHER_SHARE,
        "seconds": other.settled_total_s,
    }
    finding = f"{share:.1%} of step time lies in no section ({seconds_text(per_step_s)} a step)"
    remedy = 'put profile_section("...") around the parts of the loop that have none yet'
    places = [
        f"{place.file}:{place.line} {place.function} ({place.share / other.share:.0%} of it)"
        for place in snapshot.hottest(OTHER)
    ]
    if places:
        evidence["lines"] = ", ".join(places)
        finding += f": {evidence['lines']}"
        remedy = 'make these lines cheaper, or put profile_section("...") around them to see them apart'
    return Insight("unexplained", finding, evidence, worth_s=other.settled_total_s, remedy=remedy)
