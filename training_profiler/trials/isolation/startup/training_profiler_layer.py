"""The file system as a trial finds it: the user's files, and over them a layer of what the trial has written.

It works with paths alone, so all processes of the trial share it through the layer's folder. It uses the functions of
``os`` as they were when this module was imported.
"""

import errno
import hashlib
import os
import stat
import time
from contextlib import suppress
from posixpath import join, normpath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_LINKS = 40  # as in Linux, before it reports a loop
SETTLED_NS = 20_000_000  # a folder changed longer ago has a newer time stamp at its next change

_access, _chmod, _close, _getcwd, _listdir, _lstat = os.access, os.chmod, os.close, os.getcwd, os.listdir, os.lstat
_mkdir, _open, _readlink, _rename, _rmdir = os.mkdir, os.open, os.readlink, os.rename, os.rmdir
_link, _scandir, _stat, _symlink, _unlink, _utime = os.link, os.scandir, os.stat, os.symlink, os.unlink, os.utime
_read, _write = os.read, os.write
_CHUNK = 1 << 20


class Layer:
    """Finds the real file of a path, and makes the one to write.

    Args:
        folder: of the layer: ``written`` has the files, ``removed`` the paths that the trial has removed.
        passed: folders whose files are the real ones.
        most_bytes: the largest file that is copied.
    """

    def __init__(self, folder: str, passed: "Iterable[str]", most_bytes: int) -> None:
        self.written = folder + "/written"
        self._removed_folder = folder + "/removed"
        self._passed = (*passed, folder)
        self._most_bytes = most_bytes
        self._removed: dict[str, str] = {}  # by the name of its mark
        self._read_at_ns = -1
        for path in (self.written, self._removed_folder):
            os.makedirs(path, exist_ok=True)

    def passes(self, path: str) -> bool:
        """Return whether ``path``, absolute, is used as it is."""
        return any(path == top or path.startswith(top + "/") for top in self._passed)

    def current_folder(self) -> str:
        """Return the current folder by the name that the program knows."""
        return self.name_of(_getcwd())

    def name_of(self, real: str) -> str:
        """Return the program's name of a real file or folder."""
        if real == self.written:
            return "/"
        return real.removeprefix(self.written) if real.startswith(self.written + "/") else real

    def resolve(self, path: str, follow: bool = True) -> str:
        """Return ``path`` absolute and without links; ``follow`` says whether the last name may be one."""
        absolute = path if path.startswith("/") else join(self.current_folder(), path)
        if self.passes(normpath(absolute)):
            return absolute
        waiting = [name for name in reversed(absolute.split("/")) if name not in ("", ".")]
        found, links = "", 0
        while waiting:
            name = waiting.pop()
            if name == "..":
                found = found.rpartition("/")[0]
                continue
            candidate = f"{found}/{name}"
            link = self._link(candidate, path, bool(waiting)) if waiting or follow else None
            if link is None:
                found = candidate
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if link.startswith("/"):
                found = ""
            waiting += [part for part in reversed(link.split("/")) if part not in ("", ".")]
        return found or "/"

    def _link(self, name: str, path: str, leads_on: bool) -> "str | None":
        """Return where a link leads, and None for anything else; ``leads_on``: more of ``path`` follows."""
        real = self.real(name)
        try:
            mode = _lstat(real).st_mode
        except OSError as error:
            if leads_on:
                raise OSError(error.errno, error.strerror, path) from None
            return None
        if stat.S_ISLNK(mode):
            return _readlink(real)
        if leads_on and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return None

    def real(self, path: str) -> str:
        """Return the file of a resolved path, written by the trial or else the user's; a missing one if removed."""
        if self.passes(path):
            return path
        upper = self.written + path
        return upper if _exists(upper) or self.is_hidden(path) else path

    def find(self, path: str, follow: bool = True) -> str:
        """Return the real file of any path."""
        return self.real(self.resolve(path, follow))

    def is_hidden(self, path: str) -> bool:
        """Return whether the user's file at a resolved path was removed by the trial."""
        removed = self._removed_paths()
        while removed and path != "/":
            if path in removed:
                return True
            path = path.rpartition("/")[0] or "/"
        return False

    def to_write(self, path: str, copy: bool = True, follow: bool = True) -> str:
        """Return the file in the layer that stands for ``path``; its folder is there.

        Args:
            path: any path.
            copy: whether the content matters; otherwise an existing file begins empty, with its mode.
            follow: whether the last name may be a link.

        Raises:
            OSError: the user's file is too large to copy.
        """
        name = self.resolve(path, follow)
        real = self.real(name)
        if real != name or self.passes(name):
            if real != name:
                self._make_parents(name)
            return real
        if not _exists(name):
            self._make_parents(name)
            return self.written + name
        status = _lstat(name)
        regular = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if not regular or not _access(name, os.W_OK, follow_symlinks=False):
            return name  # a pipe or a device; or the user may not write it, which the system then says
        self._make_parents(name)
        self._copy(name, self.written + name, status, copy)
        return self.written + name

    def _make_parents(self, name: str) -> None:
        """Make the folders above ``name`` in the layer, as far as the program has them."""
        parent = name.rpartition("/")[0]
        if not parent or _exists(self.written + parent) or self.is_hidden(parent):
            return
        try:
            status = _stat(parent)
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            self._make_parents(parent)
            _make_folder(self.written + parent, status)

    def _copy(self, source: str, target: str, status: os.stat_result, content: bool) -> None:
        if stat.S_ISDIR(status.st_mode):
            _make_folder(target, status)
        elif stat.S_ISLNK(status.st_mode):
            _symlink(_readlink(source), target)
        elif not content:
            _close(_open(target, os.O_WRONLY | os.O_CREAT, 0o600))
            _chmod(target, stat.S_IMODE(status.st_mode))
        else:
            if status.st_size > self._most_bytes:
                message = f"a trial copies no file of more than {self._most_bytes} bytes before it changes it"
                raise OSError(errno.EFBIG, message, source)
            _copy_file(source, target, status)

    def copy_tree(self, name: str) -> None:
        """Copy a resolved path into the layer, with all below it."""
        real = self.real(name)
        if real == name:
            self.to_write(name, follow=False)
        if stat.S_ISDIR(_lstat(self.real(name)).st_mode):
            for entry in self.names(name):
                self.copy_tree(f"{name}/{entry}")

    def names(self, name: str) -> "list[str]":
        """Return the names in the folder at a resolved path."""
        upper = self.written + name
        if self.passes(name) or not (_exists(upper) or self._removed_paths()):
            return _listdir(name)
        found = dict.fromkeys(_listdir(upper)) if _exists(upper) else {}
        if not self.is_hidden(name):
            try:
                below = _listdir(name)
            except OSError:
                if not _exists(upper):
                    raise
                below = []
            prefix = name.rstrip("/") + "/"
            found.update(dict.fromkeys(one for one in below if one in found or not self.is_hidden(prefix + one)))
        elif not _exists(upper):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return list(found)

    def remove(self, name: str) -> None:
        """Remove a resolved path, which is a file or an empty folder, for the trial."""
        upper = self.written + name
        if _exists(upper):
            (_rmdir if stat.S_ISDIR(_lstat(upper).st_mode) else _unlink)(upper)
        self.hide(name)

    def hide(self, name: str) -> None:
        """Mark the user's file at a resolved path, and all below it, as removed."""
        if not _exists(name) or self.is_hidden(name):
            return
        mark = hashlib.sha1(os.fsencode(name), usedforsecurity=False).hexdigest()
        with suppress(FileExistsError):  # by another process
            _symlink(name, f"{self._removed_folder}/{mark}")
        self._removed = {**self._removed, mark: name}
        self._read_at_ns = -1

    def move(self, source: str, target: str) -> None:
        """Rename a resolved path, replacing what is at ``target``."""
        _lstat(self.real(source))  # it has to be there
        if source == target:
            return
        for inner, outer, number in ((target, source, errno.EINVAL), (source, target, errno.ENOTEMPTY)):
            if inner.startswith(outer + "/"):
                raise OSError(number, os.strerror(number), source, None, target)
        is_folder = stat.S_ISDIR(_lstat(self.real(source)).st_mode)
        if _exists(self.real(target)):
            if stat.S_ISDIR(_lstat(self.real(target)).st_mode) != is_folder:
                number = errno.ENOTDIR if is_folder else errno.EISDIR
                raise OSError(number, os.strerror(number), source, None, target)
            if is_folder and self.names(target):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
        if not self.passes(source):
            self.copy_tree(source)
        place = target if self.passes(target) else self.written + target
        if place != target:
            self._make_parents(target)
        _rename(self.real(source), place)
        if not self.passes(source):
            self.hide(source)
        if is_folder and not self.passes(target):
            self.hide(target)  # what the user has there is not a part of the moved folder

    def _removed_paths(self) -> "set[str]":
        changed_ns = _stat(self._removed_folder).st_mtime_ns
        if changed_ns != self._read_at_ns:
            known = self._removed
            marks = _listdir(self._removed_folder)
            # One assignment, because other threads read it.
            self._removed = {mark: known.get(mark) or _readlink(f"{self._removed_folder}/{mark}") for mark in marks}
            self._read_at_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else -1
        return set(self._removed.values())


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _make_folder(target: str, status: os.stat_result) -> None:
    try:
        _mkdir(target)
    except FileExistsError:  # by another process
        return
    _chmod(target, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)


def _copy_file(source: str, target: str, status: os.stat_result) -> None:
    # Complete before it is visible: another process of the trial may write the same file.
    unfinished = f"{target}.{os.getpid()}.copy"
    reading = _open(source, os.O_RDONLY)
    try:
        writing = _open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while chunk := _read(reading, _CHUNK):
                _write(writing, chunk)
        finally:
            _close(writing)
    finally:
        _close(reading)
    _chmod(unfinished, stat.S_IMODE(status.st_mode))
    _utime(unfinished, ns=(status.st_atime_ns, status.st_mtime_ns))
    with suppress(FileExistsError):
        _link(unfinished, target)
    _unlink(unfinished)
