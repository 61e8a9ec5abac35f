"""All rules together: the findings of a run, and the warnings of an epoch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from training_profiler.base.sections import (
    BACKWARD_PASS,
    DATA_GENERATION,
    DATA_LOADING,
    INPUT_SECTIONS,
    NESTED_SECTIONS,
    OPTIMIZER_STEP,
    name_of,
)
from training_profiler.base.units import counted, time_text

# Importing a module of rules registers them.
from training_profiler.diagnosis import (  # noqa: F401
    backward,
    batches,
    change,
    compilations,
    device,
    forward,
    lines,
    loaders,
    machine,
    outside_steps,
    pauses,
    precision,
    program,
    ranks,
    shares,
    steps,
    without_gradients,
)
from training_profiler.diagnosis.device import host_runs_ahead, within_idle_time
from training_profiler.diagnosis.finding import Finding, Fix, record_steps
from training_profiler.diagnosis.registry import (
    RULES,
    STEPS_NEEDED,
    Saving,
    cause_first,
    each_second_once,
    has_enough_steps,
    row_of,
    threshold_of,
    with_step_time,
)
from training_profiler.model.snapshot import OTHER, PROFILER, EpochStats, Snapshot

THRESHOLDS: Final = RULES.thresholds()
HEALTHY: Final = "healthy"
COMPUTES_SLOWLY: Final = "computes-slowly"
SLOW_COMPUTING: Final = 0.10  # of what the CPU does in matrix products; small layers reach a fifth


def diagnose(snapshot: Snapshot) -> list[Finding]:
    """Return the findings, the largest saving first, then remarks that ask for no change."""
    left = within_idle_time(RULES.findings(snapshot, snapshot.thresholds), snapshot)
    left = each_second_once(machine.without_lost_time(left, snapshot), snapshot)
    findings = [with_uncertainty(with_step_time(finding, snapshot), snapshot) for finding in left]
    findings = [lines.with_call(lines.with_lines(finding, snapshot), snapshot) for finding in findings]
    problems = [finding for finding in findings if not row_of(finding).is_harmless]
    remarks = [
        None if problems else _healthy(snapshot),
        _slowest_component(snapshot, problems),
        _data_loading_efficient(snapshot, problems),
    ]
    largest_s = max((finding.potential_saving_s for finding in findings), default=0.0)
    findings.sort(
        key=lambda each: (
            not _is_first(each, largest_s),
            each.code == "slow-startup" and float(each.evidence["share_of_run"]) < 0.5,  # as of a trial
            -each.potential_saving_s,
            row_of(each).says_where,
        )
    )
    findings = cause_first(findings)
    return [*findings, *(remark for remark in remarks if remark is not None)]


def _is_first(finding: Finding, largest_s: float) -> bool:
    """Return whether a finding stands before larger ones; a busy machine only if none is, or if it hides them."""
    if finding.code != machine.MACHINE_BUSY or float(finding.evidence["lost_share"]) >= 0.4:
        return row_of(finding).is_first
    return finding.potential_saving_s >= largest_s


def with_uncertainty(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with the range of its saving, from its row and how much steps vary; as it is without one."""
    saving_s, step, row = finding.potential_saving_s, snapshot.step, row_of(finding)
    if not saving_s or not snapshot.wall_s:
        return finding
    error, limit_s = 0.0, snapshot.wall_s
    if row.saving is Saving.STEPS and step is not None and step.settled_count > 1 and step.avg_s:
        error = 2 * step.std_s / step.avg_s / step.settled_count**0.5  # standard errors of the mean
        limit_s = max(saving_s, step.total_s)
    least, most = row.saves(finding, snapshot) if callable(row.saves) else row.saves
    low_s, high_s = saving_s * max(0.0, least - error), min(limit_s, saving_s * (most + error))
    return replace(finding, saving_range_s=(low_s, max(low_s, high_s)))


def _slowest_component(snapshot: Snapshot, findings: list[Finding]) -> Finding | None:
    """Name the section with the most self time; None if most time is unattributed, which a rule reports."""
    all_sections = snapshot.sections
    self_s = {name: section.self_s for name, section in all_sections.items()}
    for part in (all_sections[name] for name in NESTED_SECTIONS if name in all_sections):  # such as the first batch
        if part.parent in self_s:
            self_s[part.parent] += part.self_s
    sections = [
        section
        for section in all_sections.values()
        if section.count and section.avg_s is not None and section.name not in (PROFILER, *NESTED_SECTIONS)
    ]
    if OTHER in all_sections and any(finding.code == "unexplained" for finding in findings):
        sections = [section for section in sections if self_s[section.name] > all_sections[OTHER].self_s]
    if not sections:
        return None
    on_device = [section for section in sections if snapshot.is_by_device(section.name)]
    if on_device:
        slowest = max(on_device, key=lambda section: snapshot.total_of_step_s(section.name) or 0.0)
        avg_s, where = slowest.device_avg_s or 0.0, " on the device"
    else:
        slowest = max(sections, key=lambda section: self_s[section.name])
        avg_s, where = slowest.avg_s or 0.0, ""
    return Finding(
        code="slowest-component",
        message=f"Slowest component: {name_of(slowest.name)} ({time_text(avg_s)} avg{where})",
        evidence={"section": slowest.name, "avg_s": avg_s, "share": slowest.share},
    )


def _data_loading_efficient(snapshot: Snapshot, findings: list[Finding]) -> Finding | None:
    """Report data loading below its threshold; None if it is above, was not measured, or delays another rank."""
    if any(finding.evidence.get("cause") in INPUT_SECTIONS for finding in findings):
        return None
    share = snapshot.share_of_step(DATA_LOADING)
    threshold = threshold_of("data-loading-bound", snapshot)
    if share is None or not has_enough_steps(snapshot) or share >= threshold:
        return None
    # The report shows shares of the run; the threshold is a share of step time.
    of_run = snapshot.sections[DATA_LOADING].step_total_s / snapshot.wall_s if snapshot.wall_s else share
    return Finding(
        code="data-loading-efficient",
        message=f"Data loading appears efficient ({of_run:.1%} of total time)",
        evidence={"share_of_step": share, "share_of_run": of_run, "threshold": threshold},
    )


def _healthy(snapshot: Snapshot) -> Finding | None:
    """Report that no rule fired; None if there was too little data for the rules.

    A model that computes at a small part of what its CPU can do is not healthy, although no rule knows why.
    """
    if not has_enough_steps(snapshot) or snapshot.step is None:
        return None
    step, computes = snapshot.step, program.compute_share(snapshot)
    if computes is not None and computes < SLOW_COMPUTING:
        return Finding(
            code=COMPUTES_SLOWLY,
            message=f"No rule fired, but forward and backward passes compute at only "
            f"{program.compute_text(snapshot, computes)}",
            evidence={"share_of_cpu": computes, "threshold": SLOW_COMPUTING, "steps": step.count},
            fix=Fix(
                "Record a trace: small operators, copies, or little arithmetic for each number that is read",
                (),
                (record_steps(snapshot.steps),),
            ),
        )
    checked = ""
    if computes is not None:
        checked = f"; it computes at {program.compute_text(snapshot, computes)}"
    elif snapshot.throughput is None or snapshot.throughput.mfu is None:
        checked = "; not checked: how fast the model could compute"
    variation = step.std_s / step.avg_s if step.avg_s else 0.0
    why = ", as their work does" if steps.varies_with_work(step) else ", at negligible cost"
    why = ", as the host waits for the device in some of them" if host_runs_ahead(snapshot) else why
    why = why if variation > threshold_of("step-time-varies", snapshot) else ""
    varying = f", varying by {variation:.0%}{why}" if step.count > 1 else ""
    return Finding(
        code=HEALTHY,
        message=f"No bottleneck found ({counted(step.count, 'step')}, mean {time_text(step.avg_s)}{varying}){checked}",
        evidence={"steps": step.count, "avg_s": step.avg_s, "coefficient_of_variation": variation},
    )


def too_little_data(snapshot: Snapshot) -> str | None:
    """Return why there are too few steps for the rules; None if there are enough."""
    if has_enough_steps(snapshot):
        return None
    if not snapshot.steps:
        if snapshot.ended_by and not any(name in snapshot.sections for name in (BACKWARD_PASS, OPTIMIZER_STEP)):
            return f"The program ended by {snapshot.ended_by} before its first training step"
        return f"No steps were marked: call profile_step() after each step; the rules need {STEPS_NEEDED}"
    settled = snapshot.step.settled_count if snapshot.step is not None else snapshot.steps
    after = " after warm-up" if settled < snapshot.steps else ""
    return f"Only {settled} step{'s' * (settled != 1)}{after}; the rules need {STEPS_NEEDED}"


def epoch_warnings(epoch: EpochStats, thresholds: Mapping[str, float] = THRESHOLDS) -> list[str]:
    """Return the bottlenecks of one epoch, one message each."""
    warnings = []
    of_generation, of_memory = (
        thresholds.get(code, THRESHOLDS[code]) for code in ("data-generation-bound", "host-memory")
    )
    busy_s = epoch.wall_s if not epoch.avg_batch_s or not epoch.batches else epoch.avg_batch_s * epoch.batches
    share = min(1.0, epoch.self_s.get(DATA_GENERATION, 0.0) / busy_s) if busy_s else 0.0
    if share > of_generation:
        severity = shares.severity_of(share, of_generation)
        warnings.append(f"Data generation takes {share:.1%} of batch time (severity {severity:.2f})")
    ram = None if epoch.machine is None else epoch.machine.ram_share
    if ram is not None and ram.max > of_memory:
        pressure = shares.severity_of(ram.max, of_memory)
        warnings.append(f"Peak RAM is {ram.max:.1%} of the limit (pressure {pressure:.2f})")
    return warnings
