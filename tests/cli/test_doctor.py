"""``training-profiler doctor``: what it finds, and its exit status."""

import json
import site
import subprocess
import sys

import pytest

from tests.support.commands import printed
from training_profiler.cli import main
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


def test_what_would_keep_it_from_working_is_a_problem(here, monkeypatch, capsys):
    (here / "file").write_text("")
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_DIR", str(here / "file"))
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE_LOGEVERY", "7")
    assert main(["doctor", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.partition(";")[0] for problem in problems] == [
        "RECTIFIED_FLOW_PROFILE_LOGEVERY is not a setting of the profiler and has no effect",
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
