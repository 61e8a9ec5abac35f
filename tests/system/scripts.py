"""Runs small scripts in processes of their own and returns what came of them."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SWITCH = "RECTIFIED_FLOW_PROFILE"
TIMEOUT_S = 60  # bounds a hang; nothing here takes long
SUMMARY = re.compile(r"^=== Final Profiling Summary \((\d+) steps\) ===$", re.MULTILINE)

# Three short steps; most tests only vary how such a training ends.
THREE_STEPS = """
from training_profiler import *
start_training_profiling(log_every=1000)
for step in range(3):
    with profile_section("forward_pass"):
        sum(range(1000))
    profile_step()
"""


class Outcome(NamedTuple):
    """What a script left behind."""

    status: int
    stdout: str
    stderr: str
    cwd: Path

    @property
    def summaries(self) -> int:
        """How many final summaries were printed."""
        return len(SUMMARY.findall(self.stdout))

    @property
    def folders(self) -> list[Path]:
        """The run folders under ``runs``."""
        return sorted((self.cwd / "runs").iterdir()) if (self.cwd / "runs").is_dir() else []

    @property
    def folder(self) -> Path:
        """The one run folder."""
        (folder,) = self.folders
        return folder

    @property
    def report(self) -> dict[str, Any]:
        """The data contract that the run left in its folder."""
        return dict(json.loads((self.folder / "report.json").read_text()))


def environment(profile: str | None = "1", **variables: str) -> dict[str, str]:
    """Return this process's environment with the given profiler variables and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCH)}
    switch = {} if profile is None else {SWITCH: profile}
    # So wide that no sentence of a report is wrapped.
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "1000", **switch, **variables}


def write_script(cwd: Path, text: str) -> Path:
    """Write ``text`` as a script in ``cwd`` and return its path."""
    script = cwd / "script.py"
    script.write_text(textwrap.dedent(text))
    return script


def start(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> "subprocess.Popen[str]":
    """Start ``text`` as a script in ``cwd`` and in a process group of its own."""
    variables: Mapping[str, str] = options.pop("variables", {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, str(write_script(cwd, text))],
        cwd=cwd,
        env=environment(profile, **variables),
        text=True,
        start_new_session=True,
        **{**streams, **options},
    )


def finish(process: "subprocess.Popen[str]", cwd: Path, read_so_far: str = "") -> Outcome:
    """Wait for the process, whose stdout was read up to ``read_so_far``, and return its outcome."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    except BaseException:  # it hangs, or pytest gave it up; its children would outlive it
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return Outcome(process.returncode, read_so_far + (stdout or ""), stderr or "", cwd)


def run(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> Outcome:
    """Run ``text`` as a script in ``cwd`` to its end."""
    return finish(start(cwd, text, profile, **options), cwd)


def wait_for(process: "subprocess.Popen[str]", line: str) -> str:
    """Read the script's stdout up to ``line`` and return what was read."""
    assert process.stdout is not None
    read = ""
    while not read.endswith(line + "\n"):
        one = process.stdout.readline()
        assert one, f"the script ended before it printed {line!r}: {read}"
        read += one
    return read


def report_command(cwd: Path, *words: str) -> Outcome:
    """Run ``training-profiler report`` with ``words``."""
    done = subprocess.run(
        [sys.executable, "-m", "training_profiler", "report", *words],
        cwd=cwd,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Outcome(done.returncode, done.stdout, done.stderr, cwd)
