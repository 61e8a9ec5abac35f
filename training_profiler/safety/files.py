"""Opens, reads and replaces files in folders that others can write: nothing there makes us wait or redirects us.

A pipe, a device, a socket, a folder and a link are not files here; ``OSError`` says so in a few words.

Folders and files of ours stay open, in a process whose program may close our descriptors and get their numbers. Whoever
owns the folder around one can put a link in its place. So files in such a folder are found through its descriptor,
whatever its path leads to by now. Where the system cannot do that, as on Windows, and in all other folders, the path
counts.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

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
    """Appends to a regular file, and only while the descriptor stands for it; ``is_new`` is whether it must not exist.

    Programs that become daemons close all descriptors, and their next files get the numbers. So the identity of the
    file is compared before each write. If the number stands for another file, it is left alone, and the path is
    opened again.

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


_READ: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_WRITE_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)
CHUNK: Final = 1 << 20
# A file of lines is a journal: its lines have hundreds of bytes, and reading millions of tiny ones takes minutes.
FREE_LINES: Final = 100_000
LEAST_LINE_BYTES: Final = 100
_LINE: Final = re.compile(rb"\S[^\n]*")


class NotRegularFileError(OSError):
    """Something that is not a file, or too large to be one of ours."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)


def open_file(path: str | Path, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading, without waiting for anyone; only where ``follow``, it may be a link.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    with place_of(path) as place:
        status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=follow)
        _check(status)  # opening a device can have effects
        descriptor = os.open(place.name, _READ | (0 if follow else _NO_LINK), dir_fd=place.folder)
    try:
        _check(os.fstat(descriptor))  # it may be another file by now
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "a device")
        raise NotRegularFileError(f"it is {kind}, not a file")


def read_file(path: str | Path, most_bytes: int, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most ``most_bytes``.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger.
    """
    with open_file(path, follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise NotRegularFileError(f"it is larger than {most_bytes} bytes")
        return file.read(size)  # reading takes as much memory as it is asked for


def may_follow(path: Path) -> bool:
    """Return whether a link at ``path`` can be trusted: not in a folder that others can write."""
    try:
        return not os.stat(path.parent).st_mode & _OTHERS_WRITE
    except OSError:
        return False


def is_readable(path: Path) -> bool:
    """Return whether ``path`` is a regular file, or a trusted link to one."""
    try:
        return stat.S_ISREG(os.stat(path, follow_symlinks=may_follow(path)).st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Return whether ``path`` is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def make_inner_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder in a folder that others may write to; a link there is not followed.

    Raises:
        OSError: it cannot be made, or something else is in its place.
    """
    with place_of(path) as place:
        with suppress(FileExistsError):
            os.mkdir(place.name, mode, dir_fd=place.folder)
        mode = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise NotADirectoryError(errno.ENOTDIR, f"{path.name} is a link")
        if not stat.S_ISDIR(mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path.name)


class Lines:
    """Cuts what is read of a file, piece by piece, into lines; blank ones are left out, at no cost of their own."""

    def __init__(self, most_bytes: int) -> None:
        self.rest = b""  # of a line without its end
        self._most_bytes = most_bytes
        self._skips = False  # to the end of a line that is too long
        self._read = self._lines = 0

    def cut(self, piece: bytes) -> Iterator[bytes | None]:
        """Yield the lines that end in the next piece; None for a line that is too long.

        Raises:
            NotRegularFileError: most of the file is tiny lines.
        """
        self._read += len(piece)
        if self._skips:
            _, newline, piece = piece.partition(b"\n")
            self._skips = not newline
        whole, newline, rest = piece.rpartition(b"\n")
        whole, self.rest = (self.rest + whole, rest.lstrip()) if newline else (b"", (self.rest + rest).lstrip())
        for line in _LINE.finditer(whole):
            self._lines += 1
            if self._lines > FREE_LINES + self._read // LEAST_LINE_BYTES:
                raise NotRegularFileError("most of its lines are tiny")
            yield line[0] if len(line[0]) <= self._most_bytes else None
        if len(self.rest) > self._most_bytes:
            self.rest, self._skips = b"", True
            yield None


def lines_of(file: BinaryIO, most_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines of a file without line breaks and blank lines; None for a line of more than ``most_bytes``.

    Raises:
        NotRegularFileError: most of the file is tiny lines.
    """
    lines = Lines(most_bytes)
    while piece := file.read(CHUNK):
        yield from lines.cut(piece)
    if lines.rest:
        yield lines.rest


def replace_file(path: Path, data: bytes, draft: Path | None = None) -> None:
    """Write a file in one piece: a reader finds the old content or the new one. A link there is replaced, not followed.

    A device is never replaced. It is written first at ``draft`` in the same folder, by default its name with ``.part``.

    Raises:
        OSError: it cannot be written.
    """
    with replaced_file(path, draft) as descriptor, os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)


@contextmanager
def replaced_file(path: Path, draft: Path | None = None) -> Iterator[int]:
    """Let the content of a file be written to a descriptor; at the end, it takes the place of the file.

    The arguments are those of ``replace_file``. An exception leaves the old file.
    """
    with place_of(path) as place:
        part = place.beside(draft.name if draft else f"{path.name}.part")
        if _is_device(place):
            raise NotRegularFileError("it is a device, not a file")
        try:
            descriptor = os.open(part, _WRITE_NEW | _NO_LINK, 0o666, dir_fd=place.folder)
        except FileExistsError:  # left over, or planted
            os.unlink(part, dir_fd=place.folder)
            descriptor = os.open(part, _WRITE_NEW | _NO_LINK, 0o666, dir_fd=place.folder)
        try:
            yield descriptor
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=place.folder)
            raise
        finally:
            os.close(descriptor)
        os.replace(part, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)


def _is_device(place: FilePlace) -> bool:
    try:
        mode = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
    except OSError:  # there is nothing, most of the time
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def write_output(path: Path, data: bytes) -> None:
    """Write what the user asked for to the place that the user named: a file in one piece, or a device or a pipe.

    Raises:
        OSError: it cannot be written.
    """
    if _is_stream(path):
        path.write_bytes(data)
    else:
        replace_file(path, data)


def _is_stream(path: Path) -> bool:
    """Return whether ``path`` stands for an open file, a device or a pipe, such as /dev/stdout and /dev/null."""
    folders = Path(os.path.abspath(path)).parts[1:3]
    if folders[:1] in (("dev",), ("proc",)) and folders[1:] != ("shm",):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
