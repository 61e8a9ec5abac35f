"""Ends the processes of a trial that would live on."""

import os
import signal
import time
from pathlib import Path

import psutil

from training_profiler.trials.isolation.plan import TRIAL

GONE_WITHIN_S = 10.0  # a killed process that still waits for a disk is reported


def end_descendants() -> list[str]:
    """Kill all descendants of this process, which adopts orphans; return the names of those that were alive."""
    names: dict[int, str] = {}
    while True:
        for process in psutil.Process().children(recursive=True):
            _kill(process, names)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return list(names.values())


def end_trial(folder: Path) -> tuple[list[str], list[str]]:
    """Kill the processes of the trial whose plan is in ``folder``, wherever they were started.

    Returns:
        The names of those that were alive, and of those that still are.
    """
    names: dict[int, str] = {}
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        alive = [process for process in psutil.process_iter() if _belongs_to(process, folder)]
        if not alive or time.monotonic() > deadline:
            return list(names.values()), [_name(process) for process in alive]
        for process in alive:
            for one in (*_children(process), process):
                _kill(one, names)
        psutil.wait_procs(alive, timeout=1)


def _belongs_to(process: psutil.Process, folder: Path) -> bool:
    try:
        return bool(process.environ().get(TRIAL) == str(folder) and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):  # of another user, or gone
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _kill(process: psutil.Process, names: dict[int, str]) -> None:
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            names.setdefault(process.pid, _name(process))
        process.send_signal(signal.SIGKILL)
    except psutil.Error:
        pass


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return str(process.pid)
