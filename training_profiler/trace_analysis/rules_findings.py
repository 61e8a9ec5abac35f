"""What to judge and to change, from one trace: a checklist of targets with the measured values, and the findings."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from training_profiler.base.units import NS_PER_MS, NS_PER_S
from training_profiler.diagnosis.finding import FAIL, PASS, UNKNOWN, Check, Finding, check
from training_profiler.diagnosis.registry import Saving
from training_profiler.trace_analysis import rules_device, rules_host  # noqa: F401
from training_profiler.trace_analysis.host_activity import BACKWARD, FORWARD, OPTIMIZER
from training_profiler.trace_analysis.rules_device import MATH_ATTENTION
from training_profiler.trace_analysis.rules_registry import RULES
from training_profiler.trace_analysis.trace import Trace


def checks(analysis: Trace) -> list[Check]:
    """Return the checks, the most important first."""
    is_known, wall_ns = analysis.has_gpu and analysis.is_whole, analysis.program_ns
    phases, communication_ns = analysis.phases, analysis.device.communication.total_ns
    passes = None if phases.times_ns is None else analysis.share_of_device(phases.passes_ns)
    updates = analysis.phase_share(OPTIMIZER) if phases.optimizer_kernels else None
    copied_ns = analysis.transfers.exposed_ns if is_known and wall_ns else None  # that nothing hides
    copied = None if copied_ns is None else copied_ns / wall_ns
    has_communication = communication_ns and analysis.has_durations
    hidden = 1 - analysis.exposed_communication_ns / communication_ns if has_communication else None
    is_all_reduce = {collective.kind for collective in analysis.collectives} == {"all_reduce"}
    overlap = f"{'all-reduce' if is_all_reduce else 'communication'} overlapped with computation"
    variation = "step time variation (coefficient of variation)"
    return [
        check("GPU utilization", "> 80%", analysis.utilization if is_known else None, lambda share: share > 0.80),
        check(variation, "< 10%", analysis.settled_variation, lambda share: share < 0.10),
        check("GPU memory", "85-95%", analysis.memory_share, lambda share: 0.85 <= share <= 0.95),
        check("data time", "< 10%", analysis.data_share, lambda share: share < 0.10),
        check("forward", "35-40%", analysis.phase_share(FORWARD), lambda share: 0.35 <= share <= 0.40),
        check("backward", "40-45%", analysis.phase_share(BACKWARD), lambda share: 0.40 <= share <= 0.45),
        check("optimizer", "< 15%", updates, lambda share: share < 0.15),
        check("forward + backward dominate", "> 50%", passes, lambda share: share > 0.50),
        _flash(analysis),
        check("CPU-GPU transfer gaps", "< 1% of step time", copied, lambda share: share < 0.01),
        check(overlap, "> 50%", hidden, lambda share: share > 0.50),
    ]


def _flash(analysis: Trace) -> Check:
    what, target = "flash attention", "in use"
    if analysis.kernels.flash_ns:
        return Check(what, target, PASS, f"{analysis.kernels.flash_ns / NS_PER_MS:.1f} ms")
    others = analysis.kernels.attention_ns and analysis.kernels.are_known
    if others or any(row.name == MATH_ATTENTION for row in analysis.operators):
        return Check(what, target, FAIL, "none")
    return Check(what, target, UNKNOWN, "")


LEAST_SAID_S: Final = 0.00005  # less would be printed as 0.0 ms


def claimed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what each saves beyond larger ones about the same work, without those worth nothing.

    Gaps have one owner each by their cause. The device's work is claimed by several rules.
    """
    taken: defaultdict[str, float] = defaultdict(float)
    conversions_s = sum(finding.potential_saving_s for finding in findings if RULES[finding.code].is_conversion)
    kept = []
    for finding in sorted(findings, key=lambda finding: -finding.potential_saving_s):
        row = RULES[finding.code]
        if row.saving is Saving.UNKNOWN:
            kept.append(finding)
            continue
        worth_s = finding.potential_saving_s - conversions_s * row.has_conversions
        if row.work:
            worth_s -= taken[row.work]
            taken[row.work] = max(taken[row.work], finding.potential_saving_s)
        if worth_s >= LEAST_SAID_S or not (row.is_measured or row.work):
            kept.append(replace(finding, potential_saving_s=worth_s))
    return kept


THRESHOLDS: Final = RULES.thresholds()
NS_DIGITS: Final = 3  # of savings, which are ns and halves of them
SMALL_S: Final = 0.001  # findings with no known saving come before those that save less than this over all steps


def recommendations(analysis: Trace, thresholds: Mapping[str, float] = THRESHOLDS) -> list[Finding]:
    """Return the findings, the largest saving first. Findings without a known saving come before small ones.

    Args:
        analysis: the trace.
        thresholds: the thresholds of rules by code; rules not named keep their defaults.
    """
    return sorted(
        claimed(RULES.findings(analysis, thresholds)),
        key=lambda finding: -(SMALL_S if RULES[finding.code].saving is Saving.UNKNOWN else finding.potential_saving_s),
    )


def not_checked(analysis: Trace) -> dict[str, list[str]]:
    """Return the codes of the rules that could not run on this trace, by what they need."""
    return RULES.not_run(analysis)


def saving_ms(finding: Finding) -> float | None:
    """Return the saving of a finding over all recorded steps, in ms; None if unknown."""
    if RULES[finding.code].saving is Saving.UNKNOWN:
        return None
    return round(finding.potential_saving_s * NS_PER_S, NS_DIGITS) / NS_PER_MS


def saving_text(finding: Finding, analysis: Trace) -> str:
    """Return what a change could save, as a sentence that follows the finding; "" if that is unknown."""
    saved_ms = saving_ms(finding)
    if saved_ms is None:
        return ""
    saved = f"{saved_ms:.1f} ms or more" if RULES[finding.code].saves_at_least else f"up to {saved_ms:.1f} ms"
    return f" Could save {saved} of {analysis.scope.extent}."
