"""All rules together: what holds for a run, and what holds for an epoch."""

from collections.abc import Callable
from functools import partial
from typing import Final

from training_profiler.diagnosis.insight import Insight
from training_profiler.diagnosis.shares import (
    OF_RUN,
    OF_STEP,
    STEPS_NEEDED,
    backward_against_forward,
    has_enough_steps,
    share_of_run,
    share_of_step,
    unexplained,
)
from training_profiler.diagnosis.steps import first_batch_slow, slowing_down, step_time_varies, warm_up
from training_profiler.snapshot import PROFILER, EpochFigures, Snapshot
from training_profiler.units import seconds_text

Rule = Callable[[Snapshot], Insight | None]

RULES: Final[tuple[Rule, ...]] = (
    *(partial(share_of_step, rule=rule) for rule in OF_STEP),
    *(partial(share_of_run, rule=rule) for rule in OF_RUN),
    backward_against_forward,
    unexplained,
    step_time_varies,
    slowing_down,
    first_batch_slow,
)
NO_COMPONENTS: Final = (PROFILER, "first_fetch", "worker_start")  # the last two are parts of data_loading
EPOCH_GENERATION_SHARE: Final = 0.30
THRESHOLDS: Final = {rule.code: rule.share for rule in (*OF_STEP, *OF_RUN)}  # by code, as settings override them


def diagnose(snapshot: Snapshot) -> list[Insight]:
    """Return what the rules find, the most valuable first, then remarks that ask for no change."""
    found = [insight for rule in RULES if (insight := rule(snapshot)) is not None]
    remarks = [
        None if found else _healthy(snapshot),
        _slowest_component(snapshot),
        _data_loading_efficient(snapshot),
    ]
    warm = warm_up(snapshot)  # said even of a healthy run: it is over when it is seen
    found = sorted([*found, *([warm] if warm else [])], key=lambda insight: -insight.worth_s)
    return [*found, *(remark for remark in remarks if remark is not None)]


def _slowest_component(snapshot: Snapshot) -> Insight | None:
    """Name the section with the most exclusive time."""
    sections = [
        section
        for section in snapshot.sections.values()
        if section.count and section.avg_s is not None and section.name not in NO_COMPONENTS
    ]
    if not sections:
        return None
    slowest = max(sections, key=lambda section: section.self_s)
    return Insight(
        code="slowest-component",
        finding=f"Slowest component: {slowest.name} ({slowest.avg_s:.4f}s avg)",
        evidence={"section": slowest.name, "avg_s": slowest.avg_s or 0.0, "share": slowest.share},
        worth_s=0.0,
        remedy="",
    )


def _data_loading_efficient(snapshot: Snapshot) -> Insight | None:
    """Say that data loading stays below its threshold; None where it does not or was not seen."""
    share = snapshot.share_of_step("data_loading")
    if share is None or not has_enough_steps(snapshot) or not OF_STEP[0].is_below(share):
        return None
    return Insight(
        code="data-loading-efficient",
        finding=f"Data loading appears efficient ({share:.1%} of total time)",
        evidence={"share_of_step": share, "threshold": OF_STEP[0].share},
        worth_s=0.0,
        remedy="",
    )


def _healthy(snapshot: Snapshot) -> Insight | None:
    """Say that no rule fired; None where there was too little data for them."""
    if not has_enough_steps(snapshot) or snapshot.step is None:
        return None
    step = snapshot.step
    variation = step.std_s / step.avg_s if step.avg_s else 0.0
    return Insight(
        code="healthy",
        finding=f"Healthy: no rule fires ({step.count} steps, {seconds_text(step.avg_s)} avg, "
        f"varying by {variation:.0%})",
        evidence={"steps": step.count, "avg_s": step.avg_s, "coefficient_of_variation": variation},
        worth_s=0.0,
        remedy="",
    )


def too_little_data(snapshot: Snapshot) -> str | None:
    """Return why the rules have nothing to say yet; None where they have enough to go by."""
    if has_enough_steps(snapshot):
        return None
    if not snapshot.steps:
        return f"No steps were marked: call profile_step() at the end of each; the rules need {STEPS_NEEDED}"
    settled = snapshot.step.settled_count if snapshot.step is not None else snapshot.steps
    after = " after warm-up" if settled < snapshot.steps else ""
    return f"Only {settled} step{'s' * (settled != 1)}{after}; the rules need {STEPS_NEEDED}"


def epoch_warnings(epoch: EpochFigures) -> list[str]:
    """Return the bottleneck warnings that hold in one epoch, each with its figure."""
    share = epoch.self_s.get("data_generation", 0.0) / epoch.wall_s if epoch.wall_s else 0.0
    if share <= EPOCH_GENERATION_SHARE:
        return []
    # 0 at the threshold, 1 where the epoch is nothing else.
    severity = (share - EPOCH_GENERATION_SHARE) / (1 - EPOCH_GENERATION_SHARE)
    return [f"Data generation bottleneck: {share:.1%} of batch time (severity {severity:.2f})"]
