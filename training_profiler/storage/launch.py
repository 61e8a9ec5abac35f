"""Identifies the launch of a process, which its other ranks and later attempts share."""

import os
import socket
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from training_profiler.settings.settings import Launch

SAME_START_S: Final = 2.0  # start times are on the wall clock, which may have been set since


class LaunchId(NamedTuple):
    """Identifies the processes of one launch. None means unknown."""

    host: str | None = None
    torchrun: str | None = None  # the run id set by the user, if it is not the default
    job: str | None = None  # of SLURM, with its step
    parent_pid: int | None = None
    parent_start_s: float | None = None  # by the host's wall clock


def this_launch(launch: Launch) -> LaunchId:
    """Return the launch of this process."""
    return LaunchId(socket.gethostname(), launch.run_id, launch.job, *_parent())


def _parent() -> tuple[int | None, float | None]:
    try:
        import psutil  # imported here, because a report does not need it

        parent = psutil.Process(os.getppid())
        return parent.pid, parent.create_time()
    except Exception:  # it has ended or belongs to another user; psutil.Error is not a built-in
        return None, None


def launch_from_data(data: object) -> LaunchId:
    """Return the launch that ``_asdict`` was called on; values of another form are unknown."""
    values = data if isinstance(data, Mapping) else {}
    kinds: dict[str, Any] = {"host": str, "torchrun": str, "job": str, "parent_pid": int, "parent_start_s": float}
    return LaunchId(**{name: values[name] for name, kind in kinds.items() if isinstance(values.get(name), kind)})


def is_same_launch(launch: LaunchId, other: LaunchId) -> bool | None:
    """Return whether two processes are of the same launch; None if unknown."""
    if launch.torchrun is not None and other.torchrun is not None:
        return launch.torchrun == other.torchrun
    if launch.host == other.host and launch.parent_start_s is not None and other.parent_start_s is not None:
        is_same_start = abs(launch.parent_start_s - other.parent_start_s) <= SAME_START_S
        return launch.parent_pid == other.parent_pid and is_same_start
    if launch.job is not None and other.job is not None:
        return launch.job == other.job
    return None


def is_surely_another(launch: LaunchId, other: LaunchId) -> bool:
    """Return whether two processes with the same run name are certainly of different launches.

    Different parents on one host prove nothing: there may be two agents of torchrun, or a wrapper around each rank.
    """
    pairs = ((launch.torchrun, other.torchrun), (launch.job, other.job))
    return any(mine is not None and its is not None and mine != its for mine, its in pairs)


def is_running(host: object, pid: object, began_s: float) -> bool | None:
    """Return whether the process ``pid`` that ran on ``host`` at ``began_s`` still runs; None if unknown."""
    if host != socket.gethostname() or not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return None
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        is_dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not is_dead and process.create_time() <= began_s + SAME_START_S  # else another process has its id now
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OverflowError, ValueError):
        return None
