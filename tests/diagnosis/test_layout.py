"""Convolutions in NCHW on tensor cores that compute in NHWC."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.program import CompileFacts, ConvolutionFacts, OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput

FIRST = ConvolutionFacts(17, 0)
SGD = OptimizerFacts("SGD", 161, ("float32",), ("cuda",))


def run_with(
    convolutions: ConvolutionFacts | None = FIRST,
    dtype: str = "tf32",
    mfu: float | None = 0.11,
    busy: float | None = 0.98,
    device: str = "NVIDIA H200",
    optimizer: OptimizerFacts | None = SGD,
    **program: Any,
) -> Snapshot:
    """Return 100 steps of 100 ms on a GPU, 90 of them in forward and backward passes."""
    gpu = GpuStats(0, device, loop_utilization=None if busy is None else Level(busy, 1.0, busy))
    return replace(
        snapshot_of({"forward_pass": 0.3, "backward_pass": 0.6}),
        program=ProgramFacts(convolutions=convolutions, optimizer=optimizer, **program),
        throughput=Throughput(10.0, dtype=dtype, device=device, mfu=mfu),
        machine=MachineStats(samples=9, gpus=(gpu,)),
        wall_s=10.0,
    )


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "channels-first"), None)


def test_convolutions_in_nchw_are_converted() -> None:
    finding = found(run_with())
    assert finding is not None
    assert finding.message.startswith("17 convolutions get their tensors in NCHW order; tensor cores compute in NHWC")
    assert finding.potential_saving_s == pytest.approx(0.3 * 9.0)
    assert finding.fix == (
        "Call .to(memory_format=torch.channels_last) on the model, and on its inputs; then use torch.autocast, which "
        "brings more with it than before"
    )


def test_with_autocast_nothing_is_said_about_it() -> None:
    finding = found(run_with(dtype="bfloat16", autocast="bfloat16"))
    assert finding is not None
    assert "autocast" not in finding.fix


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_with(None), id="no convolutions"),
        pytest.param(run_with(ConvolutionFacts(1, 0)), id="one"),
        pytest.param(run_with(ConvolutionFacts(0, 17)), id="channels_last"),
        pytest.param(run_with(ConvolutionFacts(3, 14)), id="a part in channels_last"),
        pytest.param(run_with(FIRST._replace(inputs_last=True)), id="inputs in channels_last"),
        pytest.param(run_with(dtype="float32"), id="no tensor cores"),
        pytest.param(run_with(mfu=0.01), id="hardly any convolution"),
        pytest.param(run_with(mfu=None), id="unknown arithmetic"),
        pytest.param(run_with(busy=0.5), id="idle device"),
        pytest.param(run_with(busy=None), id="unknown utilization"),
        pytest.param(run_with(device="AMD Instinct MI300X"), id="another library"),
        pytest.param(run_with(optimizer=SGD._replace(devices=("cpu",))), id="on the CPU"),
        pytest.param(run_with(compiled=CompileFacts(1, 9.0)), id="torch.compile chooses the order itself"),
    ],
)
def test_the_order_is_left_alone(run: Snapshot) -> None:
    assert found(run) is None
