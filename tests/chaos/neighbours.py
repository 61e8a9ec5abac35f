"""A small training alone and under ``training-profiler run``: status, output and losses must agree."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.system.launching import Ended, execute_forked, through_run
from tests.system.scripts import ROOT, TIMEOUT_S, environment

PROGRAMS = ROOT / "tests" / "chaos" / "programs"
TRAINING = PROGRAMS / "small_training.py"
STEPS = 20
REPORT = {"RECTIFIED_FLOW_PROFILE_STREAM": "stderr"}


class Both(NamedTuple):
    """How a program ended alone and under the profiler."""

    off: Ended
    on: Ended
    steps: int | None  # in the report; None without a report


def execute(cwd: Path, command: Sequence[str], is_on: bool, **options: Any) -> Ended:
    """Run ``command`` to its end, alone or under ``training-profiler run``."""
    variables = options.pop("variables", {})
    words = list(command)
    if is_on:
        words = through_run(*(words[1:] if words[0] == sys.executable else words))
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment(None, **{"PYTHONPATH": str(PROGRAMS), **variables}, **(REPORT if is_on else {})),
        text=True,
        timeout=TIMEOUT_S,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    return Ended(done.returncode, done.stdout or "", done.stderr or "")


def both_forked(cwd: Path, text: str) -> Both:
    """Run a script alone and under the profiler, in forks of a process that has torch."""
    (cwd / "script.py").write_text(text)
    off = execute_forked(cwd, "script.py", is_profiled=False, PYTHONPATH=str(PROGRAMS))
    return Both(off, execute_forked(cwd, "script.py", PYTHONPATH=str(PROGRAMS), **REPORT), reported_steps(cwd))


def reported_steps(cwd: Path) -> int | None:
    """Return the steps in the newest report below ``cwd``; None without a report."""
    reports = sorted(cwd.glob("runs/*/report.json"))
    return json.loads(reports[-1].read_text())["steps"] if reports else None


@cache
def plain_losses() -> str:
    """Return what the small training prints on its own."""
    with TemporaryDirectory() as folder:
        ended = execute_forked(Path(folder), str(TRAINING), is_profiled=False)
        assert ended.status == 0, ended.stderr
        assert ended.stdout.startswith(f"{STEPS} ")
        return ended.stdout


def assert_same(outcome: Both, steps: int | None = STEPS) -> None:
    """Check that the program ended and printed as it does alone, and that its steps were counted."""
    assert (outcome.on.status, outcome.on.stdout) == (outcome.off.status, outcome.off.stdout), outcome.on.stderr
    assert outcome.steps == steps, outcome.on.stderr


def python(*words: str | os.PathLike[str]) -> list[str]:
    """Return the command line of this interpreter with ``words``."""
    return [sys.executable, *map(str, words)]


def train(cwd: Path, name: str, *words: str, stdout: Any = subprocess.PIPE, **settings: str) -> str:
    """Run one of the programs with the profiler on, to its successful end; return its output and its errors."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / name), *words],
        cwd=cwd,
        env=environment("1", **settings),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout or "") + done.stderr


def output_of(cwd: Path, launcher: Sequence[str], name: str, *words: str, **variables: str) -> str:
    """Return what one of the programs prints with nothing of the profiler set but ``variables``."""
    ours = ("RECTIFIED_FLOW_PROFILE", "PYTEST_", "PYTHONPATH")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(ours)} | variables
    command = [sys.executable, *launcher, str(PROGRAMS / name), *words]
    done = subprocess.run(
        command, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
