"""The quick checklist of a trace: each target with the measured value."""

from training_profiler.base.units import NS_PER_MS
from training_profiler.findings.finding import FAIL, PASS, UNKNOWN, Check, check
from training_profiler.trace_analysis.events import HOST
from training_profiler.trace_analysis.kernel_names import ATTENTION
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER
from training_profiler.trace_analysis.trace import Trace


def checks(analysis: Trace) -> list[Check]:
    """Return the checks, the most important first."""
    is_known, wall_ns = analysis.has_gpu and analysis.is_whole, analysis.program_ns
    phases, communication_ns = analysis.phases, analysis.device.communication.total_ns
    passes = None if phases.times_ns is None else _share_of_device(analysis, phases.passes_ns)
    updates = phase_share(analysis, OPTIMIZER) if phases.optimizer_kernels else None
    copied_ns = analysis.transfers.exposed_ns if is_known and wall_ns else None  # that nothing hides
    hidden = 1 - analysis.exposed_communication_ns / communication_ns if communication_ns else None
    is_all_reduce = {collective.kind for collective in analysis.collectives} == {"all_reduce"}
    overlap = f"{'all-reduce' if is_all_reduce else 'communication'} overlapped with computation"
    variation = "step time variation (coefficient of variation)"
    return [
        check("GPU utilization", "> 80%", analysis.utilization if is_known else None, lambda share: share > 0.80),
        check(variation, "< 10%", analysis.settled_variation, lambda share: share < 0.10),
        check("GPU memory", "85-95%", memory_share(analysis), lambda share: 0.85 <= share <= 0.95),
        check("data time", "< 10%", data_share(analysis), lambda share: share < 0.10),
        check("forward", "35-40%", phase_share(analysis, FORWARD), lambda share: 0.35 <= share <= 0.40),
        check("backward", "40-45%", phase_share(analysis, BACKWARD), lambda share: 0.40 <= share <= 0.45),
        check("optimizer", "< 15%", updates, lambda share: share < 0.15),
        check("forward + backward dominate", "> 50%", passes, lambda share: share > 0.50),
        _flash(analysis),
        check(
            "CPU-GPU transfer gaps",
            "< 1% of step time",
            None if copied_ns is None else copied_ns / wall_ns,
            lambda share: share < 0.01,
        ),
        check(overlap, "> 50%", hidden, lambda share: share > 0.50),
    ]


def phase_share(analysis: Trace, phase: str) -> float | None:
    """Return the share of the device's time for the steps that a phase takes; None if the trace has no phases."""
    return None if analysis.phases.times_ns is None else _share_of_device(analysis, analysis.phases.times_ns[phase])


def _share_of_device(analysis: Trace, ns: int) -> float | None:
    wall_ns = analysis.phases.wall_ns * max(1, len(analysis.devices))
    return ns / wall_ns if wall_ns else None


def data_share(analysis: Trace) -> float | None:
    """Return the share of the scope that the host waited for batches; None without a DataLoader in the trace."""
    if not analysis.waiting.data_names or not analysis.program_ns:
        return None
    return min(1.0, sum(analysis.waiting.data_ns) / analysis.program_ns)


def memory_share(analysis: Trace) -> float | None:
    """Return the peak share of a device's memory that was reserved; None if it is unknown."""
    parts = [
        memory.reserved_peak_bytes / total
        for memory in analysis.memory
        if memory.reserved_peak_bytes
        and memory.device != HOST
        and (total := analysis.device_bytes.get(int(memory.device)))
    ]
    return max(parts, default=None)


def _flash(analysis: Trace) -> Check:
    what, target = "flash attention", "in use"
    if analysis.kernels.flash_ns:
        return Check(what, target, PASS, f"{analysis.kernels.flash_ns / NS_PER_MS:.1f} ms")
    others = analysis.kernels.by_kind_ns.get(ATTENTION) and analysis.kernels.are_known
    if uses_math_attention(analysis) or others:
        return Check(what, target, FAIL, "none")
    return Check(what, target, UNKNOWN, "")


def uses_math_attention(analysis: Trace) -> bool:
    """Return whether attention was computed step by step, with the whole score matrix in memory."""
    return any(row.name == "aten::_scaled_dot_product_attention_math" for row in analysis.operators)
