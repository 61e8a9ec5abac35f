"""``training-profiler doctor``: what it finds, and its exit status."""

import json
import os
import site
import subprocess
import sys
import threading

import pytest

from tests.support.commands import printed
from training_profiler.base import peaks
from training_profiler.cli import doctor, main
from training_profiler.runtime import checkup


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(checkup, "ROUNDS", 1)
    monkeypatch.setattr(checkup, "STEPS", 2)
    monkeypatch.setattr(checkup, "WARM_UP", 2)


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_machine_without_problems_and_torch_as_it_was(here, capsys):
    torch = pytest.importorskip("torch")
    before = torch.random.get_rng_state(), torch.get_num_threads(), torch.nn.Module.__call__
    text = printed(capsys, "doctor")
    after = torch.random.get_rng_state(), torch.get_num_threads(), torch.nn.Module.__call__
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert "all that this torch has a place for" in text
    assert f"{here / 'runs'}, which is made in {here}" in " ".join(text.split())
    paths = str(here), sys.prefix
    assert [line for line in text.splitlines() if len(line) > 80 and not any(path in line for path in paths)] == []
    assert not list(here.iterdir())


def test_settings_show_where_they_come_from_and_the_recorder_why_it_serves(here, monkeypatch, capsys):
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_LOG_EVERY", "7")
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_NATIVE", "0")
    found = json.loads(printed(capsys, "doctor", "--json"))
    assert found["Settings"] == {
        "RECTIFIED_FLOW_PROFILE_LOG_EVERY": "7 (from the environment)",
        "RECTIFIED_FLOW_PROFILE_NATIVE": "0 (from the environment)",
    }
    recorder = found["Instrumentation"]["recorder"]
    assert recorder == "Python (RECTIFIED_FLOW_PROFILE_NATIVE refuses the recorder in C)"


@pytest.fixture
def measured(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setattr(doctor, "MEASURE_S", 0.0)
    monkeypatch.setattr(doctor, "MOST_ROWS", 512)
    monkeypatch.setattr(doctor, "COPIED", 1024)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_measured_peaks_are_kept_where_runs_look_for_them(here, measured, capsys):
    import torch

    name = peaks.cpu_name(torch.get_num_threads())
    assert peaks.measured_peak(name, "float32") is None
    found = json.loads(printed(capsys, "doctor", "--measure-peak", "--json"))[f"Peak of {name}"]
    assert found["kept in"] == str(peaks.measured_file(name))
    for dtype in ("float32", "bfloat16", "float16"):
        rate = peaks.measured_peak(name, dtype)
        assert found[dtype] == f"{rate:.3g} TFLOP/s, the fastest of 2 products of 512 x 512"
    assert found["memory"].endswith(" GB/s read and written, copying 0 MiB")
    assert peaks.measured_peak(name, "int8") is None


def test_peaks_that_cannot_be_kept_are_a_problem(here, measured, capsys):
    (measured / "cache").write_text("")
    assert main(["doctor", "--measure-peak", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith("the rates could not be kept")


def test_a_type_in_which_a_device_does_not_compute_is_said(here, measured, monkeypatch, capsys):
    def refuses(torch, device, dtype):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(doctor, "_matmul_tflops", refuses)
    found = json.loads(printed(capsys, "doctor", "--measure-peak", "--json"))
    (rows,) = [rows for title, rows in found.items() if title.startswith("Peak of")]
    assert rows["float32"] == "not measured: no kernel"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tflops": 1}', '{"tflops": {"float32": "fast"}}', '{"tflops": {"float32": -1}}',
             '{"tflops": {"float32": NaN}}', '{"tflops": {"float32": Infinity}}', "[" * 100_000],
)  # fmt: skip
def test_files_of_others_are_no_measured_peaks(measured, text):
    path = peaks.measured_file("A device/0")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert peaks.measured_peak("A device/0", "float32") is None


def test_a_file_that_does_not_respond_gives_no_measured_peak(measured, monkeypatch):
    monkeypatch.setattr(peaks, "HOME_S", 0.01)
    path = peaks.measured_file("A device/0")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert peaks.measured_peak("A device/0", "float32") is None
    path.write_text("{}")  # lets the reader end
    for reader in [thread for thread in threading.enumerate() if thread.name == "training_profiler peaks"]:
        reader.join()


def test_what_would_keep_it_from_working_is_a_problem(here, monkeypatch, capsys):
    (here / "file").write_text("")
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_DIR", str(here / "file"))
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_LOGEVERY", "7")
    assert main(["doctor", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.partition(";")[0] for problem in problems] == [
        "RECTIFIED_FLOW_PROFILE_LOGEVERY='7' is not a setting and has no effect",
        f"{here / 'file'}: it is not a folder",
    ]


def test_a_tracker_that_is_asked_for_and_missing_is_a_problem(here, monkeypatch, capsys):
    needing = checkup.TRACKERS["wandb"]._replace(needs="no_such_module")
    monkeypatch.setitem(checkup.TRACKERS, "wandb", needing)
    assert main(["doctor"]) == 0
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_SINKS", "jsonl,wandb")
    assert main(["doctor"]) == 1
    assert "  ! wandb is one of the sinks, and is not installed\n" in capsys.readouterr().out


def test_torch_that_cannot_be_imported_and_wrong_settings_are_problems_in_the_width(here, monkeypatch, capsys):
    monkeypatch.setattr(checkup, "_torch", lambda: None)
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_LOGEVERY", "7")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "torch cannot be imported" in out
    problem = [line for line in out.splitlines() if "LOGEVERY" in line or "LOG_EVERY" in line]
    assert [len(line) <= 80 for line in problem] == [True, True]
    assert problem[0].startswith("  ! ")
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_FLUSH_S", "often")
    assert main(["doctor"]) == 1
    assert "  ! RECTIFIED_FLOW_PROFILE_FLUSH_S='often' is not a positive number" in capsys.readouterr().out


def test_a_missing_start_up_file_is_said_with_what_to_do(here, monkeypatch, capsys):
    words = [sys.executable, "-m", "venv", "--without-pip", str(here / "bare")]
    subprocess.run(words, check=True)
    monkeypatch.setattr(sys, "executable", str(here / "bare" / "bin" / "python"))
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(here)])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    main(["doctor", "--json"])
    switch = json.loads(capsys.readouterr().out)["Switch"]
    assert switch["start-up file"].startswith("none in a folder that this Python reads")
    assert switch["RECTIFIED_FLOW_PROFILE=1"].startswith("does nothing alone: put training-profiler run in front")
