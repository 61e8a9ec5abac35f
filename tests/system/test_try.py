"""`training-profiler try` on real trainings with planted causes: it names the change that helps, and no other."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from .scripts import ROOT, TIMEOUT_S, environment

PLANTED = ROOT / "tests" / "planted"
SLEEPING = ROOT / "tests" / "trials" / "programs" / "sleeping.py"
TRY = [sys.executable, "-m", "training_profiler", "try"]


def tried(cwd: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TRY, *words], cwd=cwd, env=environment(None, **variables), capture_output=True, text=True, timeout=TIMEOUT_S
    )


def results_of(cwd: Path, *words: str) -> dict[str, Any]:
    outcome = tried(cwd, "--json", *words)
    assert outcome.returncode == 0, outcome.stderr
    return dict(json.loads(outcome.stdout))


def rows(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in results["rows"]}


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "runs" not in path.relative_to(folder).parts
    }


@pytest.mark.programs
def test_workers_help_a_slow_loader_and_keep_the_losses(tmp_path: Path) -> None:
    results = results_of(tmp_path, "--budget", "4m", "--only", "num_workers=2", str(PLANTED / "waiting_dataset.py"))
    found = rows(results)
    assert found["num_workers=2"]["verdict"] == "faster", results
    assert found["num_workers=2"]["effect"]["relative"] < -0.3
    assert found["num_workers=2"]["losses"]["kind"] == "identical"
    assert found["num_workers=2"]["where"].startswith("waiting_dataset.py:")
    folder = tmp_path / results["run_folder"]
    shown = tried(tmp_path, "--show-diff", str(folder), "--only", "num_workers=2")
    assert "num_workers=2" in shown.stdout + shown.stderr


@pytest.mark.programs
def test_fused_helps_an_optimizer_of_many_small_tensors(tmp_path: Path) -> None:
    results = results_of(tmp_path, "--budget", "3m", "--only", "fused", str(PLANTED / "many_tensors.py"))
    row = rows(results)["fused"]
    assert row["verdict"] == "faster", results
    assert row["effect"]["relative"] < -0.1
    assert row["losses"]["kind"] in ("identical", "apart")


@pytest.mark.programs
def test_changes_that_do_nothing_are_no_gain_and_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.txt").write_text("mine")
    before = files_in(tmp_path)
    results = results_of(tmp_path, "--budget", "3m", "--only", "gc_freeze", str(SLEEPING))
    assert [row["verdict"] for row in results["rows"]].count("faster") == 0, results
    assert results["control"]["effect"]["low"] <= 0.02
    assert results["control"]["losses"]["kind"] == "identical"
    assert files_in(tmp_path) == before
    assert [name for name in os.listdir(tmp_path) if name not in ("runs", "checkpoint.txt")] == []


@pytest.mark.programs
def test_ctrl_c_gives_the_results_so_far_and_leaves_no_process(tmp_path: Path) -> None:
    scratch = tmp_path / ("folder-with-a-long-name" * 4)
    scratch.mkdir()
    process = subprocess.Popen(
        [*TRY, "--budget", "10m", "--only", "gc_freeze", str(SLEEPING)],
        cwd=tmp_path,
        env=environment(None, TMPDIR=str(scratch)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + TIMEOUT_S
    while not list(scratch.glob("*/1")) and time.monotonic() < deadline_s:  # until the first run has ended
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert "stopped early ===" in stdout
    _, alive = psutil.wait_procs(started, timeout=10)  # a process that was killed ends when the system gets to it
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\nraise ValueError('no such data')", "x.py fails by itself: ValueError: no such data"),
        ("import torch\ninput('name? ')", "x.py reads standard input, of which a trial has none"),
        ("import torch", "x.py: no training step was seen until its end"),
    ],
)
@pytest.mark.programs
def test_a_program_that_cannot_be_tried_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.py").write_text(text)
    outcome = tried(tmp_path, "x.py")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr.splitlines()[-1] == f"training-profiler: {message}"
    assert "Traceback" not in outcome.stderr


@pytest.mark.programs
def test_a_program_with_few_steps_is_one_line(tmp_path: Path) -> None:
    outcome = tried(tmp_path, str(SLEEPING), "10")
    assert outcome.returncode == 2
    assert outcome.stderr.splitlines()[-1] == "training-profiler: sleeping.py has 10 steps in all; a trial needs 20"
