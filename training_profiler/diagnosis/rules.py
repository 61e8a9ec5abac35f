"""All rules together: what holds for a run, and what holds for an epoch."""

from collections.abc import Mapping
from typing import Final

# Importing a module of rules registers them.
from training_profiler.diagnosis import device, lines, loaders, memory, ranks, shares, steps, stragglers  # noqa: F401
from training_profiler.diagnosis.registry import RULES, STEPS_NEEDED, has_enough_steps, threshold_of, with_step_time
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import OTHER, PROFILER, EpochStats, Snapshot
from training_profiler.units import seconds_text

THRESHOLDS: Final = RULES.thresholds()
FIRST: Final = ("rank-silent",)  # worth no time that is known, and nothing else matters before
HARMLESS: Final = ("warm-up",)  # a run with nothing else is healthy: it is over when it is seen
NO_COMPONENTS: Final = (PROFILER, "first_fetch", "worker_start")  # the last two are parts of data_loading


def diagnose(snapshot: Snapshot) -> list[Finding]:
    """Return what the rules find, the most valuable first, then remarks that ask for no change."""
    findings = [with_step_time(finding, snapshot) for finding in RULES.findings(snapshot, snapshot.thresholds)]
    problems = [finding for finding in findings if finding.code not in HARMLESS]
    remarks = [
        None if problems else _healthy(snapshot),
        _slowest_component(snapshot, problems),
        _data_loading_efficient(snapshot, problems),
    ]
    findings = device.with_cause(shares.with_specifics(findings))
    findings.sort(key=lambda finding: (finding.code not in FIRST, -finding.potential_saving_s))
    return [*findings, *(remark for remark in remarks if remark is not None)]


def _slowest_component(snapshot: Snapshot, found: list[Finding]) -> Finding | None:
    """Name the section with the most exclusive time; None where that is no section's, which a rule has told then."""
    sections = [
        section
        for section in snapshot.sections.values()
        if section.count and section.avg_s is not None and section.name not in NO_COMPONENTS
    ]
    other = snapshot.sections.get(OTHER)
    if any(finding.code == "unexplained" for finding in found) and other is not None:
        sections = [section for section in sections if section.self_s > other.self_s]
    if not sections:
        return None
    on_device = [section for section in sections if snapshot.is_by_device(section.name)]
    if on_device:
        slowest = max(on_device, key=lambda section: snapshot.total_of_step_s(section.name) or 0.0)
        avg_s, where = slowest.device_avg_s or 0.0, " on the device"
    else:
        slowest = max(sections, key=lambda section: section.self_s)
        avg_s, where = slowest.avg_s or 0.0, ""
    return Finding(
        code="slowest-component",
        message=f"Slowest component: {slowest.name} ({avg_s:.4f}s avg{where})",
        evidence={"section": slowest.name, "avg_s": avg_s, "share": slowest.share},
        potential_saving_s=0.0,
        fix="",
    )


def _data_loading_efficient(snapshot: Snapshot, found: list[Finding]) -> Finding | None:
    """Say that data loading stays below its threshold; None where it does not, was not seen, or delays another rank."""
    if any(finding.evidence.get("cause") in stragglers.ON_INPUT for finding in found):
        return None
    share = snapshot.share_of_step("data_loading")
    threshold = threshold_of("data-loading-bound", snapshot)
    if share is None or not has_enough_steps(snapshot) or share >= threshold:
        return None
    # As the reports have it, of all time; the threshold is of step time, of which it is a little more.
    of_run = snapshot.sections["data_loading"].step_total_s / snapshot.wall_s if snapshot.wall_s else share
    return Finding(
        code="data-loading-efficient",
        message=f"Data loading appears efficient ({of_run:.1%} of total time)",
        evidence={"share_of_step": share, "share_of_run": of_run, "threshold": threshold},
        potential_saving_s=0.0,
        fix="",
    )


def _healthy(snapshot: Snapshot) -> Finding | None:
    """Say that no rule fired; None where there was too little data for them."""
    if not has_enough_steps(snapshot) or snapshot.step is None:
        return None
    step = snapshot.step
    variation = step.std_s / step.avg_s if step.avg_s else 0.0
    cheap = " at no cost worth a word" if variation > threshold_of("step-time-varies", snapshot) else ""
    return Finding(
        code="healthy",
        message=f"Healthy: no rule fires ({step.count} steps, {seconds_text(step.avg_s)} avg, "
        f"varying by {variation:.0%}{cheap})",
        evidence={"steps": step.count, "avg_s": step.avg_s, "coefficient_of_variation": variation},
        potential_saving_s=0.0,
        fix="",
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


def epoch_warnings(epoch: EpochStats, thresholds: Mapping[str, float] = THRESHOLDS) -> list[str]:
    """Return the bottleneck warnings that hold in one epoch, each with its figure."""
    warnings = []
    of_generation, of_memory = (
        thresholds.get(code, THRESHOLDS[code]) for code in ("data-generation-bound", "host-memory")
    )
    busy_s = epoch.wall_s if not epoch.avg_batch_s or not epoch.batches else epoch.avg_batch_s * epoch.batches
    share = min(1.0, epoch.self_s.get("data_generation", 0.0) / busy_s) if busy_s else 0.0
    if share > of_generation:
        severity = shares.severity_of(share, of_generation)
        warnings.append(f"Data generation bottleneck: {share:.1%} of batch time (severity {severity:.2f})")
    ram = None if epoch.machine is None else epoch.machine.ram_share
    if ram is not None and ram.max > of_memory:
        pressure = shares.severity_of(ram.max, of_memory)
        warnings.append(f"Memory bottleneck: RAM {ram.max:.1%} at its peak (pressure {pressure:.2f})")
    return warnings
