from training_profiler.reports.machine import machine_lines
from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput

GIB = 2**30


def lines_of(throughput=None, machine=None):
    return machine_lines(Snapshot(throughput=throughput, machine=machine))


def level(value):
    return Level(value / 2, value, value / 4)


def test_nothing_known_is_no_line():
    assert lines_of() == []
    assert lines_of(machine=MachineStats(samples=3)) == []


def test_throughput_with_all_that_can_be_known():
    rates = Throughput(
        21.34, 85.4, 681.2, flops_per_step=5e12, dtype="bfloat16", tflops=97.3, peak_tflops=312.0,
        peak_source="NVIDIA A100 data sheet", mfu=0.3119,
    )  # fmt: skip
    assert lines_of(rates) == [
        "Throughput: 21.3 steps/s, 85.4 batches/s, 681 samples/s, 97.3 TFLOP/s in bfloat16 "
        "(MFU 31.2% of 312 TFLOP/s, NVIDIA A100 data sheet)"
    ]


def test_as_many_batches_as_steps_are_not_worth_a_word():
    assert lines_of(Throughput(0.0521, 0.0521, 1.67)) == ["Throughput: 0.0521 steps/s, 1.67 samples/s"]


def test_little_computing_is_in_smaller_units():
    assert lines_of(Throughput(2.0, tflops=0.0062, dtype="float32")) == [
        "Throughput: 2.00 steps/s, 6.20 GFLOP/s in float32"
    ]


def test_a_machine_with_a_container():
    machine = MachineStats(
        samples=9, cores=2.0, host_cores=8, cpu_process=level(3.6), cpu_container=level(3.8), cpu_host=level(1.0),
        ram_process_bytes=level(1.25 * GIB), ram_container_bytes=level(6 * GIB), ram_limit_bytes=24 * GIB,
        ram_host_bytes=level(64 * GIB), ram_host_total_bytes=256 * GIB,
    )  # fmt: skip
    assert lines_of(machine=machine) == [
        "Machine: CPU 1.80 of 2 cores busy by this process, 1.90 by its container, host 50%; "
        "RAM 1.25 GiB at most in this process, container 25% of 24.0 GiB, host 25% of 256.0 GiB"
    ]


def test_what_is_not_known_of_the_machine_is_left_out():
    assert lines_of(machine=MachineStats(samples=1, ram_process_bytes=level(GIB))) == [
        "Machine: RAM 1.00 GiB at most in this process"
    ]


def test_a_gpu_with_all_that_can_be_known():
    gpu = GpuStats(
        0, "NVIDIA H200", 140 * GIB, level(12 * GIB), level(14 * GIB), level(15.5 * GIB), level(0.9), level(64.0),
        level(600.0),
    )  # fmt: skip
    assert lines_of(machine=MachineStats(samples=1, gpus=(gpu,))) == [
        "GPU 0 (NVIDIA H200): memory 12.0 GiB allocated, 14.0 GiB reserved, 15.5 GiB used by all processes at most "
        "of 140.0 GiB; a kernel ran in 45% of the time; 64 degrees C at most; 300 W on average"
    ]


def test_a_gpu_without_nvml():
    gpu = GpuStats(1, "mps", None, level(0.5 * GIB))
    assert lines_of(machine=MachineStats(samples=1, gpus=(gpu,))) == ["GPU 1 (mps): memory 0.50 GiB allocated at most"]
