"""Rules about the device: memory and the balance of a step, then kernels, precision, copies, communication."""

import operator
from typing import Final

from training_profiler.base.table import shortened
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB, NS_PER_MS, counted
from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.registry import Saving
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.host_activity import BACKWARD, FORWARD, OPTIMIZER, USUAL_BACKWARD
from training_profiler.trace_analysis.operators import MOST_UNCLASSIFIED
from training_profiler.trace_analysis.rules_registry import (
    CAPABILITY,
    CLOCK,
    CUDA_KERNELS,
    DEVICE,
    LOOP,
    MEMORY,
    OPERATORS,
    OPTIMIZER_KERNELS,
    PHASES,
    RESERVED,
    RULES,
    TIMED,
    WHOLE,
    found,
)
from training_profiler.trace_analysis.trace import LEAST_IN_TURNS, TENSOR_CORES_SINCE, Trace

MUCH_RESERVED: Final = 0.50  # of a device's memory


@RULES.rule("memory-grows", threshold=0.0, saving=Saving.UNKNOWN, needs=(MEMORY,), fires=lambda *_: True)
def memory_grows(analysis: Trace, _: float) -> Finding | None:
    """Flag memory that is higher after every step than after the one before."""
    memory = next((memory for memory in analysis.memory if memory.grows), None)
    if memory is None:
        return None
    rise, steps = memory.step_end_bytes[-1] - memory.step_end_bytes[1], len(memory.step_end_bytes) - 2
    where = "the host" if memory.is_host else f"device {memory.device}"
    grown = f"Allocated memory of {where} grows with every step ({rise / BYTES_PER_MIB:.1f} MiB over the last {steps})"
    fix = "Look for tensors that are kept with their graph; keep .detach() or .item() of them instead"
    return found(grown, fix, bytes=rise, device=memory.device)


@RULES.rule("fragmentation", threshold=0.20, saving=Saving.UNKNOWN, needs=(MEMORY,))
def fragmentation(analysis: Trace, threshold: float) -> Finding | None:
    """Flag reserved memory of which over 20 %, and 1 GiB, is unused at the peak of allocation.

    Where most of the device's memory is free, none of it is missing.
    """
    for memory in analysis.memory:
        unused, reserved = memory.unused_at_peak_bytes, memory.reserved_peak_bytes
        if unused is None or not reserved or unused <= BYTES_PER_GIB or unused / reserved <= threshold:
            continue
        total = analysis.device_bytes.get(int(memory.device))
        if total is None or reserved > MUCH_RESERVED * total:
            part = unused / reserved
            wasted = f"{part:.0%} of the reserved memory of device {memory.device} is unused at peak allocation"
            fix = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and keep shapes constant"
            return found(wasted, fix, part=part, bytes=unused)
    return None


@RULES.rule("clock-falls", threshold=0.05, saving=Saving.UNKNOWN, needs=(DEVICE, WHOLE, CLOCK))
def clock_falls(analysis: Trace, _: float) -> Finding | None:
    """Flag a clock of a busy device that is over 5 % below its highest before, in the mean."""
    fallen = [(each.fall, each.device) for each in analysis.counters if each.fall is not None]
    (fall, highest, lowest), device = max(fallen, key=lambda each: each[0])
    said = f"The clock of device {device} fell from {highest:.0f} to {lowest:.0f} MHz while it was busy"
    fix = "See what holds it down: nvidia-smi -q -d PERFORMANCE,POWER; a profiled run with nvidia-ml-py names a reason"
    return found(f"{said}, {fall:.0%} below its highest in the mean", fix, fall=fall)


@RULES.rule("backward-slow", threshold=3.0, needs=(PHASES,), work="products", has_conversions=True)
def backward_slow(analysis: Trace, _: float) -> Finding | None:
    """Flag a backward pass that takes over three times the forward pass, on the device."""
    phases = analysis.phases.times_ns
    if phases is None or not phases[FORWARD]:
        return None
    ratio, usual_ns = phases[BACKWARD] / phases[FORWARD], USUAL_BACKWARD * phases[FORWARD]
    said = f"The backward pass takes {ratio:.1f}x as long as the forward pass on the device (usual: {USUAL_BACKWARD}x)"
    fix = "Check for recomputation and for autograd functions without a fused backward"
    return found(said, fix, phases[BACKWARD] - usual_ns, ratio=ratio)


def _phase_is_heavy(analysis: Trace, phase: str, subject: str, fix: str) -> Finding | None:
    share, times_ns = analysis.phase_share(phase), analysis.phases.times_ns
    if share is None or times_ns is None:
        return None
    heavy = f"{subject} takes {share:.1%} of {analysis.scope.time} on the device"
    return found(heavy, fix, times_ns[phase] / 2, share_of_step=share)  # a realistic change saves half of it


@RULES.rule("optimizer-heavy", threshold=0.15, needs=(PHASES,), work="optimizer")
def optimizer_heavy(analysis: Trace, _: float) -> Finding | None:
    """Flag an optimizer that takes over 15 % of step time on the device."""
    fix = "Pass fused=True or foreach=True to the optimizer, or accumulate gradients over several batches"
    return _phase_is_heavy(analysis, OPTIMIZER, "The optimizer", fix)


@RULES.rule("forward-dominates", threshold=0.60, needs=(PHASES,), work="products", has_conversions=True)
def forward_dominates(analysis: Trace, _: float) -> Finding | None:
    """Flag a forward pass that takes over 60 % of step time on the device."""
    compiled = " or torch.compile" if analysis.can_compile else ""
    fix = f"Use mixed precision{compiled}; check for computations that the loss does not need"
    return _phase_is_heavy(analysis, FORWARD, "The forward pass", fix)


@RULES.rule("gpu-memory-high", threshold=0.90, saving=Saving.UNKNOWN, needs=(RESERVED,))
def memory_high(analysis: Trace, _: float) -> Finding | None:
    """Flag reserved memory over 90 % of the device's memory. Servers of language models reserve it on purpose."""
    part = analysis.memory_share
    if part is None or (analysis.is_serving and not analysis.has_backward):
        return None
    risk = "; it may run out" if part > 0.98 else ""
    fix = f"Use smaller batches{', gradient checkpointing' if analysis.has_backward else ''} or mixed precision"
    return found(f"{part:.0%} of the device's memory is reserved{risk}", fix, part=part)


@RULES.rule("gpu-memory-low", threshold=0.50, saving=Saving.UNKNOWN, needs=(RESERVED,), fires=operator.lt)
def memory_low(analysis: Trace, _: float) -> Finding | None:
    """Flag reserved memory under half of the device's memory."""
    part = analysis.memory_share
    if part is None:
        return None
    little = f"{f'Only {part:.0%}' if part >= 0.01 else 'Under 1%'} of the device's memory is reserved"
    fix = f"Use larger batches, if the {'training' if analysis.has_backward else 'program'} allows it"
    return found(little, fix, part=part)


MATH_ATTENTION: Final = "aten::_scaled_dot_product_attention_math"  # step by step, with all scores in memory
LEAST_KERNELS: Final = 20  # fewer show nothing of a program
MOST_NAMES: Final = 3  # that a finding lists
MOST_NAME: Final = 50  # characters of each


@RULES.rule("small-kernels", threshold=0.50, saving=Saving.UNKNOWN, needs=TIMED)
def small_kernels(analysis: Trace, _: float) -> Finding | None:
    """Flag a trace in which over half of 20 kernels or more take under 10 us, and these over 5 % of kernel time."""
    kernels, share = analysis.kernels, analysis.kernels.short_share
    if kernels.count < LEAST_KERNELS or share is None or share < 0.05:
        return None
    part = kernels.short_count / kernels.count
    words = ["torch.compile, which fuses kernels"] if analysis.can_compile else []
    words += ["a foreach or fused optimizer"] if analysis.has_optimizer else []
    fix = f"Use {', '.join([*words, 'or larger batches'] if words else ['larger batches'])}"
    small = f"{part:.0%} of {kernels.count} kernels take under 10 us, together {share:.1%} of kernel time"
    return found(small, fix, part=part, share_of_kernel_time=share)


@RULES.rule("unclassified-kernels", threshold=MOST_UNCLASSIFIED, saving=Saving.UNKNOWN, needs=TIMED)
def unclassified(analysis: Trace, _: float) -> Finding | None:
    """Flag kernels of unknown kind that take over 5 % of kernel time: what is computed there is not known."""
    share = analysis.kernels.unclassified_share
    if share is None:
        return None
    unknown = [row for row in analysis.kernels.rows if row.kind == known_names.UNCLASSIFIED]
    names = ", ".join(shortened(row.name, MOST_NAME) for row in unknown[:MOST_NAMES])
    said = f"{share:.1%} of kernel time is in {counted(len(unknown), 'kernel')} of unknown kind ({names})"
    fix = "Shares by kind are at least what is shown: these kernels may communicate, copy or use tensor cores too"
    return found(said, fix, share_of_kernel_time=share, kernels=len(unknown))


@RULES.rule("frequent-copies", threshold=0.10, needs=(*TIMED, OPERATORS), work="copies")
def frequent_copies(analysis: Trace, _: float) -> Finding | None:
    """Flag `aten::copy_` and `aten::to` for over 10 % of the device's busy time in which it does nothing else."""
    calls, share = analysis.conversions.count, analysis.share_of_busy(analysis.conversions.total_ns)
    words = ["Create tensors on the device and in the type they are used in"]
    words += ["put one autocast around the forward pass"]
    words += ["use channels_last throughout"] if analysis.kernels.by_kind_ns.get(known_names.CONVOLUTION) else []
    said = (
        f"Copies and conversions of tensors on the device take {share:.1%} of its busy time ({counted(calls, 'call')})"
    )
    fix = f"{', '.join(words[:-1])}, and {words[-1]}"
    return found(said, fix, analysis.conversions_in_scope_ns, share_of_busy=share, calls=calls)


@RULES.rule(
    "layout-conversions", threshold=0.05, needs=TIMED, is_measured=True, is_conversion=True, saves_at_least=True
)
def layout_conversions(analysis: Trace, _: float) -> Finding | None:
    """Flag kernels that convert the layout of tensors for convolutions, over 5 % of the device's busy time."""
    conversions = analysis.layout_conversions
    share = analysis.share_of_busy(conversions.total_ns)
    return found(
        f"Convolutions convert their tensors from NCHW to NHWC and back for {share:.1%} of the device's busy time "
        f"({counted(conversions.kernels, 'kernel')})",
        "Use model.to(memory_format=torch.channels_last), and the same for its inputs: "
        "x.to(memory_format=torch.channels_last); for 3d convolutions, torch.channels_last_3d"
        + (". On ROCm, also set PYTORCH_MIOPEN_SUGGEST_NHWC=1" if conversions.is_miopen else ""),
        conversions.saved_ns,
        share_of_busy=share,
        kernels=conversions.kernels,
    )


@RULES.rule("no-tensor-cores", threshold=0.20, needs=(*TIMED, CAPABILITY), work="products", has_conversions=True)
def no_tensor_cores(analysis: Trace, _: float) -> Finding | None:
    """Flag matrix products and convolutions, over 20 % of kernel time, that use none of the device's tensor cores."""
    kernels, capability = analysis.kernels, analysis.compute_capability
    if not kernels.total_ns or capability is None or capability < TENSOR_CORES_SINCE:
        return None
    dense_ns = kernels.on_other_cores_ns
    share = dense_ns / kernels.total_ns
    # Products whose names do not show what they compute on may use them.
    is_known = kernels.are_known and kernels.on_unknown_cores_ns <= MOST_UNCLASSIFIED * kernels.total_ns
    if kernels.tensor_core_share or not is_known:
        return None
    return found(
        f"No matrix product or convolution uses tensor cores, though they take {share:.0%} of kernel time",
        'Use torch.autocast("cuda", torch.bfloat16), or float16 with GradScaler before Ampere; from Ampere on, set at '
        'least torch.set_float32_matmul_precision("high"); make sizes multiples of 8',
        min(dense_ns, analysis.computed_ns) / 2,  # tensor cores are at least twice as fast
        share_of_kernel_time=share,
        compute_capability=capability,
    )


@RULES.rule("math-attention", threshold=0.0, needs=(*TIMED, OPERATORS), work="products", fires=lambda *_: True)
def math_attention(analysis: Trace, _: float) -> Finding | None:
    """Flag attention that is computed step by step although a flash kernel could do it."""
    rows = [row for row in analysis.operators if row.name == MATH_ATTENTION]
    if not rows or analysis.kernels.flash_ns:
        return None
    ns = sum(row.device_total_ns for row in rows)
    return found(
        f"Attention runs as plain matrix products and softmax ({ns / NS_PER_MS:.1f} ms on the device)",
        "Use half precision, a head size of up to 256 and no dense mask, so that "
        "torch.nn.functional.scaled_dot_product_attention can use its flash kernel",
        min(ns, analysis.computed_ns) / 2,
        calls=sum(row.calls for row in rows),
    )


@RULES.rule(
    "single-tensor-optimizer", threshold=100, needs=(*TIMED, CUDA_KERNELS, OPTIMIZER_KERNELS, LOOP), work="optimizer"
)
def single_tensor_optimizer(analysis: Trace, _: float) -> Finding | None:
    """Flag an optimizer that launches over 100 kernels per step, mostly one per tensor."""
    phases = analysis.phases
    if phases.multi_tensor_kernels > phases.optimizer_kernels / 2:
        return None
    per_step = phases.optimizer_kernels / analysis.scope.repetitions
    said = f"The optimizer launches {per_step:.0f} kernels per step, mostly one per tensor"
    ns = 0 if phases.times_ns is None else phases.times_ns[OPTIMIZER]
    return found(said, "Pass fused=True or foreach=True to the optimizer", ns / 2, kernels_a_step=per_step)


@RULES.rule("exposed-communication", threshold=0.10, needs=(DEVICE, WHOLE), is_measured=True)
def exposed_communication(analysis: Trace, _: float) -> Finding | None:
    """Flag communication that no computation hides, over 10 % of step time."""
    ns, total_ns = analysis.scope.total.exposed_communication_ns, analysis.device.communication.total_ns
    share = analysis.share_of_scope(ns)
    hidden = 1 - analysis.exposed_communication_ns / total_ns if total_ns else 0.0
    return found(
        f"{share:.1%} of {analysis.scope.time} is exposed communication ({hidden:.0%} of communication is hidden)",
        "Look for a late rank first (analyse the traces of several ranks: waiting against transfer); then use "
        + analysis.communication_advice,
        ns,
        share_of_step=share,
        hidden=hidden,
    )


@RULES.rule("devices-take-turns", threshold=LEAST_IN_TURNS, is_measured=True)
def devices_take_turns(analysis: Trace, _: float) -> Finding | None:
    """Flag devices that wait for each other's work, together busy for over 50 % of step time."""
    busy_ns = analysis.scope.within(analysis.device.busy)
    if not analysis.takes_turns or not analysis.is_whole or not analysis.program_ns:
        return None
    each_ns = [analysis.scope.within(device.device.busy) for device in analysis.devices]
    *others, last = [f"{ns / analysis.program_ns:.1%}" for ns in each_ns]
    return found(
        f"{len(each_ns)} devices take turns: they are busy for {', '.join(others)} and {last} of "
        f"{analysis.scope.time}, and while one works the others wait",
        "Cut each batch into micro-batches that follow one another through the devices (torch.distributed.pipelining), "
        "or train a whole copy of the model on each (DistributedDataParallel; FSDP where one does not fit)",
        busy_ns - max(each_ns),
        share_of_step=analysis.share_of_scope(busy_ns),
        devices=len(each_ns),
    )
