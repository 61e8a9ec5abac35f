"""A file of ours that stays open, in a process whose program may close our descriptor and get its number."""

import os
import stat
from pathlib import Path
from typing import Final

from training_profiler.safety.descriptors import Descriptor, NotOursError, identity, raised
from training_profiler.safety.own_folder import place_of

FLAGS: Final = (
    os.O_WRONLY
    | os.O_APPEND
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)  # a link in place of our file leads to a file of another user
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO in place of our file would wait for a reader
)


class OwnFile:
    """Appends to a regular file, and only while the descriptor stands for it.

    Programs that become daemons close all descriptors, and their next files get the numbers. So the identity of the
    file is compared before each write. If the number stands for another file, it is left alone, and the path is
    opened again.

    Args:
        path: of the file.
        is_new: whether the file must not exist yet.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """

    def __init__(self, path: Path, is_new: bool = False) -> None:
        self.path = path
        self.reopened = 0  # how often the program had closed the descriptor
        flags = FLAGS | os.O_CREAT | (os.O_EXCL if is_new else 0)
        with place_of(path) as place:
            number = raised(os.open(place.name, flags, 0o666, dir_fd=place.folder))
        self._descriptor: Descriptor | None = Descriptor(number, identity(number))
        if not stat.S_ISREG(os.fstat(number).st_mode):
            self.close()
            raise NotOursError(f"{path} is not a regular file")

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self._checked()).st_size

    def append(self, data: bytes) -> None:
        """Append ``data``; a full disk takes a part of it first, then raises.

        Raises:
            OSError: the file cannot be written, or has been replaced by another.
        """
        while data:
            data = data[os.write(self._checked(), data) :]

    def moved(self, path: Path) -> None:
        """Look for the file at ``path`` from now on: its folder has another name."""
        self.path = path

    def close(self) -> None:
        """Close the descriptor, unless its number stands for another file by now."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.close()

    def _checked(self) -> int:
        descriptor = self._descriptor
        if descriptor is None:
            raise NotOursError(f"{self.path} is closed")
        if not descriptor.is_ours():
            self._descriptor = None  # not closed: it is the program's
            with place_of(self.path) as place:
                self._descriptor = descriptor = descriptor.opened(place.name, FLAGS, place.folder)
            self.reopened += 1
        return descriptor.number
