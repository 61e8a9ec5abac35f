"""Rules about how step time varies: spread, warm-up, trend, first batches."""

from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import OTHER, SectionStats, Snapshot
from training_profiler.units import seconds_text

VARIATION_NEEDS: Final = 20  # steps after warm-up; the deviation of fewer is itself too uncertain
RISE_NEEDS: Final = 100  # steps after warm-up
RISE_P_VALUE: Final = 0.001  # neighbouring steps are alike, so chance alone rises more often than in theory
FIRST_FETCH_SHARE: Final = 0.01  # of the epoch
MOSTLY: Final = 0.5  # of a section's time
COUPLED: Final = 0.30  # of the variance of step time; from here on a section is named as the one that moves with it

_WHY = {
    "data_loading": "data stalls: more workers, a larger prefetch_factor, samples of more even cost",
    "data_generation": "data of uneven cost: generate ahead, in workers",
    "data_transfer": "transfers: pinned memory, non_blocking=True",
    "forward_pass": "shapes that change from batch to batch, or other work on the machine",
    "backward_pass": "shapes that change from batch to batch, allocator fragmentation, or other work on the machine",
    "first_fetch": "the first batch of each pass: persistent_workers=True keeps the workers that fetch it",
    "worker_start": "workers that are made anew each pass: persistent_workers=True keeps them",
    "synchronization": "a rank that is sometimes late",
    OTHER: "something no section covers: logging, garbage collection, other work on the machine",
}


@RULES.rule("step-time-varies", threshold=0.10)  # standard deviation over mean
def step_time_varies(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step times whose deviation is above 10 % of their mean; None below 20 steps after warm-up."""
    step = snapshot.step
    if step is None or step.settled_count - step.disturbed_count < VARIATION_NEEDS or not step.avg_s:
        return None
    if not step.has_own_pace:
        return None
    variation = step.std_s / step.avg_s
    potential_saving_s = max(0.0, step.avg_s - step.median_s) * step.settled_count
    if variation <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    cause, part = max(step.explained.items(), key=lambda item: item[1], default=("", 0.0))
    cause, part = _waits_in(snapshot, cause), min(1.0, part)
    named = f"; {part:.0%} of the variation comes from {cause}" if part >= COUPLED else ""
    evidence: dict[str, float | int | str] = {
        "coefficient_of_variation": variation,
        "threshold": threshold,
        "avg_s": step.avg_s,
        "std_s": step.std_s,
        "max_s": step.max_s,
        "max_step": step.max_step,
    }
    if named:
        evidence |= {"moves_with": cause, "explained": part}
    why = _WHY.get(cause, f"look at what makes {cause} uneven") if named else ""
    return Finding(
        code="step-time-varies",
        message=f"step time varies by {variation:.0%} (std over mean; longest {seconds_text(step.max_s)} at step "
        f"{step.max_step}, median {seconds_text(step.median_s)}){named}",
        evidence=evidence,
        potential_saving_s=potential_saving_s,
        fix=why or "data stalls, shapes that change, allocator fragmentation, or other work on the machine",
    )


def _waits_in(snapshot: Snapshot, cause: str) -> str:
    """Return the section, or ``synchronization`` where most of the section's time is waiting for other ranks.

    DDP tells of its exchange after the step, of which the times that are compared here are.
    """
    section, waits = snapshot.sections.get(cause), snapshot.sections.get("synchronization")
    if section is None or waits is None or waits.parent != cause or not section.step_total_s:
        return cause
    return "synchronization" if waits.step_self_s >= MOSTLY * section.step_total_s else cause


@RULES.rule("warm-up", threshold=3.0, saving=Saving.RUN)  # of the steps' median
def warm_up(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Tell first steps that took more than 3 medians apart; None without such."""
    step = snapshot.step
    if step is None or not step.warmup_count or not step.settled_count:
        return None
    extra_s = step.warmup_s - step.warmup_count * step.avg_s
    avg_s = step.warmup_s / step.warmup_count
    if extra_s < MIN_SAVING_S or avg_s <= threshold * step.median_s:
        return None
    counted = snapshot.throughput is not None and snapshot.throughput.flops_per_step is not None
    once = "worker start, torch.compile, cuDNN autotuning" + (" and counting FLOPs" if counted else "")
    first = "step was" if step.warmup_count == 1 else f"{step.warmup_count} steps were"
    return Finding(
        code="warm-up",
        message=f"the first {first} warm-up: {seconds_text(avg_s)} against {seconds_text(step.median_s)} after; "
        f"step averages leave {'it' if step.warmup_count == 1 else 'them'} out",
        evidence={"warmup_steps": step.warmup_count, "warmup_s": step.warmup_s, "median_s": step.median_s},
        potential_saving_s=extra_s,
        fix=f"{once} happen once; only short runs notice",
    )


@RULES.rule("slowing-down", threshold=0.05)  # over the run
def slowing_down(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step times that rise by more than 5 % over the run, with confidence; None below 100 steps."""
    step = snapshot.step
    if step is None or step.rise is None or step.rise_p_value is None or step.settled_count < RISE_NEEDS:
        return None
    # A linear rise by r costs on average half of it, compared with the pace of the start.
    potential_saving_s = step.avg_s * step.settled_count * (step.rise / 2) / (1 + step.rise / 2)
    if step.rise <= threshold or step.rise_p_value > RISE_P_VALUE or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code="slowing-down",
        message=f"steps become slower: {step.rise:.0%} longer at the end of the run than at its start",
        evidence={
            "rise": step.rise,
            "threshold": threshold,
            "p_value": step.rise_p_value,
            "steps": step.settled_count,
        },
        potential_saving_s=potential_saving_s,
        fix="something grows: a list of losses that keep their graph (use .item() or .detach()), a cache, a log; "
        "or the machine throttles",
    )


@RULES.rule("first-batch-slow", threshold=5.0, saving=Saving.RUN)  # of the median fetch
def first_batch_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag first fetches, workers' start included, of over 5 median fetches and 1 % of step time, or of the epoch."""
    first, fetches = snapshot.sections.get("first_fetch"), snapshot.sections.get("data_loading")
    if first is not None and first.count and fetches is not None and fetches.p50_s is not None:
        return _first_fetch_slow(snapshot, threshold, first, fetches.p50_s)
    slow = [
        (epoch.first_fetch_s - epoch.median_fetch_s, epoch)
        for epoch in snapshot.epochs
        if epoch.first_fetch_s is not None
        and epoch.median_fetch_s is not None
        and epoch.is_complete
        and epoch.first_fetch_s > threshold * epoch.median_fetch_s
        and epoch.first_fetch_s - epoch.median_fetch_s > FIRST_FETCH_SHARE * epoch.wall_s
    ]
    extra_s = sum(extra_s for extra_s, _ in slow)
    # The first epoch has to start its workers in any case; only a second one shows a habit.
    potential_saving_s = extra_s * (len(slow) - 1) / len(slow) if slow else 0.0
    if len(slow) < 2 or potential_saving_s < MIN_SAVING_S:
        return None
    epochs_s = sum(epoch.wall_s for _, epoch in slow)
    first_s = sum(epoch.first_fetch_s or 0.0 for _, epoch in slow) / len(slow)
    return Finding(
        code="first-batch-slow",
        message=f"the first batch of an epoch takes {seconds_text(first_s)} on average, "
        f"{extra_s / epochs_s:.1%} of the time of {len(slow)} epochs",
        evidence={"first_fetch_s": first_s, "share_of_epochs": extra_s / epochs_s, "epochs": len(slow)},
        potential_saving_s=potential_saving_s,
        fix="persistent_workers=True keeps the DataLoader's workers from one epoch to the next",
    )


def _first_fetch_slow(snapshot: Snapshot, threshold: float, first: SectionStats, median_s: float) -> Finding | None:
    """Return the same of passes that seams saw, each with the start of its workers."""
    start = snapshot.sections.get("worker_start")
    start_s = 0.0 if start is None else start.total_s
    spent_s, passes = first.total_s + start_s, first.count
    extra_s = spent_s - passes * median_s
    potential_saving_s = extra_s * (passes - 1) / passes  # the first pass has to start its workers in any case
    step_s = 0.0 if snapshot.step is None else snapshot.step.total_s
    if passes < 2 or spent_s <= threshold * median_s * passes or potential_saving_s < MIN_SAVING_S:
        return None
    if extra_s <= FIRST_FETCH_SHARE * step_s:
        return None
    workers = f", {seconds_text(start_s / passes)} of it to start workers" if start_s else ""
    return Finding(
        code="first-batch-slow",
        message=f"the first batch of a pass over the data takes {seconds_text(spent_s / passes)} on average{workers}, "
        f"against {seconds_text(median_s)} later; {extra_s:.2f}s in {passes} passes",
        evidence={"first_fetch_s": spent_s / passes, "median_fetch_s": median_s, "extra_s": extra_s, "passes": passes},
        potential_saving_s=potential_saving_s,
        fix="persistent_workers=True keeps the DataLoader's workers from one epoch to the next",
    )
