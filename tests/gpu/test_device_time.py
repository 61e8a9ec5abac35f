"""Device time on a real accelerator."""

import shutil

import pytest

from tests.gpu.running import report_of, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

WITHIN = 0.02
LONG_ENOUGH_S = 0.001  # per span; the gap between two kernels is up to 10 us and belongs to neither


@pytest.mark.parametrize("model", ["transformer", "convolution"])
def test_device_time_equals_torch_profiler_for_the_same_steps(tmp_path, kind, model):
    if kind != "cuda":
        pytest.skip(f"launches and kernels in a trace of torch.profiler are distinguished for cuda, not for {kind}")
    result = run(tmp_path, "window", model, timing="events")
    if not result["profiler"]:
        pytest.skip("torch.profiler saw no kernel here: CUPTI is missing, or not allowed")
    print(f"{result['device']}, {model}: device time of 20 steps, sections and torch.profiler, s")
    for name, ours in result["ours"].items():
        print(f"  {name}: {ours:.5f} {result['profiler'][name]:.5f} ({ours / result['profiler'][name] - 1:+.2%})")
    assert result["spans"] == [20, 20, 20]
    compared = [name for name, theirs in result["profiler"].items() if theirs / 20 >= LONG_ENOUGH_S]
    assert len(compared) >= 2
    assert {name: result["ours"][name] / result["profiler"][name] for name in compared} == {
        name: pytest.approx(1.0, abs=WITHIN) for name in compared
    }


def test_unmodified_training_has_device_time(tmp_path, kind):
    run(tmp_path, "plain", is_profiled=True)
    report = report_of(tmp_path)
    assert (report["device"]["kind"], report["device"]["timing"]) == (kind, "events")
    for name in ("data_loading", "data_transfer", "forward_pass", "backward_pass", "optimizer_step"):
        section = report["sections"][name]
        assert 0 < section["device_count"] <= section["count"], name
    spans = sum(section["device_count"] for section in report["sections"].values())
    assert spans == report["device"]["spans"]


@pytest.mark.parametrize("timing", ["auto", "sync"])
@pytest.mark.parametrize("how", ["eager", "workers", "compiled"])
def test_losses_are_the_same_on_and_off(tmp_path, how, timing):
    if how == "compiled":
        pytest.importorskip("triton")
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            pytest.skip("torch.compile needs a C compiler to start its kernels with")
    off = run(tmp_path, "plain", how, profile="0")
    assert run(tmp_path, "plain", how, is_profiled=True, timing=timing) == off


def test_sync_timing_gives_one_time_for_host_and_device(tmp_path):
    run(tmp_path, "plain", is_profiled=True, timing="sync")
    report = report_of(tmp_path)
    assert report["device"]["timing"] == "sync"
    backward = report["sections"]["backward_pass"]
    assert backward["device_count"] >= 100
    assert backward["device_total_s"] <= backward["total_s"]


@pytest.mark.parametrize("timing", ["auto", "sync"])
def test_graph_is_captured_and_replayed_inside_sections(tmp_path, kind, timing):
    if kind != "cuda":
        pytest.skip("the program captures a CUDA graph")
    assert run(tmp_path, "captured", timing=timing) == 19 * 256
    report = report_of(tmp_path)
    assert report["sections"]["captured"]["device_count"] == 0
    assert report["sections"]["replay"]["device_count"] > 0
    assert report["device"]["unmeasured"]["a graph was captured"] >= 501


def test_replays_of_a_captured_step_are_steps(tmp_path, kind):
    if kind != "cuda":
        pytest.skip("the program captures a CUDA graph")
    assert run(tmp_path, "replayed", is_profiled=True, timing="events") == 5 + 200
    report = report_of(tmp_path)
    assert report["steps"] == 5 + 200
    replays = report["sections"]["graph_replay"]
    assert replays["count"] == 200
    assert 0 < replays["device_count"] <= 200
    assert replays["device_total_s"] > 0
    assert report["sections"]["optimizer_step"]["count"] == 5
    assert "validation_epoch" not in report["sections"]
    assert report["health"]["disabled"] == []


def test_sections_on_several_streams_and_devices_survive_a_fork(tmp_path):
    assert run(tmp_path, "streams") == run(tmp_path, "streams", profile="0")
    report = report_of(tmp_path)
    assert report["sections"]["compute"]["device_count"] > 0
    assert report["sections"]["beside"]["device_count"] > 0
    assert report["health"]["disabled"] == []


def test_training_on_the_cpu_does_not_initialise_the_accelerator(tmp_path, kind):
    if kind == "mps":
        pytest.skip("mps has nothing to initialise")
    assert run(tmp_path, "on_cpu", is_profiled=True) is False
    assert report_of(tmp_path)["device"] is None
