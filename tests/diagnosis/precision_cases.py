"""Half precision on a CPU that is faster in float32."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.base.peaks import peak_of
from training_profiler.model.program import CpuSpeed, ProgramFacts
from training_profiler.model.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput

SLOW = CpuSpeed("bfloat16", 2.0, 3e-6, 80.0)


def run_with(cpu: CpuSpeed, dtype: str = "bfloat16", flops: float = 4e8, autocast: str = "bfloat16") -> Snapshot:
    """Return 100 steps of 100 ms, 90 of them in forward and backward passes."""
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.5})
    rates = Throughput(10.0, flops_per_step=flops, dtype=dtype)
    return replace(run, program=ProgramFacts(cpu=cpu, autocast=autocast), throughput=rates, wall_s=10.0)


def on_gpu(
    dtype: str = "float32", mfu: float = 0.6, busy: float | None = 0.97, device: str = "NVIDIA H200", **program: str
) -> Snapshot:
    """Return 100 steps of 100 ms on a GPU."""
    run = snapshot_of({"forward_pass": 0.3, "backward_pass": 0.6})
    peak = peak_of(device, dtype)
    tflops, most = (None, None) if peak is None else (mfu * peak[0], peak[0])
    share = None if peak is None else mfu
    rates = Throughput(
        10.0, flops_per_step=1e12, dtype=dtype, device=device, tflops=tflops, peak_tflops=most, mfu=share
    )
    gpu = GpuStats(0, device, loop_utilization=None if busy is None else Level(busy, 1.0, busy))
    return replace(
        run,
        program=ProgramFacts(**program),
        throughput=rates,
        machine=MachineStats(samples=9, gpus=(gpu,)),
        wall_s=10.0,
    )


NOT_HALF = CpuSpeed("float32", 80.0, 3e-6)
SAYS = {
    "slow-precision": {
        "a quarter of the speed in float32": run_with(SLOW),
        "parameters in half precision": run_with(SLOW, autocast=""),
        "the ratio of products, without counted operations": run_with(SLOW, flops=0.0),
        "just twice as fast": run_with(SLOW._replace(float32_gflops=4.0), flops=0.0),
    },
    "full-precision": {"float32": on_gpu(), "tf32": on_gpu("tf32", 0.5), "just over a tenth": on_gpu("tf32", 0.171)},
}
SILENT = {
    "slow-precision": {
        "not twice as fast": run_with(SLOW._replace(float32_gflops=3.9)),
        "units for it": run_with(SLOW._replace(gflops=160.0)),
        "not measured": run_with(SLOW._replace(float32_gflops=0.0)),
        "float32": run_with(NOT_HALF, dtype="float32"),
        "another type was measured": run_with(NOT_HALF),
        "as much as float32 takes": run_with(SLOW, flops=1.7e9),
        "on an accelerator": replace(run_with(SLOW), program=ProgramFacts(autocast="bfloat16")),
    },
    "full-precision": {
        "autocast": on_gpu(autocast="bfloat16"),
        "parameters in half precision": on_gpu("bfloat16"),
        "idle device": on_gpu(busy=0.6),
        "unknown utilization": on_gpu(busy=None),
        "little arithmetic": on_gpu(mfu=0.09),
        "little arithmetic in tf32": on_gpu("tf32", 0.169),
        "unknown device": on_gpu(device="NVIDIA Unheard-of"),
        "no bfloat16": on_gpu(device="Tesla T4"),
    },
}
