"""Ends a session before its trainings fill the disk: each of several may write checkpoints at the same time."""

import shutil
from collections.abc import Callable
from pathlib import Path

from training_profiler.base.errors import ProfilerError
from training_profiler.base.units import bytes_text
from training_profiler.trials.isolation.isolation import SHARE_OF_FREE_SPACE


class DiskSpaceError(ProfilerError):
    """The trainings of a session write more than the disk has room for."""


def free_bytes_of(folder: Path) -> int:
    """Return the free space of the disk that has a folder."""
    return shutil.disk_usage(folder).free


class DiskWatch:
    """Watches the free space where trainings write; ``check`` is called while any of them runs."""

    def __init__(self, folder: Path, free_bytes: Callable[[Path], int] = free_bytes_of) -> None:
        self._folder, self._free_bytes = folder, free_bytes
        self._first_bytes = free_bytes(folder)
        # A file of the most that a trial may write always fits.
        self._least_bytes = int(SHARE_OF_FREE_SPACE * self._first_bytes)

    def check(self) -> None:
        """Return while there is enough space.

        Raises:
            DiskSpaceError: only as much is left as a single file may take.
        """
        free_bytes = self._free_bytes(self._folder)
        if free_bytes < self._least_bytes:
            raise DiskSpaceError(
                f"stopped before the disk is full: {self._folder} had {bytes_text(self._first_bytes)} free, and has "
                f"{bytes_text(free_bytes)}; TMPDIR chooses another disk"
            )
