"""Requests for a window: a command writes a file to the run folder, and the training reads it, without ever waiting."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from training_profiler.safety.files import read_file, replace_file

REQUEST: Final = "capture-request.json"
FOLDER: Final = "captures"  # in the run folder, where traces go
MOST_STEPS: Final = 1000
MOST_BYTES: Final = 65_536
MOST_RANKS: Final = 4096  # named in one request
_Rank = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Request(msgspec.Struct, frozen=True):
    """The number of steps to record, and the ranks that record."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)] | None = None  # None: as many as the settings say
    ranks: Annotated[tuple[_Rank, ...], msgspec.Meta(max_length=MOST_RANKS)] | None = (0,)  # None: all

    def is_of(self, rank: int) -> bool:
        """Return whether ``rank`` is to record."""
        return self.ranks is None or rank in self.ranks


def write_request(folder: Path, steps: int | None, ranks: Sequence[int] | None) -> None:
    """Write a request to a run folder atomically.

    Raises:
        OSError: it cannot be written.
    """
    data = msgspec.json.encode(Request(steps, None if ranks is None else tuple(ranks)))
    replace_file(folder / REQUEST, data, folder / f"{REQUEST}.{os.getpid()}.part")


class RequestBox:
    """Reads the requests of one run. Files from before the start of the process are ignored."""

    def __init__(self, began_wall_ns: int) -> None:
        self._began_wall_ns = began_wall_ns
        self._last_key: tuple[int, int] | None = None

    def read_new(self, folder: str | None) -> Request | None:
        """Return a new request; None without one."""
        if folder is None:
            return None
        try:
            status = os.lstat(os.path.join(folder, REQUEST))
        except OSError:
            return None
        key = (status.st_mtime_ns, status.st_ino)
        if key == self._last_key or status.st_mtime_ns < self._began_wall_ns or not stat.S_ISREG(status.st_mode):
            return None
        self._last_key = key
        return _read(Path(folder) / REQUEST)


def _read(path: Path) -> Request | None:
    """Return the request in a file; None if the file is not one of ours."""
    try:
        data = msgspec.json.decode(read_file(path, MOST_BYTES))
        return msgspec.convert(data, Request) if {"steps", "ranks"} <= data.keys() else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
