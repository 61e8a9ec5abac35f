"""What to change, from one trace: a function a rule, its threshold beside it; worth in ns of the recorded steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from training_profiler.trace import names
from training_profiler.trace.analysis import Analysis
from training_profiler.trace.checks import data_share, phase_share, uses_math_attention
from training_profiler.trace.gaps import DATA_LOADER, LAUNCH_BOUND, PYTHON
from training_profiler.trace.phases import BACKWARD, FORWARD, OPTIMIZER

NS_PER_MS: Final = 1e6
TENSOR_CORES_SINCE: Final = 70  # compute capability of Volta


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One finding, the figures behind it, and what to do; ``worth_ms`` of all recorded steps, None where not known."""

    code: str
    finding: str
    evidence: Mapping[str, float | int | str]
    worth_ms: float | None
    remedy: str


Find = Callable[[Analysis, float], Recommendation | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its threshold."""

    code: str
    threshold: float
    find: Find


RULES: Final[list[Rule]] = []


def _rule(code: str, threshold: float) -> Callable[[Find], Find]:
    def note(find: Find) -> Find:
        RULES.append(Rule(code, threshold, find))
        return find

    return note


def recommendations(found: Analysis) -> list[Recommendation]:
    """Return what is worth changing, the most valuable first; what has no known worth comes last."""
    told = [one for rule in RULES if (one := rule.find(found, rule.threshold)) is not None]
    return sorted(told, key=lambda one: -1.0 if one.worth_ms is None else -one.worth_ms)


def _share(found: Analysis, ns: int) -> float | None:
    return ns / found.in_steps_ns if found.in_steps_ns else None


def _gap_ns(found: Analysis, *causes: str) -> int:
    """Return the length of the gaps of these causes that begin within steps."""
    return sum(
        gap.length_ns
        for gap, (_, _, step) in zip(found.gaps, found.gap_places, strict=True)
        if gap.cause in causes and step
    )


@_rule("data-loading-bound", 0.15)
def data_loading(found: Analysis, threshold: float) -> Recommendation | None:
    """Steps that wait for batches for 15 % of their time or more; names a loader that works in the training's own."""
    share = data_share(found)
    if share is None or share < threshold:
        return None
    is_synchronous = any("_SingleProcessDataLoaderIter" in one.name for one in found.operators)
    how = " by a DataLoader without workers" if is_synchronous else ""
    more = "num_workers=0 loads in the training's own process: " if is_synchronous else ""
    idle_ns = _gap_ns(found, DATA_LOADER) if found.has_gpu else found.data_loading.total_ns
    return Recommendation(
        "data-loading-bound",
        f"{share:.1%} of step time is waited for batches{how}",
        {"share_of_step": share, "threshold": threshold, "waits": found.data_loading.count},
        idle_ns / NS_PER_MS,
        f"{more}raise DataLoader(num_workers=...), then pin_memory=True and persistent_workers=True",
    )


@_rule("gpu-idle", 0.80)
def idle(found: Analysis, threshold: float) -> Recommendation | None:
    """A device that works for under 80 % of the steps; says what it waits for."""
    used = found.utilization_in_steps
    if used is None or used >= threshold:
        return None
    idle_ns = sum(step.idle_ns for step in found.steps)
    causes: dict[str, int] = {}
    for gap in found.gaps:
        causes[gap.cause] = causes.get(gap.cause, 0) + gap.length_ns
    main = max(causes, key=lambda cause: causes[cause], default="")
    how_bad = "serious" if used < 0.5 else "likely bound by the CPU" if used < 0.7 else "worth a look"
    return Recommendation(
        "gpu-idle",
        f"the device works for {used:.1%} of the steps ({how_bad})" + (f"; most gaps: {main}" if main else ""),
        {"utilization": used, "threshold": threshold, "idle_ms": idle_ns / NS_PER_MS, "main_cause": main},
        None,  # what the other rules name
        "see the gaps: what they are caused by is named there, and below",
    )


@_rule("launch-bound", 0.10)
def launch_bound(found: Analysis, threshold: float) -> Recommendation | None:
    """Steps of which the device spends over 10 % waiting for the host to launch its next kernel."""
    ns = _gap_ns(found, LAUNCH_BOUND, PYTHON)
    share = _share(found, ns) if found.has_gpu else None
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "launch-bound",
        f"{share:.1%} of step time the device waits for the host to launch work "
        f"({found.kernels.short_count} of {found.kernels.count} kernels take under 10 us)",
        {"share_of_step": share, "threshold": threshold, "short_kernels": found.kernels.short_count},
        ns / NS_PER_MS,
        'torch.compile(mode="reduce-overhead") or CUDA graphs; larger batches; fused optimizer and operators',
    )


@_rule("small-kernels", 0.50)
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


@_rule("synchronizing-items", 0.01)
def items(found: Analysis, threshold: float) -> Recommendation | None:
    """`.item()`, `.cpu()` or printing within steps, for which the host waits over 1 % of step time."""
    share = _share(found, found.items.total_ns)
    if share is None or share <= threshold or not found.items.count:
        return None
    return Recommendation(
        "synchronizing-items",
        f"{found.items.count} calls of .item() take {share:.1%} of step time: the host waits for the device there",
        {"share_of_step": share, "threshold": threshold, "calls": found.items.count},
        found.items.total_ns / NS_PER_MS,
        "keep the figure on the device (.detach()) and read it every n-th step",
    )


@_rule("frequent-copies", 0.10)
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


@_rule("pageable-copies", 0.01)
def pageable(found: Analysis, threshold: float) -> Recommendation | None:
    """Copies to the device from memory that is not pinned, over 1 % of step time."""
    rows = [one for one in found.copies if "Pageable -> Device" in one.name]
    ns = sum(one.total_ns for one in rows)
    share = _share(found, ns)
    if share is None or share <= threshold:
        return None
    return Recommendation(
        "pageable-copies",
        f"{sum(one.count for one in rows)} copies from pageable memory take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold},
        ns / NS_PER_MS,
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
    )


@_rule("allocations", 0.01)
def allocations(found: Analysis, threshold: float) -> Recommendation | None:
    """`cudaMalloc` and `cudaFree` in steady state, over 1 % of step time: the allocator's cache does not hold."""
    ns = sum(one.total_ns for one in found.allocations)
    share = _share(found, ns)
    if share is None or share <= threshold:
        return None
    calls = sum(one.count for one in found.allocations)
    return Recommendation(
        "allocations",
        f"{calls} calls of cudaMalloc and cudaFree take {share:.1%} of step time",
        {"share_of_step": share, "threshold": threshold, "calls": calls},
        ns / NS_PER_MS,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no empty_cache() in the loop; constant shapes",
    )


@_rule("no-tensor-cores", 0.20)
def no_tensor_cores(found: Analysis, threshold: float) -> Recommendation | None:
    """Matrix products and convolutions, over 20 % of kernel time, on a device that has tensor cores and uses none."""
    kernels = found.kernels
    if not kernels.total_ns or found.compute_capability is None or found.compute_capability < TENSOR_CORES_SINCE:
        return None
    dense_ns = sum(kernels.by_kind_ns.get(kind, 0) for kind in (names.MATMUL, names.CONVOLUTION))
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


@_rule("math-attention", 0.0)
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


@_rule("single-tensor-optimizer", 100)
def single_tensor_optimizer(found: Analysis, threshold: float) -> Recommendation | None:
    """An optimizer that launches over 100 kernels a step, most of which update one tensor each."""
    steps = len(found.steps)
    if not steps or not found.optimizer_kernels:
        return None
    a_step = found.optimizer_kernels / steps
    if a_step <= threshold or found.multi_tensor_kernels > found.optimizer_kernels / 2:
        return None
    ns = 0 if found.phases_ns is None else found.phases_ns[OPTIMIZER]
    return Recommendation(
        "single-tensor-optimizer",
        f"the optimizer launches {a_step:.0f} kernels a step, tensor by tensor",
        {"kernels_a_step": a_step, "threshold": threshold},
        ns / 2 / NS_PER_MS,
        "fused=True, or foreach=True, in the optimizer",
    )


@_rule("exposed-communication", 0.10)
def exposed_communication(found: Analysis, threshold: float) -> Recommendation | None:
    """Communication that no compute hides, over 10 % of step time."""
    ns = sum(step.exposed_communication_ns for step in found.steps)
    share = _share(found, ns)
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


@_rule("step-time-varies", 0.10)
def varies(found: Analysis, threshold: float) -> Recommendation | None:
    """Steps whose length varies by over 10 %."""
    variation = found.step_variation
    if variation is None or variation <= threshold:
        return None
    longest = max(found.steps, key=lambda step: step.wall_ns)
    return Recommendation(
        "step-time-varies",
        f"step time varies by {variation:.1%} (longest: {longest.name}, {longest.wall_ns / NS_PER_MS:.1f} ms)",
        {"variation": variation, "threshold": threshold, "steps": len(found.steps)},
        None,
        "compare the gaps of the longest step with the others': data, shapes that change, allocations",
    )


@_rule("memory-grows", 0.0)
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
        f"({rise / 2**20:.1f} MiB over {len(one.step_end_bytes) - 1} steps)",
        {"bytes": rise, "threshold": threshold, "device": one.device},
        None,
        "tensors are kept with their graph: .detach() or .item() what is collected",
    )


@_rule("fragmentation", 0.20)
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


@_rule("backward-slow", 3.0)
def backward_slow(found: Analysis, threshold: float) -> Recommendation | None:
    """A backward pass of over three forward passes, on the device."""
    phases = found.phases_ns
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


@_rule("optimizer-heavy", 0.15)
def optimizer_heavy(found: Analysis, threshold: float) -> Recommendation | None:
    """An update that takes the device over 15 % of step time."""
    share = phase_share(found, OPTIMIZER)
    if share is None or share <= threshold or found.phases_ns is None:
        return None
    return Recommendation(
        "optimizer-heavy",
        f"the optimizer takes {share:.1%} of step time on the device",
        {"share_of_step": share, "threshold": threshold},
        found.phases_ns[OPTIMIZER] / 2 / NS_PER_MS,
        "fused=True or foreach=True in the optimizer; accumulate gradients over several batches",
    )
