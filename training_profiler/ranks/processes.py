"""Whether the process of another rank on this machine still runs: rank 0 does not wait for one that was killed."""

import os
import re
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_PROCESS: Final = re.compile(r"(\d{1,10})@(.{1,200})")
_CANNOT_ANSWER: Final = "TtZXx"  # stopped, traced, zombie, dead (proc_pid_stat(5))


def this_process(proc: Path = PROC) -> str:
    """Return what identifies this process to others on this machine; "" where that is unknown."""
    machine = _machine(proc)
    return f"{os.getpid()}@{machine}" if machine else ""


def cannot_answer(process: str, proc: Path = PROC) -> bool:
    """Return whether ``process``, as ``this_process`` returned it, has ended or is stopped; False if unknown."""
    match = _PROCESS.fullmatch(process)
    if match is None or match[2] != _machine(proc):
        return False
    try:
        state = (proc / match[1] / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except (OSError, IndexError):
        return False
    return state in _CANNOT_ANSWER


def _machine(proc: Path) -> str:
    """Return what processes share that see each other's ids: the machine since it booted, and the container."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(proc / 'self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux, or no /proc
        return ""
