"""Rules about the data type of the arithmetic: too slow on this CPU, or slower than this accelerator can."""

from typing import Final

from training_profiler.base.units import three_digits
from training_profiler.diagnosis.compute_fixes import HALF, busy_part
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.peaks import peak_of

SLOW_PRECISION: Final = "slow-precision"
SLOWER: Final = 2.0  # times float32; less may be other work of the machine
USUAL_PART: Final = 0.25  # of the speed of matrix products: what small layers reach in float32

FULL_PRECISION: Final = "full-precision"
SINGLE: Final = ("float32", "tf32")
BFLOAT16: Final = "bfloat16"
FASTER: Final = 2.0  # the peak in bfloat16 over that of what the model computes in


@RULES.rule(SLOW_PRECISION, threshold=0.10)  # of step time
def slow_precision(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a model that computes in half precision on a CPU whose matrix products take twice the time in it, or more.

    The saving assumes a quarter of the CPU's speed in float32.
    """
    rates, cpu, step = snapshot.throughput, snapshot.program.cpu, snapshot.step
    if rates is None or cpu is None or step is None or not has_enough_steps(snapshot) or rates.dtype not in HALF:
        return None
    if cpu.dtype != rates.dtype or not cpu.gflops or cpu.float32_gflops < SLOWER * cpu.gflops or not step.settled_s:
        return None
    computing_s = snapshot.computing_s()
    flops = (rates.flops_per_step or 0.0) * step.settled_count
    after_s = max(computing_s * cpu.gflops / cpu.float32_gflops, flops / (USUAL_PART * cpu.float32_gflops * 1e9))
    potential_saving_s = computing_s - after_s
    share = potential_saving_s / step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    change = "without torch.autocast" if snapshot.program.autocast else "model.float(), and its data"
    return Finding(
        code=SLOW_PRECISION,
        message=f"The model computes in {cpu.dtype}, in which this CPU does {three_digits(cpu.gflops)} GFLOP/s; in "
        f"float32 it does {three_digits(cpu.float32_gflops)}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "gflops": cpu.gflops,
            "float32_gflops": cpu.float32_gflops,
        },
        potential_saving_s=potential_saving_s,
        fix=f"Train in float32 on this CPU: {change}",
    )


@RULES.rule(FULL_PRECISION, threshold=0.10)  # of step time
def full_precision(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a busy accelerator that computes in float32 or tf32 what it does twice as fast in bfloat16, or faster.

    Only arithmetic at the accelerator's peak counts, which is less than it takes: the saving is a lower bound.
    """
    rates, step = snapshot.throughput, snapshot.step
    if rates is None or step is None or rates.mfu is None or rates.tflops is None or not has_enough_steps(snapshot):
        return None
    busy = busy_part(snapshot)
    peaks = peak_of(rates.device, rates.dtype), peak_of(rates.device, BFLOAT16)
    if busy is None or snapshot.program.autocast or rates.dtype not in SINGLE:
        return None
    if peaks[0] is None or peaks[1] is None or peaks[1][0] < FASTER * peaks[0][0]:
        return None
    share = min(1.0, rates.mfu) * (1 - peaks[0][0] / peaks[1][0])
    potential_saving_s = share * step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    tf32 = 'Call torch.set_float32_matmul_precision("high") for tf32, or use' if rates.dtype == "float32" else "Use"
    return Finding(
        code=FULL_PRECISION,
        message=f"The model computes in {rates.dtype}, at {three_digits(rates.tflops)} of at most "
        f"{three_digits(peaks[0][0])} TFLOP/s; in bfloat16 this device does up to {three_digits(peaks[1][0])}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "tflops": rates.tflops,
            "peak_tflops": peaks[0][0],
            "bfloat16_peak_tflops": peaks[1][0],
            "utilization": busy,
        },
        potential_saving_s=potential_saving_s,
        fix=f'{tf32} torch.autocast("cuda", torch.bfloat16) around the forward pass and the loss',
    )
