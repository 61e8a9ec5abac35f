"""Files of the sinks that need no package; names of metrics for Prometheus and MLflow."""

import csv
import json

import pytest

from training_profiler.sinks.line_files import CsvFile, JsonlFile
from training_profiler.sinks.program_runs import MlflowRun, WandbRun, mlflow_key
from training_profiler.sinks.prometheus_text import prometheus_name
from training_profiler.sinks.sink import MetricRow
from training_profiler.sinks.tensorboard_events import (
    LOWER,
    MEAN,
    MEAN_OUTSIDE,
    MOST_RUNS,
    SHARE,
    UPPER,
    SectionRuns,
    charts,
    overview,
)

ROWS = [
    MetricRow(50, 1000.5, {"profiling/batch_time_avg": 0.25}),
    MetricRow(100, 1001.5, {"profiling/batch_time_avg": 0.5, 'profiling/timing_a "b", c_avg': 0.125}),
]


def test_jsonl_has_one_object_per_row(tmp_path):
    sink = JsonlFile()
    sink.open(tmp_path)
    sink.write(ROWS[:1])
    sink.write(ROWS[1:])
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": row.step, "time": row.time_s, **row.metrics} for row in ROWS]


def test_csv_has_one_line_per_value_and_one_header_also_of_a_restarted_run(tmp_path):
    for rows in (ROWS[:1], ROWS[1:]):
        sink = CsvFile()
        sink.open(tmp_path)
        sink.write(rows)
        sink.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["step", "time", "name", "value"],
            ["50", "1000.5", "profiling/batch_time_avg", "0.25"],
            ["100", "1001.5", "profiling/batch_time_avg", "0.5"],
            ["100", "1001.5", 'profiling/timing_a "b", c_avg', "0.125"],
        ]


@pytest.mark.parametrize("kind", [JsonlFile, CsvFile])
def test_missing_run_folder_is_an_error(kind):
    with pytest.raises(FileNotFoundError, match="there is no run folder to write to"):
        kind().open(None)


@pytest.mark.parametrize(
    ("name", "called", "labels"),
    [
        ("profiling/batch_time_avg", "profiling_batch_time_avg", {}),
        ("profiling/timing_forward_pass_avg", "profiling_timing_avg", {"section": "forward_pass"}),
        ("profiling/timing_a_avg_avg", "profiling_timing_avg", {"section": "a_avg"}),
        ("profiling/interval_other_percentage", "profiling_interval_percentage", {"section": "other"}),
        ("profiling/epoch_other_percentage", "profiling_epoch_percentage", {"section": "other"}),
        ("profiling/epoch_max_gpu_1_memory", "profiling_epoch_max_gpu_memory", {"gpu": "1"}),
        ("profiling/epoch_max_ram_usage", "profiling_epoch_max_ram_usage", {}),
        ("profiling/bottleneck_gpu_0_memory", "profiling_bottleneck_gpu_memory", {"gpu": "0"}),
        ("profiling/gpu_12_memory_allocated_gb", "profiling_gpu_memory_allocated_gb", {"gpu": "12"}),
        ("profile/train/dl_a/b/time_data_ms", "profile_dl_time_data_ms", {"phase": "train", "loader": "a/b"}),
        ("profiling/data_gen_percentage", "profiling_data_gen_percentage", {}),
    ],
)
def test_prometheus_gets_variable_parts_of_names_as_labels(name, called, labels):
    assert prometheus_name(name)[:2] == (called, labels)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("profiling/timing_validation_epoch/forward_pass_avg", "profiling/timing_validation_epoch/forward_pass_avg"),
        ("profiling/timing_a+b (c)_avg", "profiling/timing_a_b _c__avg"),
        ("profiling/timing_a//b_avg", "profiling/timing_a/_/b_avg"),
        ("profiling/timing_a/../b_avg", "profiling/timing_a/_/b_avg"),
        ("a" * 249 + "/b", "a" * 249),
        ("a//" * 100, ("a/_/" * 100)[:249]),
    ],
)
def test_mlflow_gets_only_allowed_names(name, key):
    assert mlflow_key(name) == key


@pytest.mark.parametrize(
    ("sink", "note"),
    [
        (MlflowRun(), "mlflow sink: no active run was found (mlflow.start_run()), so no metrics went to MLflow"),
        (WandbRun(), "wandb sink: no run was found (wandb.init()), so no metrics went to W&B"),
    ],
    ids=["mlflow", "wandb"],
)
def test_a_tracker_is_not_imported_and_a_missing_run_is_reported(sink, note):
    assert not sink.poll()
    sink.write(ROWS)
    assert sink.notes() == [note]


def percentages(step, **shares):
    return MetricRow(
        step, float(step), {f"profiling/interval_{name}_percentage": value for name, value in shares.items()}
    )


def heights(rows):
    return {name: (row.metrics[LOWER], row.metrics[UPPER]) for name, row in rows.items()}


def test_each_section_is_a_run_stacked_in_a_fixed_order_and_new_ones_come_on_top():
    sections = SectionRuns()
    rows = sections.rows(percentages(1, other=50.0, forward=20.0, backward=30.0))
    assert heights(rows) == {"backward": (0.0, 30.0), "forward": (30.0, 50.0), "other": (50.0, 100.0)}
    rows = sections.rows(percentages(2, forward=60.0, other=30.0, validation=10.0))
    assert heights(rows) == {"forward": (0.0, 60.0), "other": (60.0, 90.0), "validation": (90.0, 100.0)}
    assert rows["validation"].step == 2


def test_small_sections_share_the_last_run():
    shares = {f"s{number}": float(number) for number in range(1, MOST_RUNS + 3)}
    rows = SectionRuns().rows(percentages(1, **shares))
    assert len(rows) == MOST_RUNS + 1
    assert rows["remaining_sections"].metrics[SHARE] == 1.0 + 2.0


def test_overview_is_the_first_group_of_the_first_tab():
    tags = {*overview(MetricRow(1, 0.0, {"profiling/mfu": 0.5})), SHARE, MEAN, MEAN_OUTSIDE}
    assert tags == {"overview/mfu", SHARE, MEAN, MEAN_OUTSIDE}
    assert all(tag < "profil" for tag in tags)


def test_layout_has_only_charts_with_data():
    assert (
        charts({"profiling/batches_per_second", "profiling/memory_pressure"}).items()
        == {
            "Throughput": {"Batches and steps per second": "profiling/(batches|steps)_per_second"},
            "Bottlenecks": {
                "Severity (0 to 1)": r"profiling/(data_gen_bottleneck_severity|memory_pressure|gpu_\d+_memory_pressure)"
            },
        }.items()
    )
