"""The quick checklist of a trace: each target with the measured value."""

from typing import Final

from training_profiler.findings.check import FAIL, PASS, UNKNOWN, Check, check
from training_profiler.trace_analysis.events import HOST
from training_profiler.trace_analysis.kernel_names import ATTENTION
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER
from training_profiler.trace_analysis.trace import Trace


def checks(analysis: Trace) -> list[Check]:
    """Return the checks, the most important first."""
    return [make(analysis) for make in _CHECKS]


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


def _utilization(analysis: Trace) -> Check:
    known = analysis.has_gpu and analysis.is_whole
    return check("GPU utilization", "> 80%", analysis.utilization if known else None, lambda share: share > 0.80)


def _variation(analysis: Trace) -> Check:
    what = "step time variation (coefficient of variation)"
    return check(what, "< 10%", analysis.settled_variation, lambda share: share < 0.10)


def _memory(analysis: Trace) -> Check:
    return check("GPU memory", "85-95%", memory_share(analysis), lambda share: 0.85 <= share <= 0.95)


def _data(analysis: Trace) -> Check:
    return check("data time", "< 10%", data_share(analysis), lambda share: share < 0.10)


def _forward(analysis: Trace) -> Check:
    return check("forward", "35-40%", phase_share(analysis, FORWARD), lambda share: 0.35 <= share <= 0.40)


def _backward(analysis: Trace) -> Check:
    return check("backward", "40-45%", phase_share(analysis, BACKWARD), lambda share: 0.40 <= share <= 0.45)


def _optimizer(analysis: Trace) -> Check:
    share = phase_share(analysis, OPTIMIZER) if analysis.phases.optimizer_kernels else None
    return check("optimizer", "< 15%", share, lambda share: share < 0.15)


def _both(analysis: Trace) -> Check:
    phases = analysis.phases
    together = None if phases.times_ns is None else _share_of_device(analysis, phases.passes_ns)
    return check("forward + backward dominate", "> 50%", together, lambda share: share > 0.50)


def _flash(analysis: Trace) -> Check:
    what, target = "flash attention", "in use"
    if analysis.kernels.flash_ns:
        return Check(what, target, PASS, f"{analysis.kernels.flash_ns / 1e6:.1f} ms")
    others = analysis.kernels.by_kind_ns.get(ATTENTION) and analysis.kernels.are_known
    if uses_math_attention(analysis) or others:
        return Check(what, target, FAIL, "none")
    return Check(what, target, UNKNOWN, "")


def uses_math_attention(analysis: Trace) -> bool:
    """Return whether attention was computed step by step, with the whole score matrix in memory."""
    return any(row.name == "aten::_scaled_dot_product_attention_math" for row in analysis.operators)


def _transfers(analysis: Trace) -> Check:
    """A step waits for copies between host and device that nothing hides."""
    exposed_ns, wall_ns = analysis.transfers.exposed_ns, analysis.program_ns
    known = analysis.has_gpu and analysis.is_whole and wall_ns and exposed_ns is not None
    share = (exposed_ns or 0) / wall_ns if known else None
    return check("CPU-GPU transfer gaps", "< 1% of step time", share, lambda share: share < 0.01)


def _overlap(analysis: Trace) -> Check:
    total_ns = analysis.device.communication.total_ns
    share = 1 - analysis.exposed_communication_ns / total_ns if total_ns else None
    kinds = {collective.kind for collective in analysis.collectives}
    what = "all-reduce" if kinds == {"all_reduce"} else "communication"
    return check(f"{what} overlapped with computation", "> 50%", share, lambda share: share > 0.50)


_CHECKS: Final = (
    _utilization,
    _variation,
    _memory,
    _data,
    _forward,
    _backward,
    _optimizer,
    _both,
    _flash,
    _transfers,
    _overlap,
)
