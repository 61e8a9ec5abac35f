"""Rules about the balance of a step, and about memory."""

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import memory_share, phase_share
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER
from training_profiler.trace_analysis.rules.registry import RULES
from training_profiler.units import NS_PER_S


@RULES.rule("memory-grows", threshold=0.0, saving=Saving.UNKNOWN)
def memory_grows(analysis: Analysis, threshold: float) -> Finding | None:
    """Memory that is higher after every step than after the one before."""
    growing = [one for one in analysis.memory if one.grows]
    if not growing:
        return None
    one = growing[0]
    rise = one.step_end_bytes[-1] - one.step_end_bytes[1]
    return Finding(
        "memory-grows",
        f"allocated memory of {'the host' if one.device == 'host' else 'device ' + one.device} rises with every step "
        f"({rise / 2**20:.1f} MiB over the last {len(one.step_end_bytes) - 2})",
        {"bytes": rise, "threshold": threshold, "device": one.device},
        0.0,
        "tensors are kept with their graph: .detach() or .item() what is collected",
    )


@RULES.rule("fragmentation", threshold=0.20, saving=Saving.UNKNOWN)
def fragmentation(analysis: Analysis, threshold: float) -> Finding | None:
    """Reserved memory of which over 20 %, and 1 GiB, is not allocated when most is."""
    for one in analysis.memory:
        if one.unused_at_peak_bytes is None or not one.reserved_peak_bytes:
            continue
        part = one.unused_at_peak_bytes / one.reserved_peak_bytes
        if part > threshold and one.unused_at_peak_bytes > 2**30:
            return Finding(
                "fragmentation",
                f"{part:.0%} of the reserved memory of device {one.device} is unused at its fullest",
                {"part": part, "threshold": threshold, "bytes": one.unused_at_peak_bytes},
                0.0,
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; constant shapes",
            )
    return None


@RULES.rule("backward-slow", threshold=3.0)
def backward_slow(analysis: Analysis, threshold: float) -> Finding | None:
    """A backward pass of over three forward passes, on the device."""
    phases = analysis.phases.times_ns
    if phases is None or not phases[FORWARD] or phases[BACKWARD] / phases[FORWARD] <= threshold:
        return None
    ratio = phases[BACKWARD] / phases[FORWARD]
    return Finding(
        "backward-slow",
        f"the backward pass takes {ratio:.1f}x the forward pass on the device (2x is usual)",
        {"ratio": ratio, "threshold": threshold},
        (phases[BACKWARD] - 2 * phases[FORWARD]) / NS_PER_S,
        "look for recomputation, and for autograd functions without a fused backward",
    )


@RULES.rule("optimizer-heavy", threshold=0.15)
def optimizer_heavy(analysis: Analysis, threshold: float) -> Finding | None:
    """An update that takes the device over 15 % of step time."""
    share = phase_share(analysis, OPTIMIZER)
    if share is None or share <= threshold or analysis.phases.times_ns is None:
        return None
    return Finding(
        "optimizer-heavy",
        f"the optimizer takes {share:.1%} of step time on the device",
        {"share_of_step": share, "threshold": threshold},
        analysis.phases.times_ns[OPTIMIZER] / 2 / NS_PER_S,
        "fused=True or foreach=True in the optimizer; accumulate gradients over several batches",
    )


@RULES.rule("forward-dominates", threshold=0.60)
def forward_dominates(analysis: Analysis, threshold: float) -> Finding | None:
    """A forward pass that takes the device over 60 % of step time."""
    share = phase_share(analysis, FORWARD)
    if share is None or share <= threshold or analysis.phases.times_ns is None:
        return None
    return Finding(
        "forward-dominates",
        f"the forward pass takes {share:.1%} of step time on the device",
        {"share_of_step": share, "threshold": threshold},
        analysis.phases.times_ns[FORWARD] / 2 / NS_PER_S,
        "mixed precision; torch.compile; is anything computed that the loss does not need?",
    )


@RULES.rule("gpu-memory-high", threshold=0.90, saving=Saving.UNKNOWN)
def memory_high(analysis: Analysis, threshold: float) -> Finding | None:
    """Reserved memory over 90 % of what the device has."""
    part = memory_share(analysis)
    if part is None or part <= threshold:
        return None
    risk = ": it may run out" if part > 0.98 else ""
    return Finding(
        "gpu-memory-high",
        f"{part:.0%} of the device's memory is reserved{risk}",
        {"part": part, "threshold": threshold},
        0.0,
        "smaller batches, gradient checkpointing, mixed precision",
    )


@RULES.rule("gpu-memory-low", threshold=0.50, saving=Saving.UNKNOWN)
def memory_low(analysis: Analysis, threshold: float) -> Finding | None:
    """Reserved memory under half of what the device has."""
    part = memory_share(analysis)
    if part is None or part >= threshold:
        return None
    return Finding(
        "gpu-memory-low",
        f"{part:.0%} of the device's memory is reserved",
        {"part": part, "threshold": threshold},
        0.0,
        "larger batches use the device better, where the training allows them",
    )
