"""The rank of this process."""

import multiprocessing
import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from training_profiler.model.ranks import RankId
from training_profiler.settings.settings import Settings

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


def process_groups() -> Any:
    """Return torch's module of process groups where the program has one; None without."""
    distributed = sys.modules.get("torch.distributed")
    with suppress(AttributeError, ValueError, RuntimeError):  # it is being imported on another thread
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed
    return None


class Rank:
    """This process's place in a distributed training: from torch's process group if there is one, else the launcher."""

    def __init__(self, of_launcher: RankId, is_certain: bool = True) -> None:
        self.who = of_launcher
        self.is_certain = is_certain  # False: no launcher has set the rank, and a process group may
        self.has_group = False  # a process group was detected

    def detect_process_group(self) -> None:
        """Read the process group while it exists: at the end of a program it may be gone."""
        distributed = process_groups()
        with suppress(AttributeError, ValueError, RuntimeError):  # the group is being destroyed
            if distributed is None:
                return
            rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
            self.has_group = self.is_certain = True
            if (rank, world_size) != (self.who.rank, self.who.world_size):
                self.who = replace(self.who, rank=rank, world_size=world_size)

    def is_primary(self) -> bool:
        """Return whether this is rank 0, which reports."""
        self.detect_process_group()
        return self.who.rank == 0

    def is_one_of_many(self) -> bool:
        """Return whether the training has other ranks."""
        return self.who.world_size > 1


def rank_of(settings: Settings) -> Rank:
    """Return the rank that the launcher gave this process. A process group may correct it later."""
    launch = settings.launch
    return Rank(
        RankId(
            settings.rank,
            (launch.is_torchrun and launch.world_size) or 1,  # with other launchers the process group must confirm it
            socket.gethostname(),
            launch.node,
            launch.local_rank,
            launch.attempt,
        ),
        is_certain=launch.is_torchrun or multiprocessing.parent_process() is None,
    )
