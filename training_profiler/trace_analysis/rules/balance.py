"""Rules about the balance of a step, and about memory."""

from dataclasses import dataclass
from typing import Final

from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB, NS_PER_S
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Need, Saving
from training_profiler.trace_analysis.checklist import memory_share, phase_share
from training_profiler.trace_analysis.device_memory import HOST
from training_profiler.trace_analysis.phases import BACKWARD, FORWARD, OPTIMIZER, USUAL_BACKWARD
from training_profiler.trace_analysis.rules.needs import MEMORY, PHASES, RESERVED
from training_profiler.trace_analysis.rules.registry import RULES, TraceRule, can_compile, has_backward
from training_profiler.trace_analysis.trace import Trace

MUCH_RESERVED: Final = 0.50  # of a device's memory


@RULES.rule("memory-grows", threshold=0.0, saving=Saving.UNKNOWN, needs=(MEMORY,))
def memory_grows(analysis: Trace, threshold: float) -> Finding | None:
    """Flag memory that is higher after every step than after the one before."""
    growing = [memory for memory in analysis.memory if memory.grows]
    if not growing:
        return None
    memory = growing[0]
    rise = memory.step_end_bytes[-1] - memory.step_end_bytes[1]
    where = "the host" if memory.device == HOST else f"device {memory.device}"
    return Finding(
        "memory-grows",
        f"Allocated memory of {where} grows with every step "
        f"({rise / BYTES_PER_MIB:.1f} MiB over the last {len(memory.step_end_bytes) - 2})",
        {"bytes": rise, "threshold": threshold, "device": memory.device},
        0.0,
        "Look for tensors that are kept with their graph; keep .detach() or .item() of them instead",
    )


@RULES.rule("fragmentation", threshold=0.20, saving=Saving.UNKNOWN, needs=(MEMORY,))
def fragmentation(analysis: Trace, threshold: float) -> Finding | None:
    """Flag reserved memory of which over 20 %, and 1 GiB, is unused at the peak of allocation.

    Where most of the device's memory is free, none of it is missing.
    """
    for memory in analysis.memory:
        if memory.unused_at_peak_bytes is None or not memory.reserved_peak_bytes:
            continue
        total = analysis.device_bytes.get(int(memory.device))
        if total is not None and memory.reserved_peak_bytes <= MUCH_RESERVED * total:
            continue
        part = memory.unused_at_peak_bytes / memory.reserved_peak_bytes
        if part > threshold and memory.unused_at_peak_bytes > BYTES_PER_GIB:
            return Finding(
                "fragmentation",
                f"{part:.0%} of the reserved memory of device {memory.device} is unused at peak allocation",
                {"part": part, "threshold": threshold, "bytes": memory.unused_at_peak_bytes},
                0.0,
                "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and keep shapes constant",
            )
    return None


@RULES.rule("backward-slow", threshold=3.0, needs=(PHASES,), work="products", has_conversions=True)
def backward_slow(analysis: Trace, threshold: float) -> Finding | None:
    """Flag a backward pass that takes over three times the forward pass, on the device."""
    phases = analysis.phases.times_ns
    if phases is None or not phases[FORWARD] or phases[BACKWARD] / phases[FORWARD] <= threshold:
        return None
    ratio = phases[BACKWARD] / phases[FORWARD]
    return Finding(
        "backward-slow",
        f"The backward pass takes {ratio:.1f}x as long as the forward pass on the device (usual: {USUAL_BACKWARD}x)",
        {"ratio": ratio, "threshold": threshold},
        (phases[BACKWARD] - USUAL_BACKWARD * phases[FORWARD]) / NS_PER_S,
        "Check for recomputation and for autograd functions without a fused backward",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseShare(TraceRule):
    """A row of the table of rules about one phase's share of step time on the device."""

    needs: tuple[Need[Trace], ...] = (PHASES,)
    phase: str
    subject: str  # "... takes 20.0% of step time on the device"
    fix: str

    def find(self, analysis: Trace, threshold: float) -> Finding | None:
        """Return a finding if the phase takes too much of step time; None if the trace does not show phases."""
        share = phase_share(analysis, self.phase)
        if share is None or share <= threshold or analysis.phases.times_ns is None:
            return None
        return Finding(
            self.code,
            f"{self.subject} takes {share:.1%} of {analysis.scope.time} on the device",
            {"share_of_step": share, "threshold": threshold},
            analysis.phases.times_ns[self.phase] / 2 / NS_PER_S,  # a realistic change saves half of it
            self.fix.format(compile=" or torch.compile" if can_compile(analysis) else ""),
        )


PHASE_SHARES: Final = (
    PhaseShare(
        code="optimizer-heavy",
        phase=OPTIMIZER,
        threshold=0.15,
        subject="The optimizer",
        fix="Pass fused=True or foreach=True to the optimizer, or accumulate gradients over several batches",
        work="optimizer",
    ),
    PhaseShare(
        code="forward-dominates",
        phase=FORWARD,
        threshold=0.60,
        subject="The forward pass",
        fix="Use mixed precision{compile}; check for computations that the loss does not need",
        work="products",
        has_conversions=True,
    ),
)
for row in PHASE_SHARES:
    RULES.add(row)


@RULES.rule("gpu-memory-high", threshold=0.90, saving=Saving.UNKNOWN, needs=(RESERVED,))
def memory_high(analysis: Trace, threshold: float) -> Finding | None:
    """Flag reserved memory over 90 % of the device's memory. Servers of language models reserve it on purpose."""
    part = memory_share(analysis)
    if part is None or part <= threshold or (analysis.is_serving and not has_backward(analysis)):
        return None
    risk = "; it may run out" if part > 0.98 else ""
    return Finding(
        "gpu-memory-high",
        f"{part:.0%} of the device's memory is reserved{risk}",
        {"part": part, "threshold": threshold},
        0.0,
        f"Use smaller batches{', gradient checkpointing' if has_backward(analysis) else ''} or mixed precision",
    )


@RULES.rule("gpu-memory-low", threshold=0.50, saving=Saving.UNKNOWN, needs=(RESERVED,))
def memory_low(analysis: Trace, threshold: float) -> Finding | None:
    """Flag reserved memory under half of the device's memory."""
    part = memory_share(analysis)
    if part is None or part >= threshold:
        return None
    return Finding(
        "gpu-memory-low",
        f"{f'Only {part:.0%}' if part >= 0.01 else 'Under 1%'} of the device's memory is reserved",
        {"part": part, "threshold": threshold},
        0.0,
        f"Use larger batches, if the {'training' if has_backward(analysis) else 'program'} allows it",
    )
