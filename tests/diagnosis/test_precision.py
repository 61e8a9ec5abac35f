"""Half precision on a CPU that is faster in float32."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.program import CpuSpeed, ProgramFacts
from training_profiler.snapshot.snapshot import Snapshot, Throughput

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
