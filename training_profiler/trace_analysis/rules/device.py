"""Rules about what the device runs: kernels, precision, attention, the optimizer, communication."""

from typing import Final

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.checklist import uses_math_attention
from training_profiler.trace_analysis.phases import OPTIMIZER
from training_profiler.trace_analysis.rules.rule import NS_PER_MS, Recommendation, rule, share_of_steps

TENSOR_CORES_SINCE: Final = 70  # compute capability of Volta


@rule("small-kernels", 0.50)
def small_kernels(found: Analysis, threshold: float) -> Recommendation | None:
    """Kernels of which over half take less than 10 us, where these are over 5 % of kernel time."""
    kernels = found.kernels
    if not kernels.count or kernels.short_share is None:
        return None
    part = kernels.short_count / kernels.count
    if part <= threshold or kernels.short_share < 0.05:
        return None
    return Recommendation(
        "small-kernels",
        f"{part:.0%} of {kernels.count} kernels take under 10 us, together {kernels.short_share:.1%} of kernel time",
        {"part": part, "threshold": threshold, "share_of_kernel_time": kernels.short_share},
        None,
        "torch.compile fuses them; foreach or fused optimizers; larger batches",
    )


@rule("frequent-copies", 0.10)
def frequent_copies(found: Analysis, threshold: float) -> Recommendation | None:
    """`aten::copy_` and `aten::to`, of whose kernels and copies over 10 % of the device's busy time is made."""
    rows = [one for one in found.operators if one.name in ("aten::copy_", "aten::_to_copy")]
    ns = max((one.device_total_ns for one in rows), default=0)
    busy_ns = found.device.busy.total_ns
    if not busy_ns or ns / busy_ns <= threshold:
        return None
    calls = max(one.calls for one in rows)
    return Recommendation(
        "frequent-copies",
        f"{calls} copies and conversions of tensors take {ns / busy_ns:.1%} of the device's busy time",
        {"share_of_busy": ns / busy_ns, "threshold": threshold, "calls": calls},
        ns / NS_PER_MS,
        "make tensors on the device and in the type they are used in; autocast once around the forward pass; "
        "channels_last throughout",
    )


@rule("no-tensor-cores", 0.20)
def no_tensor_cores(found: Analysis, threshold: float) -> Recommendation | None:
    """Matrix products and convolutions, over 20 % of kernel time, on a device that has tensor cores and uses none."""
    kernels = found.kernels
    if not kernels.total_ns or found.compute_capability is None or found.compute_capability < TENSOR_CORES_SINCE:
        return None
    dense_ns = sum(kernels.by_kind_ns.get(kind, 0) for kind in (kernel_names.MATMUL, kernel_names.CONVOLUTION))
    share = dense_ns / kernels.total_ns
    if share <= threshold or kernels.tensor_core_share:
        return None
    return Recommendation(
        "no-tensor-cores",
        f"no kernel uses tensor cores, and {share:.0%} of kernel time are matrix products and convolutions",
        {"share_of_kernel_time": share, "threshold": threshold, "compute_capability": found.compute_capability},
        dense_ns / 2 / NS_PER_MS,  # twice as fast is little for tensor cores
        'torch.autocast("cuda", torch.bfloat16), or float16 with GradScaler before Ampere; from Ampere on at least '
        'torch.set_float32_matmul_precision("high"); sizes in multiples of 8',
    )


@rule("math-attention", 0.0)
def math_attention(found: Analysis, threshold: float) -> Recommendation | None:
    """Attention step by step, where a flash kernel would do."""
    rows = [one for one in found.operators if one.name == "aten::_scaled_dot_product_attention_math"]
    if not uses_math_attention(found) or found.kernels.flash_ns or not found.has_gpu:
        return None
    ns = sum(one.device_total_ns for one in rows)
    return Recommendation(
        "math-attention",
        f"attention runs as plain matrix products and softmax ({ns / NS_PER_MS:.1f} ms on the device)",
        {"calls": sum(one.calls for one in rows), "threshold": threshold},
        ns / 2 / NS_PER_MS,
        "half precision inputs, a head size of up to 256 and no dense mask let "
        "torch.nn.functional.scaled_dot_product_attention take its flash kernel",
    )


@rule("single-tensor-optimizer", 100)
def single_tensor_optimizer(found: Analysis, threshold: float) -> Recommendation | None:
    """An optimizer that launches over 100 kernels a step, most of which update one tensor each."""
    steps = len(found.steps)
    if not steps or not found.phases.optimizer_kernels:
        return None
    a_step = found.phases.optimizer_kernels / steps
    if a_step <= threshold or found.phases.multi_tensor_kernels > found.phases.optimizer_kernels / 2:
        return None
    ns = 0 if found.phases.times_ns is None else found.phases.times_ns[OPTIMIZER]
    return Recommendation(
        "single-tensor-optimizer",
        f"the optimizer launches {a_step:.0f} kernels a step, tensor by tensor",
        {"kernels_a_step": a_step, "threshold": threshold},
        ns / 2 / NS_PER_MS,
        "fused=True, or foreach=True, in the optimizer",
    )


@rule("exposed-communication", 0.10)
def exposed_communication(found: Analysis, threshold: float) -> Recommendation | None:
    """Communication that no compute hides, over 10 % of step time."""
    ns = sum(step.exposed_communication_ns for step in found.steps)
    share = share_of_steps(found, ns)
    if share is None or share <= threshold or not found.has_gpu:
        return None
    total_ns = found.device.communication.total_ns
    hidden = 1 - found.exposed_communication_ns / total_ns if total_ns else 0.0
    return Recommendation(
        "exposed-communication",
        f"{share:.1%} of step time is communication that no compute hides ({hidden:.0%} of it is hidden)",
        {"share_of_step": share, "threshold": threshold, "hidden": hidden},
        ns / NS_PER_MS,
        "look for a late rank first (over several ranks' traces: waiting against transfer); then larger DDP buckets, "
        "gradient accumulation with no_sync(), or prefetching in FSDP",
    )
