"""Which launch a process is of: what its other ranks, and later attempts of it, have in common with it."""

import os
import socket
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from training_profiler.settings import Launch

SAME_START_S: Final = 2.0  # the start of a process is told by the clock of the wall, which may have been set since


class LaunchId(NamedTuple):
    """What tells the processes of one launch from those of others. None is unknown."""

    host: str | None = None
    torchrun: str | None = None  # the id that its user gave it, where that is not the same for all
    job: str | None = None  # of SLURM, and the step of it
    parent_pid: int | None = None
    parent_start_s: float | None = None  # by the host's wall clock


def this_launch(launch: Launch) -> LaunchId:
    """Return the launch of this process."""
    return LaunchId(socket.gethostname(), launch.run_id, launch.job, *_parent())


def _parent() -> tuple[int | None, float | None]:
    try:
        import psutil  # here, for a report needs none of it

        parent = psutil.Process(os.getppid())
        return parent.pid, parent.create_time()
    except Exception:  # it has ended, or belongs to somebody else: psutil.Error is no built-in one
        return None, None


def launch_from_data(data: object) -> LaunchId:
    """Return the launch that ``_asdict`` was called on; of what is not of that form, nothing is known."""
    told = data if isinstance(data, Mapping) else {}
    kinds: dict[str, Any] = {"host": str, "torchrun": str, "job": str, "parent_pid": int, "parent_start_s": float}
    return LaunchId(**{name: told[name] for name, kind in kinds.items() if isinstance(told.get(name), kind)})


def is_same_launch(one: LaunchId, other: LaunchId) -> bool | None:
    """Return whether two processes are of the same launch; None where that cannot be told."""
    if one.torchrun is not None and other.torchrun is not None:
        return one.torchrun == other.torchrun
    if one.host == other.host and one.parent_start_s is not None and other.parent_start_s is not None:
        is_same_start = abs(one.parent_start_s - other.parent_start_s) <= SAME_START_S
        return one.parent_pid == other.parent_pid and is_same_start
    if one.job is not None and other.job is not None:
        return one.job == other.job
    return None


def is_surely_another(one: LaunchId, other: LaunchId) -> bool:
    """Return whether two processes that say the same run are of different launches for all that.

    On one host they may well have different parents: two agents of torchrun, or a wrapper around each rank.
    """
    pairs = ((one.torchrun, other.torchrun), (one.job, other.job))
    return any(mine is not None and its is not None and mine != its for mine, its in pairs)


def is_running(host: object, pid: object, began_s: float) -> bool | None:
    """Return whether the process ``pid`` of ``host`` that was there at ``began_s`` still is; None where unknown."""
    if host != socket.gethostname() or not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return None
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        is_dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not is_dead and process.create_time() <= began_s + SAME_START_S  # else another has its number now
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OverflowError, ValueError):
        return None
