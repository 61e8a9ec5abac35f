"""The quick checklist of a trace: each target with what was measured beside it."""

from typing import Final

from training_profiler.findings.check import FAIL, PASS, UNKNOWN, Check, check
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.kernel_names import ATTENTION
from training_profiler.trace_analysis.memory.allocator import HOST
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER


def checks(analysis: Analysis) -> list[Check]:
    """Return the checks in the order in which they are worth looking at."""
    return [make(analysis) for make in _CHECKS]


def phase_share(analysis: Analysis, phase: str) -> float | None:
    """Return the share of step time in which the device did the work of a phase; None where that is not told."""
    if analysis.phases.times_ns is None or not analysis.in_steps_ns:
        return None
    return analysis.phases.times_ns[phase] / analysis.in_steps_ns / max(1, len(analysis.devices))


def data_share(analysis: Analysis) -> float | None:
    """Return the share of step time in which the host waited for batches; None where no DataLoader is in the trace."""
    if not analysis.waiting.data_names or not analysis.in_steps_ns:
        return None
    return sum(analysis.waiting.data_ns) / analysis.in_steps_ns


def memory_share(analysis: Analysis) -> float | None:
    """Return the part of a device's memory that was reserved at most; None where the trace does not tell both."""
    parts = [
        one.reserved_peak_bytes / total
        for one in analysis.memory
        if one.reserved_peak_bytes and one.device != HOST and (total := analysis.device_bytes.get(int(one.device)))
    ]
    return max(parts, default=None)


def _utilization(analysis: Analysis) -> Check:
    return check("GPU utilization", "> 80%", analysis.utilization_in_steps, lambda share: share > 0.80)


def _variation(analysis: Analysis) -> Check:
    what = "step time variation (coefficient of variation)"
    return check(what, "< 10%", analysis.step_variation, lambda share: share < 0.10)


def _memory(analysis: Analysis) -> Check:
    return check("GPU memory", "85-95%", memory_share(analysis), lambda share: 0.85 <= share <= 0.95)


def _data(analysis: Analysis) -> Check:
    return check("data time", "< 10%", data_share(analysis), lambda share: share < 0.10)


def _forward(analysis: Analysis) -> Check:
    return check("forward", "35-40%", phase_share(analysis, FORWARD), lambda share: 0.35 <= share <= 0.40)


def _backward(analysis: Analysis) -> Check:
    return check("backward", "40-45%", phase_share(analysis, BACKWARD), lambda share: 0.40 <= share <= 0.45)


def _optimizer(analysis: Analysis) -> Check:
    return check("optimizer", "< 15%", phase_share(analysis, OPTIMIZER), lambda share: share < 0.15)


def _both(analysis: Analysis) -> Check:
    forward, backward = phase_share(analysis, FORWARD), phase_share(analysis, BACKWARD)
    together = None if forward is None or backward is None else forward + backward
    return check("forward + backward dominate", "> 50%", together, lambda share: share > 0.50)


def _flash(analysis: Analysis) -> Check:
    what, target = "flash attention", "in use"
    if analysis.kernels.flash_ns:
        return Check(what, target, PASS, f"{analysis.kernels.flash_ns / 1e6:.1f} ms")
    if uses_math_attention(analysis) or analysis.kernels.by_kind_ns.get(ATTENTION):
        return Check(what, target, FAIL, "none")
    return Check(what, target, UNKNOWN, "")


def uses_math_attention(analysis: Analysis) -> bool:
    """Return whether attention was computed step by step, with the whole matrix of scores in memory."""
    return any(one.name == "aten::_scaled_dot_product_attention_math" for one in analysis.operators)


def _transfers(analysis: Analysis) -> Check:
    """Exposed copies are what a step waits for while it moves data."""
    known = analysis.has_gpu and analysis.in_steps_ns
    share = sum(step.exposed_copies_ns for step in analysis.steps) / analysis.in_steps_ns if known else None
    return check("CPU-GPU transfer gaps", "< 1% of step time", share, lambda share: share < 0.01)


def _overlap(analysis: Analysis) -> Check:
    total_ns = analysis.device.communication.total_ns
    share = 1 - analysis.exposed_communication_ns / total_ns if total_ns else None
    return check("all-reduce overlapped with computation", "> 50%", share, lambda share: share > 0.50)


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
