"""Child processes that measure: the profiler's switch is read at import, so each state needs a process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SWITCH = "RECTIFIED_FLOW_PROFILE"


def environment(is_on: bool, folder: str) -> dict[str, str]:
    """Return this process's environment with profiling on, its runs in ``folder``, or with it off."""
    left_out = (SWITCH, "PYTHONDONTWRITEBYTECODE")  # installed packages have their bytecode, as torch has
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    if is_on:
        kept |= {SWITCH: "1", f"{SWITCH}_DIR": folder, f"{SWITCH}_STREAM": "stderr"}
    return kept


def result_of(module: str, *arguments: str, is_on: bool, sinks: str = "") -> Any:
    """Return what ``python -m module arguments`` prints to stdout, read as JSON; blocks until it ends.

    ``sinks`` are the trackers that get metrics, as their variable has them.

    Raises:
        RuntimeError: the child failed; the message ends with what it wrote.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", module, *arguments]
        variables = environment(is_on, folder) | ({f"{SWITCH}_SINKS": sinks} if sinks else {})
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def cpu_s_of(command: list[str], variables: Mapping[str, str]) -> float:
    """Return the CPU time of ``command``, user and system, in s; blocks until it ends.

    Raises:
        RuntimeError: the command failed.
    """
    process = subprocess.Popen(command, env=variables, cwd=ROOT)
    return wait_cpu_s(process)


def wait_cpu_s(process: "subprocess.Popen[Any]") -> float:
    """Return the CPU time of a started child, user and system, in s; blocks until it ends.

    Raises:
        RuntimeError: the child failed.
    """
    # Popen.wait would not say what this child alone has used.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime
