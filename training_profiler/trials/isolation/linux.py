"""System calls of Linux that Python's library lacks; each raises ``OSError`` where it is refused."""

import ctypes
import errno
import os
from collections.abc import Iterable
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000

MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38

# System calls since 2019 have the same number on every processor.
_MOUNT_SETATTR: Final = 442
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_ADD_RULE: Final = 445
_LANDLOCK_RESTRICT_SELF: Final = 446

_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 1
_LANDLOCK_VERSION: Final = 1  # flag of create_ruleset
_LANDLOCK_PATH_BENEATH: Final = 1  # kind of rule
_WRITE_FILE: Final = 1 << 1  # bits of LANDLOCK_ACCESS_FS_*
_REMOVE_AND_MAKE: Final = sum(1 << bit for bit in range(4, 13))
_REFER: Final = 1 << 13  # since version 2: rename into another folder
_TRUNCATE: Final = 1 << 14  # since version 3


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags``; ``CLONE_NEWUSER`` needs a process of one thread."""
    _call("unshare", flags)


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


def make_read_only(target: str) -> None:
    """Make the mount at ``target`` and all below it read-only."""
    attributes = _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY)
    _system_call(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(target),
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
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


def refuse_writing(except_below: Iterable[str]) -> None:
    """Let the kernel refuse this process and its descendants all writing, except below these folders.

    Files that are open stay as they are. Needs Landlock: Linux 5.13.

    Raises:
        OSError: this kernel cannot.
    """
    version = landlock_version()
    refused = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = _Ruleset(refused)
    ruleset = _system_call(
        _LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), 0
    )
    try:
        for path in except_below:
            _allow_writing(ruleset, path, refused)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _system_call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_writing(ruleset: int, path: str, refused: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(refused, descriptor)
        _system_call(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _call("prctl", option, ctypes.c_ulong(value), zero, zero, zero)


def _system_call(number: int, *arguments: object) -> int:
    return _call("syscall", ctypes.c_long(number), *arguments)


def _call(name: str, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
