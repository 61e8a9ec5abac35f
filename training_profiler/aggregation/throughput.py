"""Training throughput per second of step time."""

from collections.abc import Mapping
from typing import Final

from training_profiler.aggregation.summary import warmup_steps
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import FLOPS_PER_TFLOP, NS_PER_S
from training_profiler.snapshot.snapshot import Throughput
from training_profiler.tables.peaks import peak_of

REUSED: Final = 0.5  # batches a step; with fewer, updates share batches, and how many samples each has is not known


def throughput(totals: Totals, names: Mapping[int, str], configured_warmup: int | None) -> Throughput | None:
    """Return the rates of the stretch; None without steps after warm-up.

    Batches, samples, tokens and FLOPs are per step as on average over the stretch, times steps a second after warm-up.
    """
    steps = totals.steps
    spread = steps.normal_spread(0 if totals.first_step else warmup_steps(totals, names, configured_warmup))
    if spread is None or not spread.total_ns:
        return None
    steps_per_s = spread.count * NS_PER_S / spread.total_ns
    counted = totals.flops
    flops = counted.flops if counted is not None else None
    tflops = None if flops is None else flops * steps_per_s / FLOPS_PER_TFLOP
    peak = None if counted is None else peak_of(counted.device, counted.dtype)
    learned = None if totals.batches and totals.batches <= REUSED * steps.count else totals.samples
    return Throughput(
        steps_per_s=steps_per_s,
        batches_per_s=None if not totals.batches else totals.batches / steps.count * steps_per_s,
        samples_per_s=None if not learned else learned / steps.count * steps_per_s,
        tokens_per_s=None if not totals.tokens else totals.tokens / steps.count * steps_per_s,
        flops_per_step=flops,
        dtype="" if counted is None else counted.dtype,
        device="" if counted is None else counted.device,
        attention="" if counted is None else counted.attention,
        tflops=tflops,
        peak_tflops=None if peak is None else peak[0],
        peak_source="" if peak is None else peak[1],
        mfu=None if peak is None or tflops is None else tflops / peak[0],
    )
