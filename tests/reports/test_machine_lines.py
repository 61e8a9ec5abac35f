from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.reports.machine import machine_lines
from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput

GIB = 2**30


def lines_of(throughput=None, machine=None):
    return machine_lines(Snapshot(throughput=throughput, machine=machine))


def level(value):
    return Level(value / 2, value, value / 4)


RATES = Throughput(
    21.34, 85.4, 681.2, flops_per_step=5e12, dtype="bfloat16", tflops=97.3, peak_tflops=312.0,
    peak_source="NVIDIA A100 data sheet", mfu=0.3119,
)  # fmt: skip
IN_CONTAINER = MachineStats(
    samples=9, cores=2.0, host_cores=8, cpu_process=level(3.6), cpu_container=level(3.8), cpu_host=level(1.0),
    ram_process_bytes=level(1.25 * GIB), ram_container_bytes=level(6 * GIB), ram_limit_bytes=24 * GIB,
    ram_host_bytes=level(64 * GIB), ram_host_total_bytes=256 * GIB,
)  # fmt: skip
H200 = GpuStats(
    0, "NVIDIA H200", 140 * GIB, level(12 * GIB), level(14 * GIB), level(15.5 * GIB), level(0.9), level(64.0),
    level(600.0), loop_utilization=level(0.9),
)  # fmt: skip


@pytest.mark.parametrize(
    ("throughput", "line"),
    [
        (
            RATES,
            "21.3 steps/s, 85.4 batches/s, 681 samples/s, 97.3 TFLOP/s in bfloat16 "
            "(MFU 31.2% of 312 TFLOP/s, NVIDIA A100 data sheet)",
        ),
        (Throughput(0.0521, 0.0521, 1.67), "0.0521 steps/s, 1.67 samples/s"),  # batches are steps
        (Throughput(2.0, tflops=0.0062, dtype="float32"), "2.00 steps/s, 6.20 GFLOP/s in float32"),
        (Throughput(2.0, tflops=4.61e-7, dtype="float32"), "2.00 steps/s, 0.461 MFLOP/s in float32"),
        (Throughput(2.0, tflops=4.61e-8, dtype="float32"), "2.00 steps/s, 46.1 kFLOP/s in float32"),
    ],
)
def test_throughput_has_the_figures_that_are_known(throughput, line):
    assert lines_of(throughput) == [f"Throughput: {line}"]


@pytest.mark.parametrize(
    ("machine", "lines"),
    [
        (None, []),
        (MachineStats(samples=3), []),
        (MachineStats(samples=9, cpu_wait=level(0.8)), ["Machine: CPU waiting for a CPU 40% of the time"]),
        (MachineStats(samples=9, cpu_wait=level(0.01)), []),  # shown from one percent on
        (MachineStats(samples=1, ram_process_bytes=level(GIB)), ["Machine: peak RAM 1.00 GiB in this process"]),
        (
            IN_CONTAINER,
            [
                "Machine: CPU 1.80 of 2 cores busy by this process, 1.90 by its container, host 50%; "
                "peak RAM 1.25 GiB in this process, container 25% of 24.0 GiB, host 25% of 256.0 GiB"
            ],
        ),
        (
            MachineStats(samples=1, gpus=(H200,)),
            [
                "GPU 0 (NVIDIA H200): peak memory of 140.0 GiB: 12.0 GiB allocated, 14.0 GiB reserved, 15.5 GiB used "
                "by all processes; busy 45% of the time; peak 64 degrees C; mean 300 W"
            ],
        ),
        (
            MachineStats(samples=1, gpus=(GpuStats(1, "mps", None, level(0.5 * GIB)),)),
            ["GPU 1 (mps): peak memory: 0.50 GiB allocated"],
        ),
    ],
)
def test_the_machine_has_the_figures_that_are_known(machine, lines):
    assert lines_of(machine=machine) == lines


@pytest.mark.parametrize(("wall_s", "text"), [(60.5, "2.00 steps/s"), (110.0, "2.00 steps/s (1.00 with time between)")])
def test_pace_of_the_whole_loop_stands_beside_that_of_its_steps(wall_s, text):
    run = snapshot_of({"backward_pass": 1.0}, before_s=10.0)
    run = replace(run, throughput=Throughput(2.0), wall_s=wall_s)
    assert machine_lines(run)[0] == f"Throughput: {text}"


def test_warm_up_is_not_time_between_steps():
    """On a GPU, three first steps may take as long as a hundred later ones."""
    run = snapshot_of({"backward_pass": 1.0}, before_s=10.0, warmup_count=3, warmup_s=6.0, settled_count=97)
    run = replace(run, throughput=Throughput(10.0), wall_s=26.0)
    assert machine_lines(run)[0] == "Throughput: 10.0 steps/s"
    assert machine_lines(replace(run, wall_s=35.4))[0] == "Throughput: 10.0 steps/s (5.00 with time between)"
