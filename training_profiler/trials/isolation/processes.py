"""Ends the processes of a trial that would live on."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from training_profiler.trials.isolation.plan import TRIAL

GONE_WITHIN_S: Final = 10.0  # a killed process that still waits for a disk is reported


def end_descendants() -> None:
    """Kill all descendants of this process, which adopts orphans."""
    while True:
        _kill(psutil.Process().children(recursive=True))
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return


def end_trial(folder: Path) -> list[str]:
    """Kill the processes of the trial whose plan is in ``folder``, wherever they were started.

    Returns:
        The names of those that are still alive.
    """
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        alive = [process for process in psutil.process_iter() if _belongs_to(process, folder)]
        if not alive or time.monotonic() > deadline:
            return [_name(process) for process in alive]
        for process in alive:
            with suppress(psutil.Error):
                _kill(process.children(recursive=True))
        _kill(alive)
        psutil.wait_procs(alive, timeout=1)


def _belongs_to(process: psutil.Process, folder: Path) -> bool:
    try:
        return bool(process.environ().get(TRIAL) == str(folder) and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):  # of another user, or gone
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return str(process.pid)
