"""The folder through which workers hand their figures to the process that trains: one small file a worker.

The folder is named after the process that trains, which a worker knows with every way to start one. Only its owner can
write in it. A worker replaces its file; the training's process reads it and removes the folder at the end.
"""

import os
import re
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from training_profiler.model.loader_workers import WorkerSums, fit_sums
from training_profiler.safety.files import read_file, replace_file

MOST_FILE_BYTES: Final = 1 << 18  # 30 lines of long paths take a tenth
LEFT_OVER_S: Final = 86_400.0  # without a change, of a process that was killed
_PREFIX: Final = "training_profiler-workers"
_FILE: Final = re.compile(r"\d{1,10}\.json(\.part)?")


class Mailbox:
    """The folder of one training's process, seen from there or from a worker.

    Args:
        pid: of the process that trains.
        parent: the folder for temporary files.
    """

    def __init__(self, pid: int, parent: str | None = None) -> None:
        self.folder = Path(parent or tempfile.gettempdir()) / f"{_PREFIX}-{_user()}-{pid}"

    def make(self) -> bool:
        """Make the folder, empty; return whether workers may write in it."""
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            _empty(self.folder)  # left over by a process of the same number
        except OSError:
            return False
        return self.is_safe()

    def is_safe(self) -> bool:
        """Return whether the folder is there, and this user's alone."""
        return _is_ours(self.folder)

    def write(self, worker: int, sums: WorkerSums) -> None:
        """Replace what this worker, by its process number, has handed over.

        Raises:
            OSError: it cannot be written.
        """
        replace_file(self.folder / f"{worker}.json", msgspec.json.encode(sums))

    def read(self, worker: int) -> WorkerSums | None:
        """Return what a worker has handed over last; None if there is nothing that can be used."""
        try:
            data = read_file(self.folder / f"{worker}.json", MOST_FILE_BYTES)
            return fit_sums(msgspec.json.decode(data, type=WorkerSums))
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        """Remove the folder and what workers wrote in it."""
        _remove(self.folder)

    def remove_left_over(self) -> None:
        """Remove folders of this user's trainings that were killed."""
        with suppress(OSError):
            for folder in self.folder.parent.glob(f"{_PREFIX}-{_user()}-*"):
                if time.time() - os.lstat(folder).st_mtime > LEFT_OVER_S:
                    _remove(folder)


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def _is_ours(folder: Path) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    is_private = status.st_uid == _user() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(status.st_mode) and is_private


def _empty(folder: Path) -> None:
    if _is_ours(folder):
        with suppress(OSError):
            for name in os.listdir(folder):
                if _FILE.fullmatch(name):
                    (folder / name).unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    _empty(folder)
    with suppress(OSError):  # not ours, or it holds files of others
        folder.rmdir()
