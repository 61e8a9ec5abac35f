"""Runs small scripts in their own processes, and commands in this one; returns how they ended."""

import atexit
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.support.fork_server import ForkedProgram, ForkServer
from training_profiler.cli import main

ROOT = Path(__file__).parents[2]
SWITCH = "RECTIFIED_FLOW_PROFILE"
TIMEOUT_S = 240  # ends a script that hangs; each takes a few seconds on an idle machine
SUMMARY = re.compile(r"^=== Final Profiling Summary \((\d+) steps\) ===$", re.MULTILINE)

ORDERS = {
    "before torch": "from training_profiler import *\nimport torch",
    "after torch": "import torch\nfrom training_profiler import *",
}
# Three short steps; most tests only vary the end of such a training.
THREE_STEPS = """
from training_profiler import *
start_training_profiling(log_every=1000)
for step in range(3):
    with profile_section("forward_pass"):
        sum(range(1000))
    profile_step()
"""


class Outcome(NamedTuple):
    """How a script or a command ended, and its folder."""

    status: int
    stdout: str
    stderr: str
    cwd: Path

    @property
    def printed(self) -> str:
        """Standard output without the opening line of the profiler."""
        return re.sub(r"^Profiler: on, run folder .*\n", "", self.stdout, flags=re.MULTILINE)

    @property
    def summaries(self) -> int:
        """The number of final summaries printed."""
        return len(SUMMARY.findall(self.stdout))

    @property
    def folders(self) -> list[Path]:
        """The run folders under ``runs``."""
        return sorted((self.cwd / "runs").glob("2*")) if (self.cwd / "runs").is_dir() else []

    @property
    def folder(self) -> Path:
        """The one run folder."""
        (folder,) = self.folders
        return folder

    @property
    def report(self) -> dict[str, Any]:
        """The contents of the run's report.json."""
        return dict(json.loads((self.folder / "report.json").read_text()))


def environment(profile: str | None = "1", **variables: str) -> dict[str, str]:
    """Return the environment of this process with only the given profiler variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCH)}
    switch = {} if profile is None else {SWITCH: profile}
    # So wide that no sentence of a report is wrapped.
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "1000", **switch, **variables}


def small_files(most_bytes: int) -> str:
    """Return code after which no file may get larger, as on a full disk.

    Python must not write bytecode then: it would put a file that ends at the limit in place of a module of the package.
    """
    limits = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))"
    return f"import resource, sys; sys.dont_write_bytecode = True; {limits}"


def write_script(cwd: Path, text: str) -> Path:
    """Write ``text`` as a script in ``cwd`` and return its path."""
    script = cwd / "script.py"
    script.write_text(textwrap.dedent(text))
    return script


def start(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> "subprocess.Popen[str]":
    """Start ``text`` as a script in ``cwd``, in its own process group."""
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


def finish(process: "subprocess.Popen[str] | ForkedProgram", cwd: Path, read_so_far: str = "") -> Outcome:
    """Wait for the process and return its outcome; ``read_so_far`` was already read from its stdout."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    except BaseException:  # a time limit, here or of pytest; its children would outlive it
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return Outcome(process.returncode, read_so_far + (stdout or ""), stderr or "", cwd)


def run(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> Outcome:
    """Run ``text`` as a script in ``cwd`` to its end."""
    return finish(start(cwd, text, profile, **options), cwd)


@cache
def fork_server(has_torch: bool = True) -> ForkServer:
    """Return the process that has imported the profiler's modules, and torch, for the tests of this process."""
    server = ForkServer(has_torch)
    atexit.register(server.close)
    return server


def start_forked(
    cwd: Path, text: str, profile: str | None = "1", *, has_torch: bool = True, **options: Any
) -> ForkedProgram:
    """Start ``text`` as a script that begins after the import of torch, in its own process group."""
    variables: Mapping[str, str] = options.pop("variables", {})
    server = fork_server(has_torch)
    return server.start([str(write_script(cwd, text))], cwd, environment(profile, **variables), **options)


def run_forked(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> Outcome:
    """Run ``text`` to its end as a script that begins after the import of torch."""
    return finish(start_forked(cwd, text, profile, **options), cwd)


def start_without_torch(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> ForkedProgram:
    """Start ``text`` as a script in a fork without torch, in its own process group."""
    return start_forked(cwd, text, profile, has_torch=False, **options)


def run_without_torch(cwd: Path, text: str, profile: str | None = "1", **options: Any) -> Outcome:
    """Run ``text`` to its end as a script in a fork without torch."""
    return finish(start_without_torch(cwd, text, profile, **options), cwd)


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for something that takes a moment."""
    until_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def wait_for(process: "subprocess.Popen[str] | ForkedProgram", line: str) -> str:
    """Read the script's stdout up to ``line`` and return what was read."""
    assert process.stdout is not None
    read = ""
    while not read.endswith(line + "\n"):
        part = process.stdout.readline()
        assert part, f"the script ended before it printed {line!r}: {read}"
        read += part
    return read


def command(cwd: Path, *words: str) -> Outcome:
    """Run ``training-profiler`` with ``words`` in this process, as if it had been started in ``cwd``.

    An interpreter of its own takes half a second; tests/system/test_commands.py starts one for each command.
    """
    stderr = io.StringIO()
    # A file, like that of a process: its width follows COLUMNS.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout, chdir(cwd), patch.dict(os.environ, COLUMNS="1000"):
        with redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                status = main(words)
            except SystemExit as end:  # of argparse
                status = int(end.code or 0)
        stdout.seek(0)
        return Outcome(status, stdout.read(), stderr.getvalue(), cwd)


def report_command(cwd: Path, *words: str) -> Outcome:
    """Run ``training-profiler report`` with ``words`` in this process."""
    return command(cwd, "report", *words)
