"""A trial in namespaces of its own: the whole file system is copy-on-write, and its processes end with it.

Overlays show every mounted file system and put what is written into ``layers``. They need Linux 5.11, and the right to
make user namespaces or that of an administrator.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.trials.isolation import linux

# Nothing of the user's is stored in these.
NOT_STORED: Final = re.compile(
    "autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|fusectl|hugetlbfs|mqueue|nsfs|proc|pstore|"
    "rpc_pipefs|securityfs|selinuxfs|sysfs|tracefs"
)
SHARED_MEMORY: Final = "/dev/shm"
MOST_OVERLAYS: Final = 2000  # as many mounts as this cost the kernel about 20 MB
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A row of ``/proc/self/mountinfo``."""

    point: str
    kind: str


def read_mounts(text: str) -> dict[str, Mount]:
    """Return the mounts by their folder; the last of several at one folder is visible."""
    mounts = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        mounts[point] = Mount(point, after.split(" ")[0])
    return mounts


def leave_namespaces(with_processes: bool) -> bool:
    """Give this process new namespaces, whose mounts nothing else has; return whether it needed a user namespace.

    Raises:
        OSError: this system refuses.
    """
    flags = linux.CLONE_NEWNS | linux.CLONE_NEWIPC | (linux.CLONE_NEWPID if with_processes else 0)
    user, group = os.geteuid(), os.getegid()
    try:
        linux.unshare(flags)
        needs_user_namespace = False
    except PermissionError:
        linux.unshare(flags | linux.CLONE_NEWUSER)
        needs_user_namespace = True
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    return needs_user_namespace


class CopyOnWriteRoot:
    """The file system as the trial finds it, at ``root``."""

    def __init__(self, root: str, layers: str, in_user_namespace: bool) -> None:
        self._root = root
        self._layers = layers
        # Without redirect_dir a folder of the user cannot be renamed; a user namespace may not have it.
        self._options = ",userxattr" if in_user_namespace else ",redirect_dir=on"
        self._in_user_namespace = in_user_namespace
        self._overlays = 0
        self._mounts = read_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
        self._folders = set(self._mounts)  # that need an overlay of their own

    def build(self, used: Iterable[str], results: str, with_processes: bool) -> None:
        """Mount everything at the root.

        Args:
            used: folders that the trial probably writes to.
            results: a folder that is the real one, so what is written there stays.
            with_processes: whether this is the first process of a namespace of processes.
        """
        linux.mount("tmpfs", self._root, "tmpfs", options="mode=755,size=64m")
        if self._in_user_namespace:
            self._folders |= {folder for path in used for folder in _folders_of_others(path)}
        self._cover("/")
        if with_processes:
            linux.mount("proc", self._root + "/proc", "proc")
        self._bind(results)

    def _cover(self, path: str) -> None:
        """Show ``path``, which exists below the root, so that nothing below it can change."""
        mount = self._mounts.get(path)
        if path == "/dev" or (mount is not None and NOT_STORED.fullmatch(mount.kind)):
            self._bind(path)
            if path == "/dev" and os.path.isdir(SHARED_MEMORY):
                linux.mount("tmpfs", self._root + SHARED_MEMORY, "tmpfs", options="mode=1777")
            return
        inner = self._inner_folders(path)
        if self._overlay(path):
            for point in inner:
                self._cover(point)
        elif inner:
            self._cover_entries(path)
        else:
            self._bind(path)
            linux.make_read_only(self._root + path)

    def _inner_folders(self, path: str) -> list[str]:
        """Return the folders below ``path`` that need an overlay of their own, without those below another one."""
        prefix = path.rstrip("/") + "/"
        below = sorted(point for point in self._folders if point.startswith(prefix) and point != path)
        return [point for point in below if not any(point.startswith(f"{other}/") for other in below)]

    def _overlay(self, path: str) -> bool:
        if self._overlays == MOST_OVERLAYS or not os.path.isdir(path):
            return False
        layer = Path(self._layers, str(self._overlays))
        upper, work = layer / "written", layer / "work"
        status = os.stat(path)
        try:
            os.makedirs(upper, exist_ok=True)
            os.makedirs(work, exist_ok=True)
            os.chmod(upper, stat.S_IMODE(status.st_mode))
            os.chown(upper, status.st_uid, status.st_gid)
        except OSError:  # another owner, whom an overlay in a user namespace cannot keep
            pass
        options = (
            f"lowerdir={_escaped(path)},upperdir={_escaped(str(upper))},workdir={_escaped(str(work))}{self._options}"
        )
        try:
            linux.mount("overlay", self._root + path, "overlay", options=options)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENODEV):
                raise  # no overlay will do
            return False  # mounts below it, or a file system that overlays cannot show
        self._overlays += 1
        return True

    def _cover_entries(self, path: str) -> None:
        # In a user namespace an overlay cannot show a folder with mounts below it, so each of its entries has its own.
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except PermissionError:
            self._bind(path)
            linux.make_read_only(self._root + path)
            return
        for entry in entries:
            target = self._root + entry.path
            if entry.is_symlink():
                if not os.path.lexists(target):
                    os.symlink(os.readlink(entry.path), target)
            elif entry.is_dir():
                os.makedirs(target, exist_ok=True)
                self._cover(entry.path)
            elif entry.is_file():
                Path(target).touch()
                self._bind(entry.path)
                linux.make_read_only(target)

    def _bind(self, path: str) -> None:
        linux.mount(path, self._root + path, None, linux.MS_BIND | linux.MS_REC)


def _folders_of_others(path: str) -> set[str]:
    """Return ``path`` and the folders above it that another user owns.

    An overlay copies a folder when something in it is written. In a user namespace it cannot copy the owner, but never
    copies its own top.
    """
    folders = {str(folder) for folder in (Path(path), *Path(path).parents)}
    return {folder for folder in folders if os.path.isdir(folder) and os.stat(folder).st_uid != os.geteuid()}


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")
