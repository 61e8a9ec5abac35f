"""The quick checklist of a trace: each target with what was measured beside it."""

from typing import Final

from training_profiler.findings.check import FAIL, PASS, UNKNOWN, Check, check
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.kernel_names import ATTENTION
from training_profiler.trace_analysis.memory.allocator import HOST
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER


def checks(found: Analysis) -> list[Check]:
    """Return the checks in the order in which they are worth looking at."""
    return [make(found) for make in _CHECKS]


def phase_share(found: Analysis, phase: str) -> float | None:
    """Return the share of step time in which the device did the work of a phase; None where that is not told."""
    if found.phases.times_ns is None or not found.in_steps_ns:
        return None
    return found.phases.times_ns[phase] / found.in_steps_ns / max(1, len(found.devices))


def data_share(found: Analysis) -> float | None:
    """Return the share of step time in which the host waited for batches; None where no DataLoader is in the trace."""
    if not found.waiting.data_names or not found.in_steps_ns:
        return None
    return sum(found.waiting.data_ns) / found.in_steps_ns


def memory_share(found: Analysis) -> float | None:
    """Return the part of a device's memory that was reserved at most; None where the trace does not tell both."""
    parts = [
        one.reserved_peak_bytes / total
        for one in found.memory
        if one.reserved_peak_bytes and one.device != HOST and (total := found.device_bytes.get(int(one.device)))
    ]
    return max(parts, default=None)


def _utilization(found: Analysis) -> Check:
    return check("GPU utilization", "> 80%", found.utilization_in_steps, lambda share: share > 0.80)


def _variation(found: Analysis) -> Check:
    what = "step time variation (coefficient of variation)"
    return check(what, "< 10%", found.step_variation, lambda share: share < 0.10)


def _memory(found: Analysis) -> Check:
    return check("GPU memory", "85-95%", memory_share(found), lambda share: 0.85 <= share <= 0.95)


def _data(found: Analysis) -> Check:
    return check("data time", "< 10%", data_share(found), lambda share: share < 0.10)


def _forward(found: Analysis) -> Check:
    return check("forward", "35-40%", phase_share(found, FORWARD), lambda share: 0.35 <= share <= 0.40)


def _backward(found: Analysis) -> Check:
    return check("backward", "40-45%", phase_share(found, BACKWARD), lambda share: 0.40 <= share <= 0.45)


def _optimizer(found: Analysis) -> Check:
    return check("optimizer", "< 15%", phase_share(found, OPTIMIZER), lambda share: share < 0.15)


def _both(found: Analysis) -> Check:
    forward, backward = phase_share(found, FORWARD), phase_share(found, BACKWARD)
    together = None if forward is None or backward is None else forward + backward
    return check("forward + backward dominate", "> 50%", together, lambda share: share > 0.50)


def _flash(found: Analysis) -> Check:
    what, target = "flash attention", "in use"
    if found.kernels.flash_ns:
        return Check(what, target, PASS, f"{found.kernels.flash_ns / 1e6:.1f} ms")
    if uses_math_attention(found) or found.kernels.by_kind_ns.get(ATTENTION):
        return Check(what, target, FAIL, "none")
    return Check(what, target, UNKNOWN, "")


def uses_math_attention(found: Analysis) -> bool:
    """Return whether attention was computed step by step, with the whole matrix of scores in memory."""
    return any(one.name == "aten::_scaled_dot_product_attention_math" for one in found.operators)


def _transfers(found: Analysis) -> Check:
    """Exposed copies are what a step waits for while it moves data."""
    known = found.has_gpu and found.in_steps_ns
    share = sum(step.exposed_copies_ns for step in found.steps) / found.in_steps_ns if known else None
    return check("CPU-GPU transfer gaps", "< 1% of step time", share, lambda share: share < 0.01)


def _overlap(found: Analysis) -> Check:
    total_ns = found.device.communication.total_ns
    share = 1 - found.exposed_communication_ns / total_ns if total_ns else None
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
