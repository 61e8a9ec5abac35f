"""Rules about the data type of the arithmetic, the order of its tensors, and what a busy device is limited by."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from training_profiler.base.backends import CUDA
from training_profiler.base.peaks import peak_of
from training_profiler.base.sections import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP
from training_profiler.base.units import bytes_text, three_digits
from training_profiler.diagnosis.compute_fixes import HALF, busy_part
from training_profiler.diagnosis.finding import Action, Change, Finding, Fix
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, Saving, cost_of_steps, found, has_enough_steps
from training_profiler.model.snapshot import GpuStats, Level, Snapshot

HIGH: Final = 'torch.set_float32_matmul_precision("high")'
MAKER: Final = "nvidia"  # cuDNN computes in NHWC; of other libraries nothing was measured
ATTAINED: Final = 0.85  # of the data sheet's rate; large products on an H200 reach 0.76, in tf32 0.69
SAMPLES_NEEDED: Final = 25  # of the system monitor, with five of the counters
LANE_BYTES_PER_S: Final = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # by PCIe generation, in each direction
SAVES: Final = 0.3  # of the passes: 29 % of a ResNet-50 in tf32 and 46 % of it with autocast, on an H200


@RULES.rule(
    "double-precision",
    threshold=0.10,  # of step time
    label="FLOAT64",
    claims=(FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP),
    saves=(0.6, 1.3),
    changes=(Change.SINGLE_FOR_DOUBLE,),
)
def double_precision(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a model that computes mostly in float64; None where its data type is unknown."""
    if snapshot.throughput is None or snapshot.throughput.dtype != "float64":
        return None
    computing_s = snapshot.computing_s() + (snapshot.total_of_step_s(OPTIMIZER_STEP) or 0.0)
    # Half of the bytes, and twice the numbers in each instruction.
    cost = cost_of_steps(snapshot, threshold, computing_s / 2)
    return cost.finding(
        "The model computes in float64, which takes twice the time of float32 or more",
        "If the results allow it, use float32: data from NumPy is float64 until .float(), and model.double() or "
        "torch.set_default_dtype make parameters so",
        computing_s=computing_s,
    )


@RULES.rule(
    "slow-precision",
    threshold=0.10,  # of step time
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.6, 1.2),
    changes=(Change.SINGLE_FOR_HALF,),
)
def slow_precision(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a model that computes in half precision on a CPU whose matrix products take twice the time in it, or more.

    The saving assumes a quarter of the CPU's speed in float32, and as much waiting for a CPU as there is.
    """
    rates, cpu, step = snapshot.throughput, snapshot.program.cpu, snapshot.step
    if rates is None or cpu is None or step is None or rates.dtype not in HALF:
        return None
    if cpu.dtype != rates.dtype or not cpu.gflops or cpu.float32_gflops < 2 * cpu.gflops:
        return None  # less may be other work of the machine
    computing_s = snapshot.computing_s()
    flops = (rates.flops_per_step or 0.0) * step.settled_count / max(0.01, 1 - cpu_loss(snapshot.machine).all)
    after_s = max(computing_s * cpu.gflops / cpu.float32_gflops, flops / (0.25 * cpu.float32_gflops * 1e9))
    cost = cost_of_steps(snapshot, threshold, computing_s - after_s)
    change = "without torch.autocast" if snapshot.program.autocast else "model.float(), and its data"
    return cost.finding(
        f"The model computes in {cpu.dtype}, in which this CPU does {three_digits(cpu.gflops)} GFLOP/s; in "
        f"float32 it does {three_digits(cpu.float32_gflops)}",
        f"Train in float32 on this CPU: {change}",
        gflops=cpu.gflops,
        float32_gflops=cpu.float32_gflops,
    )


@RULES.rule(
    "full-precision",
    threshold=0.10,  # of step time
    label="COMPUTE-BOUND",
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.8, 1.3),
    try_=("matmul_precision", "autocast"),
)
def full_precision(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a busy accelerator that computes in float32 or tf32 what it does twice as fast in bfloat16, or faster.

    Only arithmetic counts, at a rate that products hardly reach, so most changes save more.
    """
    rates, step = snapshot.throughput, snapshot.step
    if rates is None or step is None or rates.mfu is None or rates.tflops is None or not has_enough_steps(snapshot):
        return None
    busy = busy_part(snapshot)
    peaks = peak_of(rates.device, rates.dtype), peak_of(rates.device, "bfloat16")
    if busy is None or snapshot.program.autocast or rates.dtype not in ("float32", "tf32"):
        return None
    if peaks[0] is None or peaks[1] is None or peaks[1][0] < 2 * peaks[0][0]:
        return None
    share = min(1.0, (rates.hfu or rates.mfu) / ATTAINED) * (1 - peaks[0][0] / peaks[1][0])
    potential_saving_s = share * step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    autocast = Action('torch.autocast("cuda", torch.bfloat16) around forward pass and loss', (Change.AUTOCAST,))
    actions: tuple[Action, ...] = (autocast,)
    words = "Use"
    if rates.dtype == "float32":
        words = 'Call torch.set_float32_matmul_precision("high") for tf32, or use'
        tf32 = peak_of(rates.device, "tf32")
        part = (1 - peaks[0][0] / tf32[0]) / (1 - peaks[0][0] / peaks[1][0]) if tf32 else 1.0
        actions = (Action(HIGH, (Change.MATMUL_PRECISION,), part), autocast)
    return found(
        f"The model computes in {rates.dtype}, at {three_digits(rates.tflops)} of at most "
        f"{three_digits(peaks[0][0])} TFLOP/s; in bfloat16 this device does up to {three_digits(peaks[1][0])}",
        {
            "share_of_step": share,
            "threshold": threshold,
            "tflops": rates.tflops,
            "peak_tflops": peaks[0][0],
            "bfloat16_peak_tflops": peaks[1][0],
            "utilization": busy,
        },
        Fix(
            f'{words} torch.autocast("cuda", torch.bfloat16) around the forward pass and the loss',
            tuple(change for action in actions for change in action.changes),
            actions,
        ),
        saving_s=potential_saving_s,
    )


@RULES.rule(
    "channels-first",
    threshold=0.10,  # of step time
    label="COMPUTE-BOUND",
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.1, 1.6),
    try_=("channels_last", "autocast"),
)
def channels_first(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a busy NVIDIA GPU whose convolutions get NCHW tensors, which cuDNN converts to NHWC for tensor cores."""
    facts, optimizer = snapshot.program.convolutions, snapshot.program.optimizer
    rates = snapshot.throughput
    if facts is None or rates is None or optimizer is None:
        return None
    if facts.channels_first < 2 or facts.channels_last or facts.inputs_last or snapshot.program.compiled is not None:
        return None
    if optimizer.devices != (CUDA.kind,) or MAKER not in rates.device.casefold() or rates.dtype not in ("tf32", *HALF):
        return None
    if busy_part(snapshot) is None or (rates.mfu or 0.0) < 0.03:  # it hardly computes convolutions on tensor cores
        return None
    cost = cost_of_steps(snapshot, threshold, SAVES * snapshot.computing_s())
    is_half = rates.dtype in HALF
    also = "" if is_half else "; then use torch.autocast, which brings more with it than before"
    return cost.finding(
        f"{facts.channels_first} convolutions get their tensors in NCHW order; tensor cores compute in NHWC, "
        "so cuDNN converts them",
        Fix(
            f"Call .to(memory_format=torch.channels_last) on the model, and on its inputs{also}",
            (Change.CHANNELS_LAST,) if is_half else (Change.CHANNELS_LAST, Change.AUTOCAST),
        ),
        convolutions=facts.channels_first,
    )


class _Limit(NamedTuple):
    """What limits a device, which part of that is in use, in words, and what helps."""

    kind: str
    part: float
    message: str
    fix: Fix


def _mean(level: Level | None) -> float:
    return -1.0 if level is None else level.mean


def _link_limit(gpu: GpuStats) -> Iterator[_Limit]:
    lanes, generation = gpu.pcie_width, gpu.pcie_generation
    lane = None if generation is None else LANE_BYTES_PER_S.get(round(generation.max))
    if lane is None or lanes is None or gpu.pcie_rx_bytes_per_s is None:
        return
    part = gpu.pcie_rx_bytes_per_s.mean / (lane * lanes.max)
    message = (
        f"Copies to GPU {gpu.index} take {part:.0%} of what its PCIe link carries ({bytes_text(lane * lanes.max)}/s)"
    )
    fix = "Copy fewer bytes to the device: uint8 and ids as they are, to be converted there, and each tensor once"
    yield _Limit("pcie", part, message, Fix(fix, (Change.FEWER_COPIES,)))


def _work_limits(snapshot: Snapshot, gpu: GpuStats) -> Iterator[_Limit]:
    """Yield what limits a busy device, the surest first; a unit without a counter limits nothing."""
    program, rates = snapshot.program, snapshot.throughput
    sm, tensor, dram = _mean(gpu.sm_active), _mean(gpu.tensor_active), _mean(gpu.dram_active)
    dtype = "" if rates is None else rates.dtype
    known = f"SM active {sm:.0%}, tensor cores {tensor:.0%}, memory bandwidth {dram:.0%}"
    fuse = () if program.compiled is not None else (Action("torch.compile(model)", (Change.COMPILE,)),)
    cast = (Action('torch.autocast("cuda", torch.bfloat16)', (Change.AUTOCAST,)),)
    half = () if program.autocast or dtype in HALF else cast

    def fix(*actions: Action) -> Fix:
        text = "Use " + ", then ".join(action.text for action in actions)
        return Fix(text, tuple(change for action in actions for change in action.changes), actions)

    if dram > 2 * tensor >= 0 and (fuse or half):
        moves = f"GPU {gpu.index} moves tensors more than it computes ({known})"
        yield _Limit("memory", dram, moves, fix(*fuse, *half))
    if 0 <= tensor < 0.05 and dram < 0.5 and dtype in ("float32", "tf32", *HALF):
        high = (Action(HIGH, (Change.MATMUL_PRECISION,)),) if dtype == "float32" else ()
        if (high or half or fuse) and full_precision(snapshot, snapshot.thresholds) is None:
            idle = f"The tensor cores of GPU {gpu.index} are idle while it computes in {dtype} ({known})"
            yield _Limit("tensor cores", sm, idle, fix(*(high or half), *fuse))
    if 0 <= sm < 0.3 and dram < 0.3:
        small = f"Kernels are too small for GPU {gpu.index}: some run all the time, on {sm:.0%} of its processors"
        larger = (*fuse, Action("a larger batch", (Change.OTHER_BATCHES,)))
        yield _Limit("small kernels", 1 - sm, small, fix(*larger))


@RULES.rule("gpu-bound", 0.6, saving=Saving.UNKNOWN, label="GPU-BOUND", is_risk=True)  # of what a unit can do
def gpu_bound(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a device whose counters show one unit as its limit, where a change is left; None without counters.

    Memory bandwidth, idle tensor cores and small kernels are limits of a busy device alone.
    """
    machine = snapshot.machine
    if machine is None or machine.samples < SAMPLES_NEEDED or not has_enough_steps(snapshot):
        return None
    if machine.most_shared is not None and machine.most_shared[0] > 0.1:
        return None  # the counters are of all programs
    is_busy = busy_part(snapshot) is not None
    for gpu in machine.gpus:
        for limit in (*_link_limit(gpu), *(_work_limits(snapshot, gpu) if is_busy else ())):
            if limit.part > threshold:
                evidence = {"gpu": gpu.index, "limit": limit.kind, "part": limit.part, "threshold": threshold}
                return found(limit.message, evidence, limit.fix)
    return None
