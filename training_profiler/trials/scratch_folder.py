"""The folder for everything that the trainings of a session write."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from training_profiler.trials.isolation.isolation import finish_trial

PREFIX: Final = "training-profiler-try-"
LOCK: Final = "lock"  # held as long as the session lives: the system lets go of it also if that is killed


@contextlib.contextmanager
def scratch_folder(top: Path) -> Iterator[Path]:
    """Make a folder in ``top`` and remove it at the end; also remove those of sessions that were killed."""
    with contextlib.suppress(OSError):
        _remove_left_behind(top)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=top))
    descriptor = _hold(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _hold(folder: Path) -> int | None:
    new = folder / (LOCK + "-new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(descriptor):
        os.close(descriptor)
        return None
    new.rename(folder / LOCK)  # no other session finds a lock that is not held yet
    return descriptor


def _lock(descriptor: int) -> bool:
    """Return whether the lock of this open file is ours now; no process's on systems without such locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _remove_left_behind(top: Path) -> None:
    for folder in top.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if _is_our_folder(folder):
                descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    if _lock(descriptor):
                        _remove(folder)
                finally:
                    os.close(descriptor)


def _is_our_folder(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _remove(folder: Path) -> None:
    for trial in folder.iterdir():
        finish_trial(trial)
    shutil.rmtree(folder, ignore_errors=True)
