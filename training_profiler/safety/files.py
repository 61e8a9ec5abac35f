"""Opens, reads and replaces files in folders that others can write: nothing there makes us wait or redirects us.

A pipe, a device, a socket, a folder and a link are not files here; ``OSError`` says so in a few words.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from training_profiler.safety.own_folder import FilePlace, place_of

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
        with open(path, "wb") as stream:
            stream.write(data)
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
