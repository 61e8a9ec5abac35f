"""How much training gets done in a second."""

from training_profiler.snapshot import Throughput
from training_profiler.statistics.peaks import peak_of
from training_profiler.statistics.summary import warmup_steps
from training_profiler.statistics.totals import Totals
from training_profiler.units import FLOPS_PER_TFLOP, NS_PER_S


def throughput(totals: Totals, warmup_told: int | None) -> Throughput | None:
    """Return the rates of the stretch; None without steps after warm-up.

    Batches, samples and FLOPs are per step as on average over the stretch, times steps a second after warm-up.
    """
    steps = totals.steps
    spread = steps.undisturbed(0 if totals.first_step else warmup_steps(totals, warmup_told))
    if spread is None or not spread.total_ns:
        return None
    steps_per_s = spread.count * NS_PER_S / spread.total_ns
    counted = totals.flops
    flops = counted.flops if counted is not None else None
    tflops = None if flops is None else flops * steps_per_s / FLOPS_PER_TFLOP
    peak = None if counted is None else peak_of(counted.device, counted.dtype)
    return Throughput(
        steps_per_s=steps_per_s,
        batches_per_s=None if not totals.batches else totals.batches / steps.count * steps_per_s,
        samples_per_s=None if not totals.samples else totals.samples / steps.count * steps_per_s,
        flops_per_step=flops,
        dtype="" if counted is None else counted.dtype,
        device="" if counted is None else counted.device,
        attention="" if counted is None else counted.attention,
        tflops=tflops,
        peak_tflops=None if peak is None else peak[0],
        peak_source="" if peak is None else peak[1],
        mfu=None if peak is None or tflops is None else tflops / peak[0],
    )
