"""Numbers of descriptors: ours stay out of the way of the program's."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

LOWEST: Final = 500  # above what programs close when they become daemons, and below usual limits
LOWEST_WITH_A_LIMIT: Final = 3  # where the limit is lower: 0 to 2 are the standard streams, also closed ones


def raised(descriptor: int) -> int:
    """Return the same open file under a high number, and close ``descriptor``; return ``descriptor`` if that fails."""
    try:
        import fcntl  # not on Windows
    except ImportError:
        return descriptor
    for lowest in (LOWEST, LOWEST_WITH_A_LIMIT):
        try:
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
        os.close(descriptor)
        return high
    return descriptor


class NotOursError(OSError):
    """What was opened is gone: its descriptor, or its path, stands for something else."""


class Descriptor(NamedTuple):
    """A descriptor of ours that stays open, with the file that it stood for when it was opened."""

    number: int
    file: tuple[int, int]  # device and inode

    def is_ours(self) -> bool:
        """Return whether the number still stands for that file: the program may have closed it and got it again."""
        with suppress(OSError):
            return identity(self.number) == self.file
        return False

    def opened(self, path: str | Path, flags: int, folder: int | None = None) -> Self:
        """Return the same; opened again at ``path``, in an open folder if there is one, if the program has closed it.

        Raises:
            OSError: it cannot be opened, or something else is there by now.
        """
        if self.is_ours():
            return self
        again = self._replace(number=raised(os.open(path, flags, dir_fd=folder)))
        if not again.is_ours():
            os.close(again.number)
            raise NotOursError(f"{path} is no longer what was opened")
        return again

    def close(self) -> None:
        """Close it, unless the number is the program's by now."""
        if self.is_ours():
            os.close(self.number)


def identity(descriptor: int) -> tuple[int, int]:
    """Return device and inode of an open file.

    Raises:
        OSError: the descriptor is closed.
    """
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
