"""A copy of the folder in which a trial runs, where the kernel cannot show it another file system."""

import os
import shutil
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST_ENTRIES: Final = 20_000  # a folder with more is a data set or an environment, which trainings only read
MOST_BYTES: Final = 1 << 30


def copy_folder(folder: str, top: str, without: str) -> str:
    """Copy ``folder`` below ``top``, and return its copy. Links lead from there to everything that is not copied.

    In a large folder, the deepest entries are linked instead of copied. The folders above the copy hold links to their
    other entries, so ``../data`` leads to the real one.

    Args:
        folder: absolute.
        top: where the copy of ``/home/me/project`` becomes ``top + "/home/me/project"``.
        without: a folder that is left out, because it has ``top``.
    """
    copied = top + folder
    os.makedirs(copied)
    for parent in Path(folder).parents:
        for entry in _entries(str(parent)):
            with suppress(FileExistsError):
                os.symlink(entry.path, top + entry.path)
    entries, size_bytes = 0, 0
    waiting = deque([folder])
    while waiting:
        for entry in _entries(waiting.popleft()):
            entries += 1
            is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
            size_bytes += entry.stat(follow_symlinks=False).st_size if is_file else 0
            if entry.path == without:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), top + entry.path)
            elif is_folder and entries <= MOST_ENTRIES and os.access(entry.path, os.R_OK | os.X_OK):
                os.mkdir(top + entry.path)
                waiting.append(entry.path)
            elif is_file and size_bytes <= MOST_BYTES and os.access(entry.path, os.R_OK):
                shutil.copy2(entry.path, top + entry.path)
            else:
                os.symlink(entry.path, top + entry.path)
    return copied


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return []
