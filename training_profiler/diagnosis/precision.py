"""The rule about half precision on a CPU that computes faster in float32."""

from typing import Final

from training_profiler.diagnosis.compute_fixes import HALF
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import three_digits

SLOW_PRECISION: Final = "slow-precision"
SLOWER: Final = 2.0  # times float32; less may be other work of the machine
USUAL_PART: Final = 0.25  # of the speed of matrix products: what small layers reach in float32


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
