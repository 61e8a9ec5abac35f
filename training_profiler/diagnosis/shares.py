"""Rules about sections that take too much of the step, or of the run. Thresholds: PROFILING.md, "Rules"."""

from dataclasses import replace
from typing import Final

from training_profiler.diagnosis.rule import MIN_SAVING_S, has_enough_steps, rule
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import seconds_text

MOST_OF_IT: Final = 0.5  # of the waiting for batches


@rule("data-loading-bound", threshold=0.15)
def data_loading(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that wait for the next batch for 15 % of their time or more."""
    return of_step(
        snapshot,
        "data_loading",
        threshold,
        "data-loading-bound",
        "waiting for the next batch",
        "raise DataLoader(num_workers=...), then pin_memory=True, persistent_workers=True and a larger "
        "prefetch_factor; else faster storage or less preprocessing",
        fires_at_threshold=True,
    )


@rule("data-generation-bound", threshold=0.30)
def data_generation(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that make their data for over 30 % of their time."""
    found = of_step(
        snapshot,
        "data_generation",
        threshold,
        "data-generation-bound",
        "generating data",
        "generate in DataLoader workers, generate ahead of time, or use a faster generator",
    )
    if found is None:
        return None
    severity = severity_of(float(found.evidence["share_of_step"]), threshold)
    return _with_evidence(found, severity=severity)


@rule("data-transfer", threshold=0.10)
def data_transfer(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that move their batch to the device for over 10 % of their time."""
    return of_step(
        snapshot,
        "data_transfer",
        threshold,
        "data-transfer",
        "moving batches to the device",
        "pin_memory=True in the DataLoader together with .to(device, non_blocking=True); prefetch to the device",
    )


@rule("forward-dominates", threshold=0.60)
def forward_dominates(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps of which the forward pass is over 60 %; a realistic change saves half of it."""
    found = of_step(
        snapshot,
        "forward_pass",
        threshold,
        "forward-dominates",
        "in the forward pass",
        "mixed precision (torch.autocast), torch.compile, or a leaner architecture",
        saved=0.5,
    )
    waits_s = (snapshot.total_of_step_s("synchronization") or 0.0) if _waits_in_passes(snapshot) else 0.0
    if found is None or snapshot.step is None or not waits_s:
        return found
    without = float(found.evidence["share_of_step"]) - waits_s / snapshot.step.settled_s
    return None if without <= threshold else found


def _waits_in_passes(snapshot: Snapshot) -> bool:
    """Return whether exchange with other ranks is part of the passes, as FSDP's is of both."""
    waits = snapshot.sections.get("synchronization")
    return waits is not None and waits.parent in ("forward_pass", "backward_pass")


@rule("optimizer-heavy", threshold=0.15)
def optimizer_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps of which the update is over 15 %; a realistic change saves half of it."""
    return of_step(
        snapshot,
        "optimizer_step",
        threshold,
        "optimizer-heavy",
        "in the optimizer",
        "fused=True or foreach=True in the optimizer; accumulate gradients over several batches",
        saved=0.5,
    )


@rule("metrics-heavy", threshold=0.05)
def metrics_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that compute metrics and norms for over 5 % of their time."""
    return of_step(
        snapshot,
        "metrics_computation",
        threshold,
        "metrics-heavy",
        "computing metrics and norms",
        "compute them every n-th step, and norms with torch._foreach_norm or clip_grad_norm_'s return value",
    )


@rule("logging-heavy", threshold=0.05)
def logging_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that log for over 5 % of their time."""
    return of_step(
        snapshot,
        "logging",
        threshold,
        "logging-heavy",
        "logging",
        "log every n-th step, and call .item() only there",
    )


@rule("ema-heavy", threshold=0.05)
def ema_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps that average the weights for over 5 % of their time."""
    return of_step(
        snapshot,
        "ema_update",
        threshold,
        "ema-heavy",
        "updating the moving average of the weights",
        "torch._foreach_lerp_ over all parameters at once, or update every n-th step",
    )


@rule("validation-heavy", threshold=0.10, is_of_step=False)
def validation_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag runs that validate for over 10 % of their time."""
    return _of_run(
        snapshot,
        "validation_epoch",
        threshold,
        "validation-heavy",
        "validating",
        "validate less often, on fewer batches, or with a larger batch size",
    )


@rule("sampling-heavy", threshold=0.10, is_of_step=False)
def sampling_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag runs that generate samples for over 10 % of their time."""
    return _of_run(
        snapshot,
        "sampling",
        threshold,
        "sampling-heavy",
        "generating samples",
        "sample less often, fewer or with fewer steps",
    )


@rule("checkpointing-heavy", threshold=0.10, is_of_step=False)
def checkpointing_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag runs that save checkpoints for over 10 % of their time."""
    return _of_run(
        snapshot,
        "checkpointing",
        threshold,
        "checkpointing-heavy",
        "saving checkpoints",
        "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    )


@rule("backward-slow", threshold=3.0)  # twice is what the arithmetic asks for
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


def _with_evidence(found: Finding, **more: float) -> Finding:
    return Finding(found.code, found.message, {**found.evidence, **more}, found.potential_saving_s, found.fix)


def of_step(
    snapshot: Snapshot,
    section: str,
    threshold: float,
    code: str,
    what: str,
    fix: str,
    saved: float = 1.0,
    fires_at_threshold: bool = False,
) -> Finding | None:
    """Return what to say of a section with more than its share of step time; None below 10 steps, or without it."""
    share = snapshot.share_of_step(section)
    total_s = snapshot.total_of_step_s(section)
    if share is None or total_s is None or not has_enough_steps(snapshot) or snapshot.step is None:
        return None
    if share < threshold or (share == threshold and not fires_at_threshold) or saved * total_s < MIN_SAVING_S:
        return None
    per_step_s = total_s / snapshot.step.settled_count
    where = " on the device" if snapshot.is_by_device(section) else ""
    return Finding(
        code=code,
        message=f"{share:.1%} of step time is spent {what} ({section}: {seconds_text(per_step_s)} a step{where})",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "seconds_per_step": per_step_s,
            "steps": snapshot.step.settled_count,
        },
        potential_saving_s=saved * total_s,
        fix=fix,
    )


def _of_run(snapshot: Snapshot, name: str, threshold: float, code: str, what: str, fix: str) -> Finding | None:
    """Return what to say of work between steps with more than its share of the run; None below 10 steps."""
    section = snapshot.sections.get(name)
    if section is None or not section.count or not snapshot.wall_s or not has_enough_steps(snapshot):
        return None
    share = section.total_s / snapshot.wall_s
    if share <= threshold or section.total_s < MIN_SAVING_S:
        return None
    return Finding(
        code=code,
        message=f"{share:.1%} of the run is spent {what} "
        f"({name}: {section.count} times, {section.avg_s or 0:.4f}s avg)",
        evidence={
            "share_of_run": share,
            "threshold": threshold,
            "seconds": section.total_s,
            "count": section.count,
        },
        potential_saving_s=section.total_s / 2,  # half as often
        fix=fix,
    )
