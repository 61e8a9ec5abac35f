"""Folders and files of ours that stay open, in a process whose program may close our descriptors and get their numbers.

Whoever owns the folder around one can put a link in its place. Files in such a folder are found through its descriptor,
whatever its path leads to by now. Where the system cannot do that, as on Windows, and in all other folders, the path
counts.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


_FLAGS: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))
_open: Final[dict[Path, Descriptor]] = {}


class FilePlace(NamedTuple):
    """A file by its name in an open folder; by its path where ``folder`` is None."""

    name: str
    folder: int | None
    given: Path

    def beside(self, name: str) -> str:
        """Return another file of its folder."""
        return name if self.folder is not None else str(self.given.with_name(name))

    @property
    def path(self) -> Path:
        """The path for libraries that take no descriptor: through it, where the system can."""
        folder = Path(f"/proc/self/fd/{self.folder}")
        return self.given if self.folder is None or not folder.is_dir() else folder / self.name


def keep_open(folder: Path) -> None:
    """Keep a folder open until ``let_go``.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    if os.open in os.supports_dir_fd and not (folder in _open and is_in_place(folder)):
        let_go(folder)
        number = raised(os.open(folder, _FLAGS))
        _open[folder] = Descriptor(number, identity(number))


def let_go(folder: Path | None) -> None:
    """Close a folder that was kept open."""
    descriptor = None if folder is None else _open.pop(folder, None)
    if descriptor is not None:
        descriptor.close()


def rename_open(folder: Path, path: Path) -> None:
    """Rename a folder that stays open."""
    folder.rename(path)
    if folder in _open:
        _open[path] = _open.pop(folder)


def is_in_place(folder: Path) -> bool:
    """Return whether the path of an open folder still is that of the folder, and no link."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return folder not in _open or (status.st_dev, status.st_ino) == _open[folder].file


@contextmanager
def place_of(path: str | Path) -> Iterator[FilePlace]:
    """Find a file, for as long as the context lasts. No folder on the way from an open one to it may be a link.

    Raises:
        OSError: there is no such folder, or the program has closed the open one and another is in its place.
    """
    folder = next((parent for parent in Path(path).parents if parent in _open), None) if _open else None
    if folder is None:
        yield FilePlace(os.fspath(path), None, Path(path))
        return
    _open[folder] = descriptor = _open[folder].opened(folder, _FLAGS)
    *inner, name = Path(path).relative_to(folder).parts
    with ExitStack() as closing:
        for each in inner:
            number = raised(os.open(each, _FLAGS, dir_fd=descriptor.number))
            descriptor = Descriptor(number, identity(number))
            closing.callback(descriptor.close)
        yield FilePlace(name, descriptor.number, Path(path))


def remove(path: Path) -> None:
    """Remove a file, a link or an empty folder.

    Raises:
        OSError: it cannot be removed.
    """
    with place_of(path) as place:
        mode = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
        (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(place.name, dir_fd=place.folder)


def rename_file(path: Path, name: str) -> None:
    """Give a file another name in its folder, also that of an existing file.

    Raises:
        OSError: it cannot be renamed.
    """
    with place_of(path) as place:
        os.replace(place.name, place.beside(name), src_dir_fd=place.folder, dst_dir_fd=place.folder)


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
