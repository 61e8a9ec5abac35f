"""Rules about what the device runs: kernels, precision, attention, the optimizer, communication."""

from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import uses_math_attention
from training_profiler.trace_analysis.phases import OPTIMIZER
from training_profiler.trace_analysis.rules.registry import RULES, share_of_steps
from training_profiler.units import NS_PER_MS, NS_PER_S

TENSOR_CORES_SINCE: Final = 70  # compute capability of Volta


@RULES.rule("small-kernels", threshold=0.50, saving=Saving.UNKNOWN)
def small_kernels(analysis: Analysis, threshold: float) -> Finding | None:
    """Kernels of which over half take less than 10 us, where these are over 5 % of kernel time."""
    kernels = analysis.kernels
    if not kernels.count or kernels.short_share is None:
        return None
    part = kernels.short_count / kernels.count
    if part <= threshold or kernels.short_share < 0.05:
        return None
    return Finding(
        "small-kernels",
        f"{part:.0%} of {kernels.count} kernels take under 10 us, together {kernels.short_share:.1%} of kernel time",
        {"part": part, "threshold": threshold, "share_of_kernel_time": kernels.short_share},
        0.0,
        "torch.compile fuses them; foreach or fused optimizers; larger batches",
    )


@RULES.rule("frequent-copies", threshold=0.10)
def frequent_copies(analysis: Analysis, threshold: float) -> Finding | None:
    """`aten::copy_` and `aten::to`, of whose kernels and copies over 10 % of the device's busy time is made."""
    rows = [one for one in analysis.operators if one.name in ("aten::copy_", "aten::_to_copy")]
    ns = max((one.device_total_ns for one in rows), default=0)
    busy_ns = analysis.device.busy.total_ns
    if not busy_ns or ns / busy_ns <= threshold:
        return None
    calls = max(one.calls for one in rows)
    return Finding(
        "frequent-copies",
        f"{calls} copies and conversions of tensors take {ns / busy_ns:.1%} of the device's busy time",
        {"share_of_busy": ns / busy_ns, "threshold": threshold, "calls": calls},
        ns / NS_PER_S,
        "make tensors on the device and in the type they are used in; autocast once around the forward pass; "
        "channels_last throughout",
    )


@RULES.rule("no-tensor-cores", threshold=0.20)
def no_tensor_cores(analysis: Analysis, threshold: float) -> Finding | None:
    """Matrix products and convolutions, over 20 % of kernel time, on a device that has tensor cores and uses none."""
    kernels = analysis.kernels
    if not kernels.total_ns or analysis.compute_capability is None or analysis.compute_capability < TENSOR_CORES_SINCE:
        return None
    dense_ns = sum(kernels.by_kind_ns.get(kind, 0) for kind in (kernel_names.MATMUL, kernel_names.CONVOLUTION))
    share = dense_ns / kernels.total_ns
    if share <= threshold or kernels.tensor_core_share:
        return None
    return Finding(
        "no-tensor-cores",
        f"no kernel uses tensor cores, and {share:.0%} of kernel time are matrix products and convolutions",
        {"share_of_kernel_time": share, "threshold": threshold, "compute_capability": analysis.compute_capability},
        dense_ns / 2 / NS_PER_S,  # twice as fast is little for tensor cores
        'torch.autocast("cuda", torch.bfloat16), or float16 with GradScaler before Ampere; from Ampere on at least '
        'torch.set_float32_matmul_precision("high"); sizes in multiples of 8',
    )


@RULES.rule("math-attention", threshold=0.0)
def math_attention(analysis: Analysis, threshold: float) -> Finding | None:
    """Attention step by step, where a flash kernel would do."""
    rows = [one for one in analysis.operators if one.name == "aten::_scaled_dot_product_attention_math"]
    if not uses_math_attention(analysis) or analysis.kernels.flash_ns or not analysis.has_gpu:
        return None
    ns = sum(one.device_total_ns for one in rows)
    return Finding(
        "math-attention",
        f"attention runs as plain matrix products and softmax ({ns / NS_PER_MS:.1f} ms on the device)",
        {"calls": sum(one.calls for one in rows), "threshold": threshold},
        ns / 2 / NS_PER_S,
        "half precision inputs, a head size of up to 256 and no dense mask let "
        "torch.nn.functional.scaled_dot_product_attention take its flash kernel",
    )


@RULES.rule("single-tensor-optimizer", threshold=100)
def single_tensor_optimizer(analysis: Analysis, threshold: float) -> Finding | None:
    """An optimizer that launches over 100 kernels a step, most of which update one tensor each."""
    steps = len(analysis.steps)
    if not steps or not analysis.phases.optimizer_kernels:
        return None
    a_step = analysis.phases.optimizer_kernels / steps
    if a_step <= threshold or analysis.phases.multi_tensor_kernels > analysis.phases.optimizer_kernels / 2:
        return None
    ns = 0 if analysis.phases.times_ns is None else analysis.phases.times_ns[OPTIMIZER]
    return Finding(
        "single-tensor-optimizer",
        f"the optimizer launches {a_step:.0f} kernels a step, tensor by tensor",
        {"kernels_a_step": a_step, "threshold": threshold},
        ns / 2 / NS_PER_S,
        "fused=True, or foreach=True, in the optimizer",
    )


@RULES.rule("exposed-communication", threshold=0.10)
def exposed_communication(analysis: Analysis, threshold: float) -> Finding | None:
    """Communication that no compute hides, over 10 % of step time."""
    ns = sum(step.exposed_communication_ns for step in analysis.steps)
    share = share_of_steps(analysis, ns)
    if share is None or share <= threshold or not analysis.has_gpu:
        return None
    total_ns = analysis.device.communication.total_ns
    hidden = 1 - analysis.exposed_communication_ns / total_ns if total_ns else 0.0
    return Finding(
        "exposed-communication",
        f"{share:.1%} of step time is communication that no compute hides ({hidden:.0%} of it is hidden)",
        {"share_of_step": share, "threshold": threshold, "hidden": hidden},
        ns / NS_PER_S,
        "look for a late rank first (over several ranks' traces: waiting against transfer); then larger DDP buckets, "
        "gradient accumulation with no_sync(), or prefetching in FSDP",
    )
