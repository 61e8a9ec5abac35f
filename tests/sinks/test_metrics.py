"""Names and units are a contract: dashboards are built on them."""

import pytest

from tests.support.recording import FakeRun, snapshot_of, step_stats
from training_profiler.model.snapshot import (
    OTHER,
    PROFILER,
    EpochStats,
    GpuStats,
    Level,
    LoaderStats,
    MachineStats,
    Snapshot,
    Throughput,
)
from training_profiler.sinks.metrics import epoch_metrics, interval_metrics, loader_metrics


def level(mean, most=None):
    return Level(mean=mean, max=mean if most is None else most, last=0.0)


def test_batch_time_is_step_time_over_fetches():
    run = FakeRun()
    for seconds in (1, 3):
        run.step(data_loading=0.25, forward_pass=seconds)
        run.spend("data_loading", 0.25)  # a second batch a step, of the step that follows
    metrics = interval_metrics(run.snapshot(of_interval=True))
    assert metrics["profiling/timing_data_loading_avg"] == 0.25
    assert metrics["profiling/timing_forward_pass_avg"] == 2.0
    # Steps of 1.25 s and 3.5 s with two batches each: 1.1875 s a batch.
    assert metrics["profiling/batch_time_avg"] == pytest.approx(1.1875)
    assert metrics["profiling/batch_time_std"] == pytest.approx(2.25 / 2**0.5 / 2)
    assert metrics["profiling/batches_per_second"] == pytest.approx(1 / 1.1875)


def test_step_counts_as_a_batch_without_a_loader():
    metrics = interval_metrics(snapshot_of({"forward_pass": 0.5}, steps=10, step_s=0.2))
    assert metrics["profiling/batch_time_avg"] == 0.2
    assert metrics["profiling/batches_per_second"] == 5.0


def test_the_profiler_has_a_share_and_no_time_of_a_section():
    metrics = interval_metrics(snapshot_of({"forward_pass": 0.9, PROFILER: 0.1}))
    assert [name for name in metrics if "profiler" in name] == ["profiling/interval_profiler_percentage"]


def test_data_generation_and_transfer_are_per_batch():
    metrics = interval_metrics(snapshot_of({"data_generation": 0.65, "data_transfer": 0.05}, step_s=0.2))
    assert metrics["profiling/data_generation_time"] == pytest.approx(0.13)
    assert metrics["profiling/data_transfer_time"] == pytest.approx(0.01)
    assert metrics["profiling/data_gen_percentage"] == pytest.approx(65)
    assert metrics["profiling/transfer_percentage"] == pytest.approx(5)
    assert metrics["profiling/bottleneck_data_generation"] == 1
    assert metrics["profiling/data_gen_bottleneck_severity"] == pytest.approx(0.5)


def test_machine_metrics_are_in_percent_and_gb():
    gpu = GpuStats(1, total_bytes=10**10, allocated_bytes=level(4e9), used_bytes=level(9.5e9), utilization=level(0.8))
    machine = MachineStats(
        samples=5,
        cores=4.0,
        cpu_container=level(3.0),
        cpu_host=level(0.1),
        ram_share=level(0.94),
        ram_available_bytes=level(2.5e9),
        gpus=(gpu,),
    )
    metrics = interval_metrics(Snapshot(machine=machine))
    assert metrics == {
        "profiling/cpu_usage_percent": 75.0,
        "profiling/ram_usage_percent": 94.0,
        "profiling/ram_available_gb": 2.5,
        "profiling/bottleneck_memory": 1.0,
        "profiling/memory_pressure": pytest.approx(0.6),
        "profiling/gpu_1_memory_allocated_gb": 4.0,
        "profiling/gpu_1_memory_utilization": 95.0,
        "profiling/gpu_1_utilization": 80.0,
        "profiling/bottleneck_gpu_1_memory": 1.0,
        "profiling/gpu_1_memory_pressure": pytest.approx(0.5),
    }


def test_no_memory_pressure_below_the_threshold():
    metrics = interval_metrics(Snapshot(machine=MachineStats(1, ram_share=level(0.85))))
    assert (metrics["profiling/bottleneck_memory"], metrics["profiling/memory_pressure"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("figures", "metrics"),
    [
        ({}, {}),
        (
            {"machine": MachineStats(samples=0, gpus=(GpuStats(0, total_bytes=10**10),)), "throughput": Throughput(2)},
            {"profiling/steps_per_second": 2.0},
        ),
        ({"throughput": Throughput(float("nan"), tflops=float("inf"), mfu=0.5)}, {"profiling/mfu": 0.5}),
    ],
)
def test_unknown_values_nan_and_infinity_are_left_out(figures, metrics):
    assert interval_metrics(Snapshot(**figures)) == metrics


def test_single_step_has_no_std():
    assert "profiling/batch_time_std" not in interval_metrics(Snapshot(step=step_stats(count=1)))


def test_epoch_percentages_are_of_the_epoch():
    machine = MachineStats(1, ram_share=level(0.5, 0.7), gpus=(GpuStats(0, allocated_bytes=level(1e9, 3e9)),))
    epoch = EpochStats(2, 50.0, 90, 100, None, 0.1, {"forward_pass": 30.0, OTHER: 20.0}, None, None, machine=machine)
    assert epoch_metrics(epoch) == {
        "profiling/epoch_total_time": 50.0,
        "profiling/epoch_throughput_batches_per_hour": 7200.0,
        "profiling/epoch_forward_pass_percentage": 60.0,
        "profiling/epoch_other_percentage": 40.0,
        "profiling/epoch_max_ram_usage": 70.0,
        "profiling/epoch_max_gpu_0_memory": 3.0,
    }


def test_epoch_without_batches_has_no_throughput():
    epoch = EpochStats(1, 50.0, 0, None, None, None, {OTHER: 50.0}, None, None)
    assert epoch_metrics(epoch) == {"profiling/epoch_total_time": 50.0, "profiling/epoch_other_percentage": 100.0}


def test_loader_metrics_are_in_ms():
    main = LoaderStats("main", 10, 80, 1.0, "train", 0.1, 0.2, 0.3, 0.04, 0.5, 0.75)
    held_out = LoaderStats("0", 10, 80, 1.0, "val", 0.01, 0.02)
    assert loader_metrics([main, held_out]) == {
        "profile/train/dl_main/time_data_ms": 100.0,
        "profile/train/dl_main/time_forward_ms": 200.0,
        "profile/train/dl_main/time_backward_ms": 300.0,
        "profile/train/dl_main/time_optimizer_ms": 40.0,
        "profile/train/dl_main/time_batch_wait_ms": 500.0,
        "profile/train/dl_main/proportion": 0.75,
        "profile/val/dl_0/time_data_ms": 10.0,
        "profile/val/dl_0/time_forward_ms": 20.0,
    }


def test_unknown_times_of_a_loader_are_left_out():
    assert loader_metrics([LoaderStats("a", 1, None, 0.0, data_avg_s=0.001)]) == {"profile/train/dl_a/time_data_ms": 1}


@pytest.mark.parametrize(
    ("name", "plain"), [("Größe/../a b", "Groe_.._a_b"), ("..", "loader"), ("_x_", "x"), ("a" * 99, "a" * 80)]
)
def test_names_of_loaders_are_plain(name, plain):
    assert list(loader_metrics([LoaderStats(name, 1, None, 0.0, "val", 0.001)])) == [
        f"profile/val/dl_{plain}/time_data_ms"
    ]
