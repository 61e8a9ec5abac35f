"""A window on request: a file that a command drops in the run folder, and a training looks for."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUEST: Final = "capture-request.json"
FOLDER: Final = "captures"  # in the run folder, where traces go
MOST_STEPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    steps: int | None = None
    ranks: tuple[int, ...] | None = (0,)
    """None: all."""

    def is_of(self, rank: int) -> bool:
        """Return whether ``rank`` is to record."""
        return self.ranks is None or rank in self.ranks


def write_request(folder: Path, steps: int | None, ranks: Sequence[int] | None) -> None:
    """Drop a request into a run's folder, in one piece.

    Raises:
        OSError: it cannot be written.
    """
    draft = folder / f"{REQUEST}.{os.getpid()}.part"
    draft.write_text(json.dumps({"steps": steps, "ranks": None if ranks is None else list(ranks)}), encoding="utf-8")
    os.replace(draft, folder / REQUEST)


class RequestBox:
    """Where requests of one run come in; those that lie there from before the process began are none."""

    def __init__(self, began_wall_ns: int) -> None:
        self._began_wall_ns = began_wall_ns
        self._seen: tuple[int, int] | None = None

    def look(self, folder: str | None) -> Request | None:
        """Return a request that is new; None without."""
        if folder is None:
            return None
        try:
            found = os.stat(os.path.join(folder, REQUEST))
        except OSError:
            return None
        key = (found.st_mtime_ns, found.st_ino)
        if key == self._seen or found.st_mtime_ns < self._began_wall_ns:
            return None
        self._seen = key
        return _read(Path(folder) / REQUEST)


def _read(path: Path) -> Request | None:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        steps, ranks = told["steps"], told["ranks"]
        is_count = steps is None or (isinstance(steps, int) and 0 < steps <= MOST_STEPS)
        are_ranks = ranks is None or all(isinstance(rank, int) for rank in ranks)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not is_count or not are_ranks:  # somebody else's file
        return None
    return Request(steps, None if ranks is None else tuple(ranks))
