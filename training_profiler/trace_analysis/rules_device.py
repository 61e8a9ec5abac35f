"""Rules about the device: memory and the balance of a step, then kernels, precision, copies, communication."""

from typing import Final

from training_profiler.base.table import shortened
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB, NS_PER_MS, NS_PER_S, counted
from training_profiler.diagnosis.finding import Finding
from training_profiler.diagnosis.rule import Saving
from training_profiler.trace_analysis import known_names, operators
from training_profiler.trace_analysis.host_activity import BACKWARD, FORWARD, OPTIMIZER, USUAL_BACKWARD
from training_profiler.trace_analysis.rules_registry import (
    CAPABILITY,
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
)
from training_profiler.trace_analysis.trace import LEAST_IN_TURNS, TENSOR_CORES_SINCE, Trace

MUCH_RESERVED: Final = 0.50  # of a device's memory


@RULES.rule("memory-grows", threshold=0.0, saving=Saving.UNKNOWN, needs=(MEMORY,))
def memory_grows(analysis: Trace, threshold: float) -> Finding | None:
    """Flag memory that is higher after every step than after the one before."""
    growing = [memory for memory in analysis.memory if memory.grows]
    if not growing:
        return None
    memory = growing[0]
    rise = memory.step_end_bytes[-1] - memory.step_end_bytes[1]
    where = "the host" if memory.is_host else f"device {memory.device}"
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


def _phase_is_heavy(analysis: Trace, threshold: float, phase: str, code: str, subject: str, fix: str) -> Finding | None:
    share, times_ns = analysis.phase_share(phase), analysis.phases.times_ns
    if share is None or share <= threshold or times_ns is None:
        return None
    message = f"{subject} takes {share:.1%} of {analysis.scope.time} on the device"
    evidence = {"share_of_step": share, "threshold": threshold}
    return Finding(code, message, evidence, times_ns[phase] / 2 / NS_PER_S, fix)  # a realistic change saves half of it


@RULES.rule("optimizer-heavy", threshold=0.15, needs=(PHASES,), work="optimizer")
def optimizer_heavy(analysis: Trace, threshold: float) -> Finding | None:
    """Flag an optimizer that takes over 15 % of step time on the device."""
    fix = "Pass fused=True or foreach=True to the optimizer, or accumulate gradients over several batches"
    return _phase_is_heavy(analysis, threshold, OPTIMIZER, "optimizer-heavy", "The optimizer", fix)


@RULES.rule("forward-dominates", threshold=0.60, needs=(PHASES,), work="products", has_conversions=True)
def forward_dominates(analysis: Trace, threshold: float) -> Finding | None:
    """Flag a forward pass that takes over 60 % of step time on the device."""
    compiled = " or torch.compile" if analysis.can_compile else ""
    fix = f"Use mixed precision{compiled}; check for computations that the loss does not need"
    return _phase_is_heavy(analysis, threshold, FORWARD, "forward-dominates", "The forward pass", fix)


@RULES.rule("gpu-memory-high", threshold=0.90, saving=Saving.UNKNOWN, needs=(RESERVED,))
def memory_high(analysis: Trace, threshold: float) -> Finding | None:
    """Flag reserved memory over 90 % of the device's memory. Servers of language models reserve it on purpose."""
    part = analysis.memory_share
    if part is None or part <= threshold or (analysis.is_serving and not analysis.has_backward):
        return None
    risk = "; it may run out" if part > 0.98 else ""
    return Finding(
        "gpu-memory-high",
        f"{part:.0%} of the device's memory is reserved{risk}",
        {"part": part, "threshold": threshold},
        0.0,
        f"Use smaller batches{', gradient checkpointing' if analysis.has_backward else ''} or mixed precision",
    )


@RULES.rule("gpu-memory-low", threshold=0.50, saving=Saving.UNKNOWN, needs=(RESERVED,))
def memory_low(analysis: Trace, threshold: float) -> Finding | None:
    """Flag reserved memory under half of the device's memory."""
    part = analysis.memory_share
    if part is None or part >= threshold:
        return None
    return Finding(
        "gpu-memory-low",
        f"{f'Only {part:.0%}' if part >= 0.01 else 'Under 1%'} of the device's memory is reserved",
        {"part": part, "threshold": threshold},
        0.0,
        f"Use larger batches, if the {'training' if analysis.has_backward else 'program'} allows it",
    )


LEAST_KERNELS: Final = 20  # fewer show nothing of a program
MOST_NAMES: Final = 3  # that a finding lists
MOST_NAME: Final = 50  # characters of each


@RULES.rule("small-kernels", threshold=0.50, saving=Saving.UNKNOWN, needs=TIMED)
def small_kernels(analysis: Trace, threshold: float) -> Finding | None:
    """Flag a trace in which over half of 20 kernels or more take under 10 us, and these over 5 % of kernel time."""
    kernels = analysis.kernels
    if kernels.count < LEAST_KERNELS or kernels.short_share is None:
        return None
    part = kernels.short_count / kernels.count
    if part <= threshold or kernels.short_share < 0.05:
        return None
    words = ["torch.compile, which fuses kernels"] if analysis.can_compile else []
    words += ["a foreach or fused optimizer"] if analysis.has_optimizer else []
    return Finding(
        "small-kernels",
        f"{part:.0%} of {kernels.count} kernels take under 10 us, together {kernels.short_share:.1%} of kernel time",
        {"part": part, "threshold": threshold, "share_of_kernel_time": kernels.short_share},
        0.0,
        f"Use {', '.join([*words, 'or larger batches'] if words else ['larger batches'])}",
    )


@RULES.rule("unclassified-kernels", threshold=operators.MOST_UNCLASSIFIED, saving=Saving.UNKNOWN, needs=TIMED)
def unclassified(analysis: Trace, threshold: float) -> Finding | None:
    """Flag kernels of unknown kind that take over 5 % of kernel time: what is computed there is not known."""
    share = analysis.kernels.unclassified_share
    if share is None or share <= threshold:
        return None
    unknown = [row for row in analysis.kernels.rows if row.kind == known_names.UNCLASSIFIED]
    names = ", ".join(shortened(row.name, MOST_NAME) for row in unknown[:MOST_NAMES])
    return Finding(
        "unclassified-kernels",
        f"{share:.1%} of kernel time is in {counted(len(unknown), 'kernel')} of unknown kind ({names})",
        {"share_of_kernel_time": share, "threshold": threshold, "kernels": len(unknown)},
        0.0,
        "Shares by kind are at least what is shown: these kernels may communicate, copy or use tensor cores too",
    )


@RULES.rule("frequent-copies", threshold=0.10, needs=(*TIMED, OPERATORS), work="copies")
def frequent_copies(analysis: Trace, threshold: float) -> Finding | None:
    """Flag `aten::copy_` and `aten::to` for over 10 % of the device's busy time in which it does nothing else."""
    ns, calls = analysis.conversions.total_ns, analysis.conversions.count
    busy_ns = analysis.device.busy.total_ns
    if not busy_ns or ns / busy_ns <= threshold:
        return None
    words = ["Create tensors on the device and in the type they are used in"]
    words += ["put one autocast around the forward pass"]
    words += ["use channels_last throughout"] if analysis.kernels.by_kind_ns.get(known_names.CONVOLUTION) else []
    return Finding(
        "frequent-copies",
        f"Copies and conversions of tensors on the device take {ns / busy_ns:.1%} of its busy time "
        f"({counted(calls, 'call')})",
        {"share_of_busy": ns / busy_ns, "threshold": threshold, "calls": calls},
        analysis.conversions_in_scope_ns / NS_PER_S,
        f"{', '.join(words[:-1])}, and {words[-1]}",
    )


@RULES.rule(
    "layout-conversions", threshold=0.05, needs=TIMED, is_measured=True, is_conversion=True, saves_at_least=True
)
def layout_conversions(analysis: Trace, threshold: float) -> Finding | None:
    """Flag kernels that convert the layout of tensors for convolutions, over 5 % of the device's busy time."""
    found, busy_ns = analysis.layout_conversions, analysis.device.busy.total_ns
    if not busy_ns or found.total_ns / busy_ns <= threshold:
        return None
    share = found.total_ns / busy_ns
    suggest = " On ROCm, also set PYTORCH_MIOPEN_SUGGEST_NHWC=1" if found.is_miopen else ""
    return Finding(
        "layout-conversions",
        f"Convolutions convert their tensors from NCHW to NHWC and back for {share:.1%} of the device's busy time "
        f"({counted(found.kernels, 'kernel')})",
        {"share_of_busy": share, "threshold": threshold, "kernels": found.kernels},
        found.saved_ns / NS_PER_S,
        "Use model.to(memory_format=torch.channels_last), and the same for its inputs: "
        "x.to(memory_format=torch.channels_last); for 3d convolutions, torch.channels_last_3d"
        + (f".{suggest}" if suggest else ""),
    )


@RULES.rule("no-tensor-cores", threshold=0.20, needs=(*TIMED, CAPABILITY), work="products", has_conversions=True)
def no_tensor_cores(analysis: Trace, threshold: float) -> Finding | None:
    """Flag matrix products and convolutions, over 20 % of kernel time, that use none of the device's tensor cores."""
    found = analysis.kernels
    if not found.total_ns or analysis.compute_capability is None or analysis.compute_capability < TENSOR_CORES_SINCE:
        return None
    dense_ns = found.on_other_cores_ns
    share = dense_ns / found.total_ns
    # Products whose names do not show what they compute on may use them.
    is_known = found.are_known and found.on_unknown_cores_ns <= operators.MOST_UNCLASSIFIED * found.total_ns
    if share <= threshold or found.tensor_core_share or not is_known:
        return None
    return Finding(
        "no-tensor-cores",
        f"No matrix product or convolution uses tensor cores, though they take {share:.0%} of kernel time",
        {"share_of_kernel_time": share, "threshold": threshold, "compute_capability": analysis.compute_capability},
        min(dense_ns, analysis.computed_ns) / 2 / NS_PER_S,  # tensor cores are at least twice as fast
        'Use torch.autocast("cuda", torch.bfloat16), or float16 with GradScaler before Ampere; from Ampere on, set at '
        'least torch.set_float32_matmul_precision("high"); make sizes multiples of 8',
    )


@RULES.rule("math-attention", threshold=0.0, needs=(*TIMED, OPERATORS), work="products")
def math_attention(analysis: Trace, threshold: float) -> Finding | None:
    """Flag attention that is computed step by step although a flash kernel could do it."""
    rows = [row for row in analysis.operators if row.name == "aten::_scaled_dot_product_attention_math"]
    if not analysis.uses_math_attention or analysis.kernels.flash_ns or not analysis.has_gpu:
        return None
    ns = sum(row.device_total_ns for row in rows)
    return Finding(
        "math-attention",
        f"Attention runs as plain matrix products and softmax ({ns / NS_PER_MS:.1f} ms on the device)",
        {"calls": sum(row.calls for row in rows), "threshold": threshold},
        min(ns, analysis.computed_ns) / 2 / NS_PER_S,
        "Use half precision, a head size of up to 256 and no dense mask, so that "
        "torch.nn.functional.scaled_dot_product_attention can use its flash kernel",
    )


@RULES.rule(
    "single-tensor-optimizer", threshold=100, needs=(*TIMED, CUDA_KERNELS, OPTIMIZER_KERNELS, LOOP), work="optimizer"
)
def single_tensor_optimizer(analysis: Trace, threshold: float) -> Finding | None:
    """Flag an optimizer that launches over 100 kernels per step, mostly one per tensor."""
    per_step = analysis.phases.optimizer_kernels / analysis.scope.repetitions
    if per_step <= threshold or analysis.phases.multi_tensor_kernels > analysis.phases.optimizer_kernels / 2:
        return None
    ns = 0 if analysis.phases.times_ns is None else analysis.phases.times_ns[OPTIMIZER]
    return Finding(
        "single-tensor-optimizer",
        f"The optimizer launches {per_step:.0f} kernels per step, mostly one per tensor",
        {"kernels_a_step": per_step, "threshold": threshold},
        ns / 2 / NS_PER_S,
        "Pass fused=True or foreach=True to the optimizer",
    )


@RULES.rule("exposed-communication", threshold=0.10, needs=(DEVICE, WHOLE), is_measured=True)
def exposed_communication(analysis: Trace, threshold: float) -> Finding | None:
    """Flag communication that no computation hides, over 10 % of step time."""
    ns = sum(part.exposed_communication_ns for part in analysis.scope.parts)
    share = analysis.share_of_scope(ns)
    if share is None or share <= threshold:
        return None
    total_ns = analysis.device.communication.total_ns
    hidden = 1 - analysis.exposed_communication_ns / total_ns if total_ns else 0.0
    return Finding(
        "exposed-communication",
        f"{share:.1%} of {analysis.scope.time} is exposed communication ({hidden:.0%} of communication is hidden)",
        {"share_of_step": share, "threshold": threshold, "hidden": hidden},
        ns / NS_PER_S,
        "Look for a late rank first (analyse the traces of several ranks: waiting against transfer); then use "
        + analysis.communication_advice,
    )


@RULES.rule("devices-take-turns", threshold=LEAST_IN_TURNS, is_measured=True)
def devices_take_turns(analysis: Trace, threshold: float) -> Finding | None:
    """Flag devices that wait for each other's work, together busy for over 50 % of step time."""
    busy_ns = analysis.scope.within(analysis.device.busy)
    share = analysis.share_of_scope(busy_ns)
    if not analysis.takes_turns or not analysis.is_whole or share is None or share <= threshold:
        return None
    each_ns = [analysis.scope.within(device.device.busy) for device in analysis.devices]
    shares = [ns / analysis.program_ns for ns in each_ns]
    *others, last = [f"{part:.1%}" for part in shares]
    return Finding(
        "devices-take-turns",
        f"{len(shares)} devices take turns: they are busy for {', '.join(others)} and {last} of {analysis.scope.time}, "
        "and while one works the others wait",
        {"share_of_step": share, "threshold": threshold, "devices": len(shares)},
        (busy_ns - max(each_ns)) / NS_PER_S,
        "Cut each batch into micro-batches that follow one another through the devices (torch.distributed.pipelining), "
        "or train a whole copy of the model on each (DistributedDataParallel; FSDP where one does not fit)",
    )
