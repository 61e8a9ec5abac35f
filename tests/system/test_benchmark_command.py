"""``training-profiler benchmark MODULE:FACTORY``, as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.scripts import environment
from training_profiler.cli.run import BOOTSTRAP

MODEL = """
from torch import nn, randn
print("made")
def factory():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), randn(3, 4)
def raises():
    raise ValueError("no weights")
def misfit():
    return nn.Linear(4, 8), randn(3, 5)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarked")
    (folder / "model.py").write_text(MODEL)
    return folder


def benchmark(
    folder: Path, *words: str, switch: str | None = None, is_prepared: bool = False
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training_profiler", "benchmark", *words]
    environ = environment(switch) | {"OMP_NUM_THREADS": "1"}
    if is_prepared:
        environ["PYTHONPATH"] = BOOTSTRAP
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_it_prints_a_table_and_writes_the_same_as_json(folder):
    words = ("model:factory", "--min-run-time", "0.01", "--threads", "1", "--json", "out.json")
    told = benchmark(folder, *words, switch="1")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("made\n=== Component Benchmark ===\nSequential of model:factory: 58 parameters")
    data = json.loads((folder / "out.json").read_text())
    assert list(data["passes"]) == ["forward", "forward + loss", "backward", "optimizer step"]
    assert sorted(row["kind"] for row in data["root"]["children"]) == ["Linear", "Linear", "ReLU"]
    assert (data["threads"], data["loss"]) == (1, "sum of the outputs' means")
    assert not (folder / "runs").exists()


def test_in_a_shell_where_every_program_is_profiled_it_is_none(folder):
    told = benchmark(folder, "model:factory", "--min-run-time", "0.01", "--depth", "0", switch="1", is_prepared=True)
    assert (told.returncode, told.stderr) == (0, "")
    assert "Profiling" not in told.stdout
    assert not (folder / "runs").exists()


def test_json_on_stdout_stands_alone(folder):
    told = benchmark(folder, "./model.py:factory", "--min-run-time", "0.01", "--no-backward", "--depth", "0", "--json")
    assert told.stderr == "made\n"
    data = json.loads(told.stdout)
    assert (list(data["passes"]), data["root"]["children"]) == (["forward"], [])


@pytest.mark.parametrize(
    ("source", "line", "shown"),
    [
        ("model", "training-profiler: 'model' is not MODULE:FACTORY; example: ", []),
        ("model:raises", "training-profiler: model:raises raised ValueError: no weights", ["in raises"]),
        ("model:misfit", "training-profiler: the model of model:misfit raised RuntimeError: ", ["in forward"]),
    ],
)
def test_bad_input_ends_with_one_line_and_status_2_below_the_users_own_traceback(folder, source, line, shown):
    told = benchmark(folder, source)
    assert told.returncode == 2
    *traceback, last = told.stderr.splitlines()
    assert last.startswith(line)
    assert bool(traceback) == bool(shown)
    assert [words for words in shown if words not in told.stderr] == []
    assert f"training_profiler{'/'}components" not in told.stderr


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
def test_options_that_make_no_sense_end_with_status_2(folder, words):
    told = benchmark(folder, "model:factory", *words)
    assert told.returncode == 2
    assert words[0] in told.stderr.splitlines()[-1]
