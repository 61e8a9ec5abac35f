"""The kernel refuses all writing outside a few folders, to this process and its descendants: Landlock, Linux 5.13."""

import os
import stat
from collections.abc import Iterable
from typing import Final

from training_profiler.trials.isolation import linux

_WRITE_FILE: Final = 1 << 1
_REMOVE_AND_MAKE: Final = sum(1 << bit for bit in range(4, 13))
_REFER: Final = 1 << 13  # since version 2: rename into another folder
_TRUNCATE: Final = 1 << 14  # since version 3


def writing(version: int) -> int:
    """Return the bits of all kinds of writing that this version of Landlock can refuse."""
    refer = _REFER if version >= 2 else 0
    truncate = _TRUNCATE if version >= 3 else 0
    return _WRITE_FILE | _REMOVE_AND_MAKE | refer | truncate


def refuse_writing(except_below: Iterable[str]) -> None:
    """Refuse all writing, except below these folders. Files that are open stay as they are.

    Raises:
        OSError: this kernel cannot.
    """
    refused = writing(linux.landlock_version())
    allowed = []
    try:
        for path in except_below:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            allowed.append((descriptor, refused if is_folder else refused & (_WRITE_FILE | _TRUNCATE)))
        linux.landlock(refused, allowed)
    finally:
        for descriptor, _ in allowed:
            os.close(descriptor)
