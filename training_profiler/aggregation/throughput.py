"""Training throughput per second of step time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from training_profiler.aggregation.summary import warmup_steps
from training_profiler.aggregation.totals import Totals
from training_profiler.snapshot.snapshot import Throughput
from training_profiler.units import FLOPS_PER_TFLOP, NS_PER_S


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense peak rates of one accelerator, without sparsity."""

    words: tuple[str, ...]  # all of them occur in the device's name, as torch reports it
    tflops: Mapping[str, float]  # by dtype, in 1e12 per second
    source: str


def _tensor_cores(half: float, tf32: float | None, float32: float, float64: float | None = None) -> dict[str, float]:
    rates = {"float16": half, "bfloat16": half, "tf32": tf32, "float32": float32, "float64": float64}
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


_HOPPER: Final = {**_tensor_cores(989.4, 494.7, 66.9, 66.9), "float8_e4m3fn": 1978.9, "float8_e5m2": 1978.9}
_HOPPER_PCIE: Final = {**_tensor_cores(756.0, 378.0, 51.0, 51.0), "float8_e4m3fn": 1513.0, "float8_e5m2": 1513.0}
# Half of the printed figure, which is with sparsity according to its footnote.
_HOPPER_NVL: Final = {**_tensor_cores(835.5, 417.5, 60.0, 60.0), "float8_e4m3fn": 1670.5, "float8_e5m2": 1670.5}

# Words in the names of variants whose peak rate the name does not determine.
ANOTHER: Final = ("mig", "laptop", "ti", "d", "max", "mi250")

# The first entry whose words all occur in the name applies.
PEAKS: Final = (
    Peak(
        ("B200",),
        {**_tensor_cores(2250.0, 1125.0, 75.0, 37.0), "float8_e4m3fn": 4500.0, "float8_e5m2": 4500.0},
        "NVIDIA Blackwell (HGX B200) data sheet",
    ),
    Peak(("H200", "NVL"), _HOPPER_NVL, "NVIDIA H200 data sheet"),
    Peak(("H200",), _HOPPER, "NVIDIA H200 data sheet"),
    Peak(("H100", "NVL"), _HOPPER_NVL, "NVIDIA H100 data sheet"),
    Peak(("H100", "PCIe"), _HOPPER_PCIE, "NVIDIA H100 data sheet"),
    Peak(("H100",), _HOPPER, "NVIDIA H100 data sheet"),
    Peak(("A100",), _tensor_cores(312.0, 156.0, 19.5, 19.5), "NVIDIA A100 data sheet"),
    Peak(("A10",), _tensor_cores(125.0, 62.5, 31.2), "NVIDIA A10 data sheet"),
    Peak(("L4",), _tensor_cores(121.0, 60.0, 30.3), "NVIDIA L4 data sheet"),
    Peak(("T4",), {"float16": 65.0, "float32": 8.1}, "NVIDIA T4 data sheet"),
    Peak(
        ("V100", "SXM2"),
        {"float16": 125.0, "float32": 15.7, "float64": 7.8},
        "NVIDIA V100 data sheet",
    ),
    Peak(("V100", "PCIE"), {"float16": 112.0, "float32": 14.0, "float64": 7.0}, "NVIDIA V100 data sheet"),
    # With float32 accumulation, as in torch; that is half the printed rate.
    Peak(("RTX", "4090"), _tensor_cores(165.2, 82.6, 82.6), "NVIDIA Ada GPU architecture white paper"),
    Peak(("RTX", "3090"), _tensor_cores(71.0, 35.6, 35.6), "NVIDIA Ampere GA102 GPU architecture white paper"),
    # torch reports each of the two dies as one device.
    Peak(("MI250X",), {"float16": 191.5, "bfloat16": 191.5, "float32": 47.9, "float64": 47.9}, "AMD MI250X data sheet"),
    Peak(
        ("MI300X",),
        {"float16": 1307.4, "bfloat16": 1307.4, "tf32": 653.7, "float32": 163.4, "float64": 163.4},
        "AMD MI300X data sheet",
    ),
)


def peak_of(device: str, dtype: str) -> tuple[float, str] | None:
    """Return the dense peak of the named device in 1e12 per second, and its source; None if unknown."""
    words = device.replace("-", " ").replace("_", " ").casefold().split()
    if any(word in ANOTHER for word in words):
        return None
    for peak in PEAKS:
        if all(word.casefold() in words for word in peak.words):
            rate = peak.tflops.get(dtype)
            return None if rate is None else (rate, peak.source)
    return None


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
    return Throughput(
        steps_per_s=steps_per_s,
        batches_per_s=None if not totals.batches else totals.batches / steps.count * steps_per_s,
        samples_per_s=None if not totals.samples else totals.samples / steps.count * steps_per_s,
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
