"""A trial in namespaces of its own: the whole file system is copy-on-write, and its processes end with it.

Overlays show every mounted file system and put what is written into ``layers``. They need Linux 5.11, and the right to
make user namespaces or that of an administrator. Below them stand the system calls of Linux that Python's library
lacks; each raises ``OSError`` where it is refused.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# Nothing of the user's is stored in these.
NOT_STORED: Final = re.compile(
    "autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|fusectl|hugetlbfs|mqueue|nsfs|proc|pstore|"
    "rpc_pipefs|securityfs|selinuxfs|sysfs|tracefs"
)
SHARED_MEMORY: Final = "/dev/shm"
MOST_OVERLAYS: Final = 2000  # as many mounts as this cost the kernel about 20 MB
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SEPARATORS: Final = re.compile(r"[\\,:]")  # of an overlay's options

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES = 0x00020000, 0x08000000, 0x10000000, 0x20000000  # CLONE_NEW*
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000  # MS_*
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
# System calls since 2019 have the same number on every processor.
_MOUNT_SETATTR: Final = 442
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_LANDLOCK_VERSION: Final = 1  # flag of create_ruleset
_LANDLOCK_PATH_BENEATH: Final = 1  # kind of rule
_WRITE_FILE: Final = 1 << 1  # bits of LANDLOCK_ACCESS_FS_*
_REMOVE_AND_MAKE: Final = sum(1 << bit for bit in range(4, 13))
_REFER: Final = 1 << 13  # since version 2: rename into another folder
_TRUNCATE: Final = 1 << 14  # since version 3


def read_mounts(text: str) -> dict[str, str]:
    """Return the kind of each mount in a ``mountinfo`` by its folder; the last of several at one folder is visible."""
    mounts = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        mounts[point] = after.split(" ")[0]
    return mounts


def leave_namespaces(with_processes: bool) -> bool:
    """Give this process new namespaces, whose mounts nothing else has; return whether it needed a user namespace.

    Raises:
        OSError: this system refuses.
    """
    flags = _NEW_MOUNTS | _NEW_IPC | (_NEW_PROCESSES if with_processes else 0)
    user, group = os.geteuid(), os.getegid()
    needs_user_namespace = False
    try:
        _call("unshare", flags)
    except PermissionError:
        _call("unshare", flags | _NEW_USER)
        needs_user_namespace = True
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    return needs_user_namespace


class CopyOnWriteRoot:
    """The file system as the trial finds it, at ``root``."""

    def __init__(self, root: str, layers: str, in_user_namespace: bool) -> None:
        self._root, self._layers = root, layers
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
        mount("tmpfs", self._root, "tmpfs", options="mode=755,size=64m")
        if self._in_user_namespace:
            self._folders |= {folder for path in used for folder in _folders_of_others(path)}
        self._cover("/")
        if with_processes:
            mount("proc", self._root + "/proc", "proc")
        self._bind(results)

    def _cover(self, path: str) -> None:
        """Show ``path``, which exists below the root, so that nothing below it can change."""
        if path == "/dev" or NOT_STORED.fullmatch(self._mounts.get(path, "")):
            self._bind(path)
            if path == "/dev" and os.path.isdir(SHARED_MEMORY):
                mount("tmpfs", self._root + SHARED_MEMORY, "tmpfs", options="mode=1777")
            return
        # The folders below it that need an overlay of their own, without those below another one.
        prefix = path.rstrip("/") + "/"
        below = sorted(point for point in self._folders if point.startswith(prefix) and point != path)
        inner = [point for point in below if not any(point.startswith(f"{other}/") for other in below)]
        if self._overlay(path):
            for point in inner:
                self._cover(point)
        elif inner:
            self._cover_entries(path)
        else:
            self._bind_read_only(path)

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
        lower, upper_text, work_text = (_SEPARATORS.sub(r"\\\g<0>", str(folder)) for folder in (path, upper, work))
        options = f"lowerdir={lower},upperdir={upper_text},workdir={work_text}{self._options}"
        try:
            mount("overlay", self._root + path, "overlay", options=options)
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
            self._bind_read_only(path)
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
                self._bind_read_only(entry.path)

    def _bind(self, path: str) -> None:
        mount(path, self._root + path, None, _BIND | _RECURSIVE)

    def _bind_read_only(self, path: str) -> None:
        self._bind(path)
        attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY)  # to set; to clear, propagation, user namespace
        target = os.fsencode(self._root + path)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        _system_call(_MOUNT_SETATTR, _AT_FDCWD, target, _AT_RECURSIVE, attributes, size)


def _folders_of_others(path: str) -> set[str]:
    """Return ``path`` and the folders above it that another user owns.

    An overlay copies a folder when something in it is written. In a user namespace it cannot copy the owner, but never
    copies its own top.
    """
    folders = {str(folder) for folder in (Path(path), *Path(path).parents)}
    return {folder for folder in folders if os.path.isdir(folder) and os.stat(folder).st_uid != os.geteuid()}


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount ``source`` at ``target``."""
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(options) if options else None,
    )


def die_with_parent(signal_number: int) -> None:
    """Get ``signal_number`` when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none."""
    try:
        return _system_call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    except OSError:  # an old kernel, or one that has it switched off
        return 0


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def refuse_writing(except_below: Iterable[str]) -> None:
    """Let the kernel refuse this process and its descendants all writing, except below these folders.

    Files that are open stay as they are. Needs Landlock: Linux 5.13.

    Raises:
        OSError: this kernel cannot.
    """
    version = landlock_version()
    refused = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = ctypes.c_uint64(refused)
    ruleset = _system_call(_LANDLOCK_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    try:
        for path in except_below:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = _PathBeneath(refused, descriptor)
                _system_call(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, ctypes.byref(rule), 0)
            finally:
                os.close(descriptor)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _system_call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _call("prctl", option, ctypes.c_ulong(value), zero, zero, zero)


def _system_call(number: int, *arguments: object) -> int:
    return _call("syscall", ctypes.c_long(number), *arguments)


def _call(name: str, *arguments: object) -> int:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
