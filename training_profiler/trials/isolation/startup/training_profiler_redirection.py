"""Sends what a Python program writes into a layer: replaces the functions of ``os`` and ``io`` that take a path.

``pathlib``, ``shutil``, ``tempfile`` and most libraries use these. Libraries that open files in C are in
``training_profiler_libraries``.
"""

import builtins
import errno
import io
import os
import stat
import sys
from functools import partial, wraps

from training_profiler_layer import Layer  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Functions whose first argument is a path that is read; a link is followed unless the arguments say otherwise.
READING = ("stat", "access", "chdir", "getxattr", "listxattr", "pathconf", "statvfs")
# ... that is changed.
CHANGING = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr", "chflags")
NOT_FOLLOWING = ("lstat", "lchown", "lchmod", "readlink")
NEW = ("mkfifo", "mknod")


class Redirection:
    """The replaced functions of this process."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._os = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
        self._open, self._file_io = io.open, io.FileIO

    def install(self) -> None:
        """Replace the functions, for this process and those that it forks."""
        for name in READING:
            self._replace(name, self._reading)
        for name in CHANGING:
            self._replace(name, self._changing)
        for name in NOT_FOLLOWING:
            make = self._changing if name.startswith("lch") else self._reading
            self._replace(name, partial(make, follow=False))
        for name in NEW:
            self._replace(name, self._making)
        for name in ("listdir", "scandir", "mkdir", "rmdir", "unlink", "rename", "symlink", "link", "getcwd"):
            self._set(name, getattr(self, name))
        self._set("remove", self.unlink)
        self._set("replace", self.rename)
        self._set("getcwdb", lambda: os.fsencode(self.getcwd()))
        self._set("open", self.open_descriptor)
        _set(io, "open", _like(self._open, self.open))
        _set(builtins, "open", io.open)
        _set(io, "FileIO", self._file_io_class())

    def _replace(self, name: str, make: "Callable[[str], Callable[..., Any]]") -> None:
        if name in self._os:  # not every system has all
            self._set(name, make(name))

    def _set(self, name: str, function: "Callable[..., Any]") -> None:
        _set(os, name, _like(self._os[name], function))

    def path(self, given: "Any", dir_fd: "int | None" = None) -> str:
        """Return a path given to a function of ``os`` as text."""
        path: str = os.fsdecode(given)
        if dir_fd is not None and not path.startswith("/"):
            path = self.name_of_descriptor(dir_fd) + "/" + path
        return path

    def name_of_descriptor(self, descriptor: int) -> str:
        """Return the program's name of an open folder."""
        if sys.platform == "linux":
            return str(self._layer.name_of(self._os["readlink"](f"/proc/self/fd/{descriptor}")))
        import fcntl

        found = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)) if hasattr(fcntl, "F_GETPATH") else b""
        return str(self._layer.name_of(os.fsdecode(found.rstrip(b"\0"))))

    # Each function calls the original with the real path. Errors name the path that the program gave.

    def _call(self, given: "Any", function: "Callable[..., Any]", *arguments: "Any", **named: "Any") -> "Any":
        try:
            return function(*arguments, **named)
        except OSError as error:
            if error.filename is None or not isinstance(given, (str, bytes, os.PathLike)):
                raise
            raise OSError(error.errno, error.strerror, os.fspath(given)) from None

    def _reading(self, name: str, follow: bool = True) -> "Callable[..., Any]":
        function = self._os[name]

        def read(path: "Any" = ".", *arguments: "Any", **named: "Any") -> "Any":
            if isinstance(path, int) or path is None:
                return function(path, *arguments, **named)
            follows = follow and named.get("follow_symlinks", True)
            real = self._layer.find(self.path(path, named.pop("dir_fd", None)), follows)
            found = self._call(path, function, real, *arguments, **named)
            return os.fsencode(found) if name == "readlink" and isinstance(path, bytes) else found

        return read

    def _changing(self, name: str, follow: bool = True) -> "Callable[..., Any]":
        function = self._os[name]

        def change(path: "Any", *arguments: "Any", **named: "Any") -> "Any":
            if isinstance(path, int):
                return function(path, *arguments, **named)
            follows = follow and named.get("follow_symlinks", True)
            real = self._call(path, self._layer.to_write, self.path(path, named.pop("dir_fd", None)), True, follows)
            return self._call(path, function, real, *arguments, **named)

        return change

    def _making(self, name: str) -> "Callable[..., Any]":
        function = self._os[name]

        def make(path: "Any", *arguments: "Any", **named: "Any") -> "Any":
            real = self._new(path, named.pop("dir_fd", None))
            return self._call(path, function, real, *arguments, **named)

        return make

    def _new(self, given: "Any", dir_fd: "int | None" = None) -> str:
        """Return the real path of a file to make.

        Raises:
            FileExistsError: the program has one there.
        """
        path = self.path(given, dir_fd)
        if os.path.lexists(self._layer.find(path, False)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(given))
        return str(self._layer.to_write(path, follow=False))

    def getcwd(self) -> str:
        """Stand in for ``os.getcwd``."""
        return str(self._layer.current_folder())

    def mkdir(self, path: "Any", mode: int = 0o777, *, dir_fd: "int | None" = None) -> None:
        """Stand in for ``os.mkdir``."""
        self._call(path, self._os["mkdir"], self._new(path, dir_fd), mode)

    def symlink(
        self, src: "Any", dst: "Any", target_is_directory: bool = False, *, dir_fd: "int | None" = None
    ) -> None:
        """Stand in for ``os.symlink``."""
        self._call(dst, self._os["symlink"], src, self._new(dst, dir_fd))

    def link(
        self,
        src: "Any",
        dst: "Any",
        *,
        src_dir_fd: "int | None" = None,
        dst_dir_fd: "int | None" = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Stand in for ``os.link``, which follows no link here: the copy of a user's file gets the second name."""
        source = self.path(src, src_dir_fd)
        self._call(src, self._os["lstat"], self._layer.find(source, False))  # it has to be there
        target = self._new(dst, dst_dir_fd)
        real = self._call(src, self._layer.to_write, source, True, False)
        self._call(src, self._os["link"], real, target)

    def unlink(self, path: "Any", *, dir_fd: "int | None" = None) -> None:
        """Stand in for ``os.remove`` and ``os.unlink``."""
        name = self._layer.resolve(self.path(path, dir_fd), False)
        real = self._layer.real(name)
        is_folder = stat.S_ISDIR(self._call(path, self._os["lstat"], real).st_mode)
        if self._layer.passes(name) or is_folder:  # the system refuses a folder
            self._call(path, self._os["unlink"], real)
        else:
            self._call(path, self._layer.remove, name)

    def rmdir(self, path: "Any", *, dir_fd: "int | None" = None) -> None:
        """Stand in for ``os.rmdir``."""
        name = self._layer.resolve(self.path(path, dir_fd), False)
        if self._layer.passes(name):
            self._call(path, self._os["rmdir"], name)
            return
        if not stat.S_ISDIR(self._call(path, self._os["lstat"], self._layer.real(name)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
        if self._layer.names(name):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
        self._call(path, self._layer.remove, name)

    def rename(
        self, src: "Any", dst: "Any", *, src_dir_fd: "int | None" = None, dst_dir_fd: "int | None" = None
    ) -> None:
        """Stand in for ``os.rename`` and ``os.replace``."""
        source = self._layer.resolve(self.path(src, src_dir_fd), False)
        target = self._layer.resolve(self.path(dst, dst_dir_fd), False)
        self._call(src, self._layer.move, source, target)

    def listdir(self, path: "Any" = None) -> "list[Any]":
        """Stand in for ``os.listdir``."""
        names = self._call(path, self._layer.names, self._folder(path))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: "Any" = None) -> "Entries":
        """Stand in for ``os.scandir``."""
        name = self._folder(path)
        given = "." if path is None or isinstance(path, int) else os.fspath(path)
        names = self._call(given, self._layer.names, name)
        return Entries(Entry(given, name, entry, isinstance(path, int)) for entry in names)

    def _folder(self, path: "Any") -> str:
        if isinstance(path, int):
            return self.name_of_descriptor(path)
        return str(self._layer.resolve(self.path("." if path is None else path)))

    def open_descriptor(self, path: "Any", flags: int, mode: int = 0o777, *, dir_fd: "int | None" = None) -> int:
        """Stand in for ``os.open``."""
        text = self.path(path, dir_fd)
        must_be_new = flags & os.O_CREAT and flags & os.O_EXCL
        follow = not must_be_new and not flags & getattr(os, "O_NOFOLLOW", 0)
        real = self._call(path, self._layer.find, text, follow)
        if flags & WRITES:
            exists = os.path.lexists(real)
            if exists and must_be_new:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
            if exists or flags & os.O_CREAT:
                real = self._call(path, self._layer.to_write, text, not flags & os.O_TRUNC, follow)
        return int(self._call(path, self._os["open"], real, flags, mode))

    def open(
        self,
        file: "Any",
        mode: str = "r",
        buffering: int = -1,
        encoding: "str | None" = None,
        errors: "str | None" = None,
        newline: "str | None" = None,
        closefd: bool = True,
        opener: "Any" = None,
    ) -> "Any":
        """Stand in for ``open``: the file keeps the name that the program gave."""
        if opener is None and not isinstance(file, int):
            opener = self._opener
        return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def _opener(self, path: "Any", flags: int) -> int:
        return self.open_descriptor(path, flags, 0o666)

    def _file_io_class(self) -> type:
        original, opener_of_us = self._file_io, self._opener

        class SameInstances(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, original)

        class FileIO(original, metaclass=SameInstances):  # type: ignore[misc, valid-type]
            def __init__(self, file: "Any", mode: str = "r", closefd: bool = True, opener: "Any" = None) -> None:
                if opener is None and not isinstance(file, int):
                    opener = opener_of_us
                super().__init__(file, mode, closefd, opener)

        return FileIO


class Entry:
    """Stands in for ``os.DirEntry``."""

    def __init__(self, folder: "Any", resolved: str, name: str, by_descriptor: bool) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = self.name if by_descriptor else os.path.join(folder, self.name)
        self._full = os.path.join(resolved, name)

    def __fspath__(self) -> "str | bytes":
        return self.path  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status, as ``os.DirEntry`` does."""
        return os.stat(self._full, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Return the number of the file."""
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self) -> bool:
        """Return whether it is a link."""
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        """Return False: only Windows has junctions."""
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, kind: "Callable[[int], bool]", follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False


class Entries:
    """Stands in for the iterator of ``os.scandir``."""

    def __init__(self, entries: "Iterator[Entry]") -> None:
        self._entries = entries

    def __iter__(self) -> "Iterator[Entry]":
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the other entries."""
        self._entries = iter(())


def _like(original: "Callable[..., Any]", function: "Callable[..., Any]") -> "Callable[..., Any]":
    @wraps(original)
    def call(*arguments: "Any", **named: "Any") -> "Any":
        return function(*arguments, **named)

    return call


def _set(module: object, name: str, function: object) -> None:
    setattr(module, name, function)
