"""Rules about the balance of a step, and about memory."""

from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import memory_share, phase_share
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER
from training_profiler.trace_analysis.rules.rule import NS_PER_MS, Recommendation, rule


@rule("memory-grows", 0.0)
def memory_grows(found: Analysis, threshold: float) -> Recommendation | None:
    """Memory that is higher after every step than after the one before."""
    growing = [one for one in found.memory if one.grows]
    if not growing:
        return None
    one = growing[0]
    rise = one.step_end_bytes[-1] - one.step_end_bytes[1]
    return Recommendation(
        "memory-grows",
        f"allocated memory of {'the host' if one.device == 'host' else 'device ' + one.device} rises with every step "
        f"({rise / 2**20:.1f} MiB over the last {len(one.step_end_bytes) - 2})",
        {"bytes": rise, "threshold": threshold, "device": one.device},
        None,
        "tensors are kept with their graph: .detach() or .item() what is collected",
    )


@rule("fragmentation", 0.20)
def fragmentation(found: Analysis, threshold: float) -> Recommendation | None:
    """Reserved memory of which over 20 %, and 1 GiB, is not allocated when most is."""
    for one in found.memory:
        if one.unused_at_peak_bytes is None or not one.reserved_peak_bytes:
            continue
        part = one.unused_at_peak_bytes / one.reserved_peak_bytes
        if part > threshold and one.unused_at_peak_bytes > 2**30:
            return Recommendation(
                "fragmentation",
                f"{part:.0%} of the reserved memory of device {one.device} is unused at its fullest",
                {"part": part, "threshold": threshold, "bytes": one.unused_at_peak_bytes},
                None,
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; constant shapes",
            )
    return None


@rule("backward-slow", 3.0)
def backward_slow(found: Analysis, threshold: float) -> Recommendation | None:
    """A backward pass of over three forward passes, on the device."""
    phases = found.phases.times_ns
    if phases is None or not phases[FORWARD] or phases[BACKWARD] / phases[FORWARD] <= threshold:
        return None
    ratio = phases[BACKWARD] / phases[FORWARD]
    return Recommendation(
        "backward-slow",
        f"the backward pass takes {ratio:.1f}x the forward pass on the device (2x is usual)",
        {"ratio": ratio, "threshold": threshold},
        (phases[BACKWARD] - 2 * phases[FORWARD]) / NS_PER_MS,
        "look for recomputation, and for autograd functions without a fused backward",
    )


@rule("optimizer-heavy", 0.15)
def optimizer_heavy(found: Analysis, threshold: float) -> Recommendation | None:
    """An update that takes the device over 15 % of step time."""
    share = phase_share(found, OPTIMIZER)
    if share is None or share <= threshold or found.phases.times_ns is None:
        return None
    return Recommendation(
        "optimizer-heavy",
        f"the optimizer takes {share:.1%} of step time on the device",
        {"share_of_step": share, "threshold": threshold},
        found.phases.times_ns[OPTIMIZER] / 2 / NS_PER_MS,
        "fused=True or foreach=True in the optimizer; accumulate gradients over several batches",
    )


@rule("forward-dominates", 0.60)
def forward_dominates(found: Analysis, threshold: float) -> Recommendation | None:
    """A forward pass that takes the device over 60 % of step time."""
    share = phase_share(found, FORWARD)
    if share is None or share <= threshold or found.phases.times_ns is None:
        return None
    return Recommendation(
        "forward-dominates",
        f"the forward pass takes {share:.1%} of step time on the device",
        {"share_of_step": share, "threshold": threshold},
        found.phases.times_ns[FORWARD] / 2 / NS_PER_MS,
        "mixed precision; torch.compile; is anything computed that the loss does not need?",
    )


@rule("gpu-memory-high", 0.90)
def memory_high(found: Analysis, threshold: float) -> Recommendation | None:
    """Reserved memory over 90 % of what the device has."""
    part = memory_share(found)
    if part is None or part <= threshold:
        return None
    risk = ": it may run out" if part > 0.98 else ""
    return Recommendation(
        "gpu-memory-high",
        f"{part:.0%} of the device's memory is reserved{risk}",
        {"part": part, "threshold": threshold},
        None,
        "smaller batches, gradient checkpointing, mixed precision",
    )


@rule("gpu-memory-low", 0.50)
def memory_low(found: Analysis, threshold: float) -> Recommendation | None:
    """Reserved memory under half of what the device has."""
    part = memory_share(found)
    if part is None or part >= threshold:
        return None
    return Recommendation(
        "gpu-memory-low",
        f"{part:.0%} of the device's memory is reserved",
        {"part": part, "threshold": threshold},
        None,
        "larger batches use the device better, where the training allows them",
    )
