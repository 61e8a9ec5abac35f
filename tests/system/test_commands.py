"""Every command starts from a shell; the other tests of commands call them in their own process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.scripts import TIMEOUT_S, command, environment
from training_profiler import __version__
from training_profiler.cli import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_command_prints_the_same_help_in_a_process_of_its_own(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "training_profiler", name, "--help"],
        cwd=tmp_path,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    here = command(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert here.status == 0
    assert here.stdout.removeprefix("usage: ").split() == done.stdout.removeprefix("usage: ").split()


def test_command_without_its_argument_ends_with_status_2(tmp_path: Path) -> None:
    outcome = command(tmp_path, "benchmark")
    assert outcome.status == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("usage: training-profiler benchmark ")


@pytest.mark.parametrize("name", ["report", "timeline", "html", "capture"])
def test_command_without_a_run_says_that_there_is_none(tmp_path: Path, name: str) -> None:
    outcome = command(tmp_path, name)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("training-profiler: runs does not exist; ")
    assert outcome.stderr.count("\n") == 1


def test_version_is_printed(tmp_path: Path) -> None:
    outcome = command(tmp_path, "--version")
    assert (outcome.status, outcome.stdout) == (0, f"training-profiler {__version__}\n")
