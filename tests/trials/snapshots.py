"""What a folder holds, to compare before and after."""

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    mode: int
    owner: int
    size: int
    mtime_ns: int
    content: str


def snapshot(folder: Path) -> dict[str, Seen]:
    """Return everything below ``folder`` by its path."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        found[str(path)] = Seen(status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, content)
    return found
