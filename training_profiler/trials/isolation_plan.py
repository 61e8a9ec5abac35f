"""What the launcher, the processes of a trial and the caller agree on, and how the processes are ended."""

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

TRIAL: Final = "TRAINING_PROFILER_TRIAL"  # variable of every process of a trial: the folder of its plan
FOLDER: Final = "trial"  # of the plan's own files
SHARED_MEMORY: Final = "shared_memory.txt"  # names below /dev/shm that the trial may leave behind
GONE_WITHIN_S: Final = 10.0  # a killed process that still waits for a disk is reported

NAMESPACES: Final = "namespaces"
SHARED_PROCESSES: Final = "namespaces, without one of processes"
GUARDED: Final = "copy, guarded by the kernel"
UNGUARDED: Final = "copy"
WAYS: Final = (NAMESPACES, SHARED_PROCESSES, GUARDED)  # the strongest first
WAYS_WITH_WRITES: Final = (NAMESPACES, SHARED_PROCESSES, UNGUARDED)  # if the user allows writing outside of the copy


class Plan(NamedTuple):
    """A trial's way and folders."""

    way: str
    scratch: str
    used: tuple[str, ...]  # folders that the trial probably writes to
    layers_in_memory: bool
    most_file_bytes: int
    temporary: str = ""  # folder for temporary files, where the usual one cannot be used

    @property
    def is_copy(self) -> bool:
        """Whether the program runs in a copy of its folder, because the kernel gives no namespaces."""
        return self.way in (GUARDED, UNGUARDED)

    @property
    def folder(self) -> Path:
        """The folder of the plan's own files."""
        return Path(self.scratch, FOLDER)

    @property
    def layers(self) -> Path:
        """The folder of what the trial writes."""
        return Path(self.scratch, "layers")

    @property
    def results(self) -> Path:
        """The folder of what the trial hands to the caller."""
        return Path(self.scratch, "results")

    def save(self) -> None:
        """Write the plan for the trial's processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps(self._asdict()), encoding="utf-8")


def load_plan(folder: str) -> Plan:
    """Return the plan that was saved in its folder."""
    fields = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    return Plan(**{**fields, "used": tuple(fields["used"])})


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
