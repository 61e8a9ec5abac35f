"""What the sinks that need no package write, and the names that Prometheus and MLflow get."""

import csv
import json

import pytest

from training_profiler.sinks.csv_file import CsvFile
from training_profiler.sinks.jsonl_file import JsonlFile
from training_profiler.sinks.mlflow_run import MlflowRun, mlflow_key
from training_profiler.sinks.prometheus_text import prometheus_name
from training_profiler.sinks.sink import MetricRow
from training_profiler.sinks.tensorboard_layout import Stack, categories

ROWS = [
    MetricRow(50, 1000.5, {"profiling/batch_time_avg": 0.25}),
    MetricRow(100, 1001.5, {"profiling/batch_time_avg": 0.5, 'profiling/timing_a "b", c_avg': 0.125}),
]


def test_jsonl_has_an_object_a_row(tmp_path):
    sink = JsonlFile()
    sink.open(tmp_path)
    sink.write(ROWS[:1])
    sink.write(ROWS[1:])
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": row.step, "time": row.time_s, **row.metrics} for row in ROWS]


def test_csv_has_a_line_a_value_whatever_names_come_later(tmp_path):
    sink = CsvFile()
    sink.open(tmp_path)
    sink.write(ROWS)
    sink.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["step", "time", "name", "value"],
            ["50", "1000.5", "profiling/batch_time_avg", "0.25"],
            ["100", "1001.5", "profiling/batch_time_avg", "0.5"],
            ["100", "1001.5", 'profiling/timing_a "b", c_avg', "0.125"],
        ]


def test_csv_of_a_run_that_was_started_anew_has_one_header(tmp_path):
    for rows in (ROWS[:1], ROWS[1:]):
        sink = CsvFile()
        sink.open(tmp_path)
        sink.write(rows)
        sink.close()
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "50", "100", "100"]


@pytest.mark.parametrize("kind", [JsonlFile, CsvFile])
def test_without_a_run_folder_there_is_an_error_that_says_so(kind):
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
def test_what_varies_in_a_name_is_a_label_for_prometheus(name, called, labels):
    assert prometheus_name(name)[:2] == (called, labels)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("profiling/timing_validation_epoch/forward_pass_avg", "profiling/timing_validation_epoch/forward_pass_avg"),
        ("profiling/timing_a+b (c)_avg", "profiling/timing_a_b _c__avg"),
        ("profiling/timing_a//b_avg", "profiling/timing_a/_/b_avg"),
        ("profiling/timing_a/../b_avg", "profiling/timing_a/_/b_avg"),
    ],
)
def test_mlflow_gets_names_that_it_allows(name, key):
    assert mlflow_key(name) == key


def test_mlflow_is_not_imported_and_its_absence_is_told():
    sink = MlflowRun()
    assert not sink.poll()
    sink.write(ROWS)
    assert sink.notes() == ["mlflow sink: no active run was found (mlflow.start_run()), so no metrics went to MLflow"]


def percentages(step, **shares):
    return MetricRow(
        step, float(step), {f"profiling/interval_{name}_percentage": value for name, value in shares.items()}
    )


def test_a_stack_has_a_height_a_section_and_each_keeps_its_place():
    stack = Stack()
    (row,) = stack.rows(percentages(1, other=50.0, forward=20.0, backward=30.0))
    assert row.metrics == {
        "profiling_stack/0": 0.0,
        "profiling_stack/backward": 30.0,
        "profiling_stack/forward": 50.0,
        "profiling_stack/other": 100.0,
    }
    (row,) = stack.rows(percentages(2, forward=60.0, other=40.0))
    assert list(row.metrics.values()) == [0.0, 0.0, 60.0, 100.0]


def test_a_section_that_comes_later_has_been_in_the_stack_all_along_with_nothing():
    stack = Stack()
    stack.rows(percentages(1, forward=100.0))
    earlier, now = stack.rows(percentages(2, forward=75.0, validation=25.0))
    assert earlier == MetricRow(1, 1.0, {"profiling_stack/validation": 100.0})
    assert now.metrics["profiling_stack/validation"] == 100.0
    assert stack.bands()[0] == ("profiling_stack/forward", "profiling_stack/validation")


def test_only_charts_that_have_something_to_show_are_laid_out():
    found = categories({"profiling/batches_per_second", "profiling/memory_pressure"}, Stack())
    assert [(category.title, list(category.lines)) for category in found] == [
        ("Throughput", ["Batches and steps per second"]),
        ("Bottlenecks", ["Severity (0 to 1)"]),
    ]
