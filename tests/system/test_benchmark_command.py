"""``training-profiler benchmark MODULE:FACTORY``, typed in a shell."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import training_profiler.component_benchmark.result  # noqa: F401  # torch 2.4 prints a line when this is imported
from tests.support.versions import TORCH
from tests.system.scripts import ROOT, TIMEOUT_S, Outcome, command, environment
from training_profiler.cli.run import BOOTSTRAP

MODEL = """
from torch import nn, randn
print("made")
def factory():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), randn(3, 4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarked")
    (folder / "model.py").write_text(MODEL)
    return folder


@pytest.fixture
def benchmark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Return a function that runs the command in this process and imports the model again each time."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        monkeypatch.delitem(sys.modules, "model", raising=False)
        return command(folder, "benchmark", *words)

    return run


def benchmark_process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with the switch on."""
    done = subprocess.run(
        [sys.executable, "-m", "training_profiler", "benchmark", *words],
        cwd=folder,
        env=environment("1", PYTHONPATH=os.pathsep.join([BOOTSTRAP, str(ROOT)])),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if TORCH < (2, 5):  # a CUDA build of torch 2.4 says this by itself
        done.stderr = re.sub(r"No CUDA runtime is found, .*\n", "", done.stderr)
    return done


def test_table_is_printed_and_json_is_written(folder):
    words = ("model:factory", "--min-run-time", "0.01", "--threads", "1", "--json", "out.json")
    done = benchmark_process(folder, *words)  # in a prepared shell, where it is not profiled
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("made\n=== Component Benchmark ===\nSequential of model:factory: 58 parameters")
    data = json.loads((folder / "out.json").read_text())
    assert list(data["passes"]) == ["forward", "forward + loss", "backward", "optimizer step"]
    assert sorted(row["kind"] for row in data["root"]["children"]) == ["Linear", "Linear", "ReLU"]
    assert (data["threads"], data["loss"]) == (1, "sum of the outputs' means")
    assert not (folder / "runs").exists()


def test_json_on_stdout_stands_alone(benchmark):
    done = benchmark("./model.py:factory", "--min-run-time", "0.01", "--no-backward", "--depth", "0", "--json")
    assert done.stderr == "made\n"
    data = json.loads(done.stdout)
    assert (list(data["passes"]), data["root"]["children"]) == (["forward"], [])


@pytest.mark.parametrize(
    "words",
    [
        ("--depth", "-1"),
        ("--threads", "0"),
        ("--min-run-time", "0"),
        ("--min-run-time", "soon"),
        ("--json", "no/such/folder.json", "--min-run-time", "0.001"),
    ],
)
def test_invalid_options_end_with_status_2(benchmark, words):
    done = benchmark("model:factory", *words)
    assert done.status == 2
    assert words[0] in done.stderr.splitlines()[-1]
