"""Half precision on a CPU that is faster in float32."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.program import CpuSpeed, ProgramFacts
from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput
from training_profiler.tables.peaks import peak_of

SLOW = CpuSpeed("bfloat16", 2.0, 3e-6, 80.0)


def run_with(cpu: CpuSpeed, dtype: str = "bfloat16", flops: float = 4e8, autocast: str = "bfloat16") -> Snapshot:
    """Return 100 steps of 100 ms, 90 of them in forward and backward passes."""
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.5})
    rates = Throughput(10.0, flops_per_step=flops, dtype=dtype)
    return replace(run, program=ProgramFacts(cpu=cpu, autocast=autocast), throughput=rates, wall_s=10.0)


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "slow-precision"), None)


def test_a_quarter_of_the_speed_in_float32_is_what_is_expected() -> None:
    finding = found(run_with(SLOW))
    assert finding is not None
    assert finding.message == (
        "The model computes in bfloat16, in which this CPU does 2.00 GFLOP/s; in float32 it does 80.0"
    )
    assert finding.potential_saving_s == pytest.approx(9.0 - 100 * 4e8 / 20e9)
    assert finding.fix == "Train in float32 on this CPU: without torch.autocast"
    assert finding.losses == "differ, as they are rounded less"
    assert "forward-dominates" not in [each.code for each in diagnose(run_with(SLOW))]


def test_with_parameters_in_half_precision_the_model_is_converted() -> None:
    finding = found(run_with(SLOW, autocast=""))
    assert finding is not None
    assert finding.fix == "Train in float32 on this CPU: model.float(), and its data"


def test_without_counted_operations_the_ratio_of_the_products_is_the_saving() -> None:
    finding = found(run_with(SLOW, flops=0.0))
    assert finding is not None
    assert finding.potential_saving_s == pytest.approx(9.0 * (1 - 2 / 80))


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_with(SLOW._replace(float32_gflops=3.9)), id="not twice as fast"),
        pytest.param(run_with(SLOW._replace(gflops=160.0)), id="units for it"),
        pytest.param(run_with(SLOW._replace(float32_gflops=0.0)), id="not measured"),
        pytest.param(run_with(CpuSpeed("float32", 80.0, 3e-6), dtype="float32"), id="float32"),
        pytest.param(run_with(CpuSpeed("float32", 80.0, 3e-6)), id="another type was measured"),
        pytest.param(run_with(SLOW, flops=1.7e9), id="as much as float32 takes"),
        pytest.param(replace(run_with(SLOW), program=ProgramFacts(autocast="bfloat16")), id="on an accelerator"),
    ],
)
def test_silent_where_float32_may_not_be_faster(run: Snapshot) -> None:
    assert found(run) is None


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


def unused_cores(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "full-precision"), None)


def test_float32_on_a_device_with_tensor_cores() -> None:
    finding = unused_cores(on_gpu())
    assert finding is not None
    assert finding.message == (
        "The model computes in float32, at 40.1 of at most 66.9 TFLOP/s; in bfloat16 this device does up to 989"
    )
    assert finding.potential_saving_s == pytest.approx(0.6 * (1 - 66.9 / 989.4) * 10.0)
    assert finding.fix.startswith('Call torch.set_float32_matmul_precision("high") for tf32, or use torch.autocast(')


def test_tf32_saves_half_of_the_arithmetic() -> None:
    finding = unused_cores(on_gpu("tf32", 0.5))
    assert finding is not None
    assert finding.potential_saving_s == pytest.approx(2.5)
    assert finding.fix.startswith("Use torch.autocast(")


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(on_gpu(autocast="bfloat16"), id="autocast"),
        pytest.param(on_gpu("bfloat16"), id="parameters in half precision"),
        pytest.param(on_gpu(busy=0.6), id="idle device"),
        pytest.param(on_gpu(busy=None), id="unknown utilization"),
        pytest.param(on_gpu(mfu=0.1), id="little arithmetic"),
        pytest.param(on_gpu("tf32", 0.19), id="little arithmetic in tf32"),
        pytest.param(on_gpu(device="NVIDIA Unheard-of"), id="unknown device"),
        pytest.param(on_gpu(device="Tesla T4"), id="no bfloat16"),
    ],
)
def test_precision_is_left_alone(run: Snapshot) -> None:
    assert unused_cores(run) is None
