"""The quick checklist: each line passes, fails or is not measured, with its figure."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.reports.checklist import checklist, checklist_lines
from training_profiler.reports.layout import Layout
from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput

GIB = 2**30


def verdicts(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    return {check.what: (check.verdict, check.measured) for check in checklist(snapshot)}


def on_gpu(utilization: float, memory: float) -> Snapshot:
    gpu = GpuStats(
        index=0,
        total_bytes=16 * GIB,
        used_bytes=Level(mean=0.0, max=memory * 16 * GIB, last=0.0),
        loop_utilization=Level(mean=utilization, max=1.0, last=1.0),
    )
    return replace(snapshot_of({"forward_pass": 0.5}), machine=MachineStats(samples=10, gpus=(gpu,)))


def test_empty_run_measures_nothing():
    assert {verdict for verdict, _ in verdicts(Snapshot()).values()} == {"not measured"}


@pytest.mark.parametrize(
    ("shares", "what", "expected"),
    [
        ({"data_loading": 0.0625, "data_generation": 0.03125}, "data time", ("PASS", "9.4%")),
        ({"data_loading": 0.0625, "data_generation": 0.0625}, "data time", ("FAIL", "12.5%")),
        ({"forward_pass": 0.375}, "forward", ("PASS", "37.5%")),
        ({"forward_pass": 0.3125}, "forward", ("FAIL", "31.2%")),
        ({"backward_pass": 0.4375}, "backward", ("PASS", "43.8%")),
        ({"backward_pass": 0.5}, "backward", ("FAIL", "50.0%")),
        ({"optimizer_step": 0.125}, "optimizer", ("PASS", "12.5%")),
        ({"optimizer_step": 0.1875}, "optimizer", ("FAIL", "18.8%")),
        ({"forward_pass": 0.25, "backward_pass": 0.5}, "forward + backward dominate", ("PASS", "75.0%")),
        ({"forward_pass": 0.25, "backward_pass": 0.25}, "forward + backward dominate", ("FAIL", "50.0%")),
        ({"forward_pass": 0.25}, "forward + backward dominate", ("not measured", "")),
    ],
)
def test_verdict_on_a_share_of_the_step(shares, what, expected):
    assert verdicts(snapshot_of(shares, steps=64, step_s=0.125))[what] == expected


@pytest.mark.parametrize(("std_s", "expected"), [(0.005, ("PASS", "5.0%")), (0.02, ("FAIL", "20.0%"))])
def test_verdict_on_the_variation_of_step_time(std_s, expected):
    what = "step time variation (coefficient of variation)"
    assert verdicts(snapshot_of({}, std_s=std_s))[what] == expected


@pytest.mark.parametrize(
    ("utilization", "memory", "expected"),
    [
        (0.875, 0.90, [("PASS", "87.5%"), ("PASS", "90.0%")]),
        (0.75, 0.97, [("FAIL", "75.0%"), ("FAIL", "97.0%")]),
        (0.75, 0.5, [("FAIL", "75.0%"), ("FAIL", "50.0%")]),
    ],
)
def test_verdicts_on_the_gpu(utilization, memory, expected):
    found = verdicts(on_gpu(utilization, memory))
    assert [found["GPU utilization"], found["GPU memory"]] == expected


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("flash_attention", ("PASS", "flash_attention")),
        ("cudnn_attention", ("PASS", "cudnn_attention")),
        ("efficient_attention", ("FAIL", "efficient_attention")),
        ("", ("not measured", "")),
    ],
)
def test_verdict_on_the_attention_kernel(kernel, expected):
    run = replace(snapshot_of({}), throughput=Throughput(steps_per_s=10.0, attention=kernel))
    assert verdicts(run)["flash attention"] == expected


@pytest.mark.parametrize(("device_s", "expected"), [(0.0005, ("PASS", "0.5%")), (0.002, ("FAIL", "2.0%"))])
def test_transfer_gaps_are_device_time(device_s, expected):
    run = snapshot_of({"data_transfer": 0.1})
    transfer = replace(run.sections["data_transfer"], device_count=100, device_total_s=100 * device_s)
    run = replace(run, sections={**run.sections, "data_transfer": transfer})
    assert verdicts(run)["CPU-GPU transfer gaps"] == expected


def test_text_has_figure_and_target_of_each_check():
    lines = checklist_lines(snapshot_of({"forward_pass": 0.375, "optimizer_step": 0.25}), Layout(width=120))
    assert lines[0] == "Quick Checklist:"
    assert len(lines) == 12
    assert "PASS          forward                                         37.5%  (target 35-40%)" in lines
    assert "FAIL          optimizer                                       25.0%  (target < 15%)" in lines
    assert "not measured  flash attention                                        (target in use)" in lines


def test_narrow_text_has_a_sentence_per_check():
    run = snapshot_of({"forward_pass": 0.375}, std_s=0.05)
    lines = checklist_lines(run, Layout())
    assert max(map(len, lines)) <= 80
    assert "PASS          forward: 37.5% (target 35-40%)" in lines
    assert "not measured  flash attention (target in use)" in lines
    narrow = checklist_lines(run, Layout(width=70))
    at = narrow.index("FAIL          step time variation (coefficient of variation): 50.0%")
    assert narrow[at + 1] == "              (target < 10%)"
