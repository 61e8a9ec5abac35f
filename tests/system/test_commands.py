"""Every command starts from a shell; the other tests of commands call them in their own process."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.system.scripts import TIMEOUT_S, command, environment
from training_profiler import __version__
from training_profiler.cli import COMMANDS

# Forks before it imports anything of a command.
HELP = """
import os, sys
from training_profiler.cli import main
for name in sys.argv[1:]:
    print("=====", flush=True)
    if not os.fork():
        sys.exit(main([name, "--help"]))
    assert os.wait()[1] == 0, name
"""


def test_commands_print_the_same_help_in_processes_of_their_own(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HELP, *COMMANDS]
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S}
    done = subprocess.run(words, cwd=tmp_path, env=environment(None), **options)
    here = [command(tmp_path, name, "--help") for name in COMMANDS]
    assert (done.returncode, done.stderr) == (0, "")
    assert {each.status for each in here} == {0}
    theirs = [text.split()[1:] for text in done.stdout.split("=====")[1:]]  # without "usage:"
    assert [each.stdout.split()[1:] for each in here] == theirs


def test_version_is_printed_and_a_command_without_its_argument_ends_with_status_2(tmp_path: Path) -> None:
    version = command(tmp_path, "--version")
    assert (version.status, version.stdout) == (0, f"training-profiler {__version__}\n")
    outcome = command(tmp_path, "benchmark")
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
    assert outcome.stderr.endswith(": MODULE:FACTORY; example: training-profiler benchmark train.py:factory\n")


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
@pytest.mark.parametrize("name", ["mlflow", "mlflov"])
def test_a_missing_tracker_stops_run_before_the_program_as_a_typo_does(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    outcome = command(tmp_path, "run", "--sinks", name, "train.py")
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
    assert "mlflow" in outcome.stderr


@pytest.mark.parametrize("name", ["report", "timeline", "html", "capture", "list", "stacks", "compare"])
def test_command_without_a_run_says_that_there_is_none(tmp_path: Path, name: str) -> None:
    outcome = command(tmp_path, name)
    assert (outcome.status, outcome.stdout) == (2, "")
    how = "No runs in ./runs. Make one with: RECTIFIED_FLOW_PROFILE=1 python train.py"
    assert outcome.stderr == f"training-profiler: {how}\n"
