"""Folders of ours that stay open. Whoever owns the folder around one can put a link in its place.

Files in such a folder are found through its descriptor, whatever its path leads to by now. Where the system cannot do
that, as on Windows, and in all other folders, the path counts.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.safety.descriptors import Descriptor, identity, raised

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
