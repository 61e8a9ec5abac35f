import pytest

from tests.support.recording import FakeRun
from training_profiler.model.step_flops import StepFlops
from training_profiler.snapshot.snapshot import Throughput

A100 = "NVIDIA A100-SXM4-80GB"


def run_of(steps, step_s=0.5, batches=None, samples=None, flops=None, **options):
    run = FakeRun(**options)
    for _ in range(steps):
        run.step(forward_pass=step_s)
    run.drain()
    totals = run.accumulator.totals
    totals.batches, totals.samples, totals.flops = batches, samples, flops
    return run


def test_steps_alone():
    assert run_of(20).snapshot().throughput == Throughput(steps_per_s=2.0)


def test_without_steps_there_is_none():
    assert FakeRun().snapshot().throughput is None


def test_batches_and_samples_are_per_step():
    rates = run_of(20, batches=80, samples=2560).snapshot().throughput
    assert (rates.steps_per_s, rates.batches_per_s, rates.samples_per_s) == (2.0, 8.0, 256.0)


def test_samples_are_unknown_where_several_updates_share_a_batch():
    rates = run_of(20, batches=10, samples=320).snapshot().throughput
    assert (rates.batches_per_s, rates.samples_per_s) == (1.0, None)
    assert run_of(20, batches=19, samples=320).snapshot().throughput.samples_per_s == 32.0


def test_tokens_are_those_that_a_trainer_counts():
    run = run_of(20)
    assert run.snapshot().throughput.tokens_per_s is None
    run.accumulator.totals.tokens = 20_000
    assert run.snapshot().throughput.tokens_per_s == 2000.0


def test_warmup_does_not_lower_throughput():
    run = FakeRun(warmup=2)
    run.step(forward_pass=50)
    run.step(forward_pass=50)
    for _ in range(8):
        run.step(forward_pass=0.25)
    run.drain()
    run.accumulator.totals.batches = 10
    rates = run.snapshot().throughput
    assert (rates.steps_per_s, rates.batches_per_s) == (4.0, 4.0)


def test_an_interval_has_rates_of_its_own():
    run = run_of(10, flops=StepFlops(10**12, "float32", ""))
    run.flush()
    run.sums.new_interval()
    for _ in range(10):
        run.step(forward_pass=0.25)
    assert run.snapshot(of_interval=True).throughput == Throughput(
        4.0, flops_per_step=10**12, dtype="float32", tflops=4.0
    )


def test_unknown_samples_stay_unknown():
    run = run_of(10, batches=10, samples=100)
    run.flush()
    run.step(forward_pass=0.5)
    run.drain()
    run.accumulator.totals.batches = 1
    rates = run.snapshot().throughput
    assert (rates.batches_per_s, rates.samples_per_s) == (2.0, None)


def test_utilization_uses_the_devices_peak_for_the_dtype():
    rates = run_of(10, flops=StepFlops(39 * 10**12, "bfloat16", A100)).snapshot().throughput
    assert rates.tflops == 78.0
    assert (rates.peak_tflops, rates.peak_source) == (312.0, "NVIDIA A100 data sheet")
    assert rates.mfu == pytest.approx(0.25)


def test_an_unknown_device_has_no_utilization():
    rates = run_of(10, flops=StepFlops(10**12, "float32", "Some other accelerator")).snapshot().throughput
    assert rates.tflops == 2.0
    assert (rates.peak_tflops, rates.mfu) == (None, None)
