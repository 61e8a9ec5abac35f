"""Messages between ranks as files in the run folder, where the ranks have no store in common."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = "ranks"


class FolderStore:
    """One file a rank, replaced in one piece: ``ranks/3.json``, in later attempts ``ranks/3-attempt1.json``.

    Raises:
        OSError: a file cannot be written or read.
    """

    def __init__(self, run_folder: Path, attempt: int) -> None:
        self._folder = run_folder / FOLDER
        self._suffix = f"-attempt{attempt}.json" if attempt else ".json"
        self._stamps: dict[int, tuple[int, int]] = {}  # of the files read

    def send(self, rank: int, data: bytes) -> None:
        """Write the message of ``rank``."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{rank}{self._suffix}"
        draft = path.with_suffix(".part")
        draft.write_bytes(data)
        draft.replace(path)

    def read(self) -> Mapping[int, bytes]:
        """Return the messages that are new since the last call, by rank."""
        messages = {}
        for rank, path, stamp in self._files():
            if self._stamps.get(rank) != stamp:
                messages[rank] = path.read_bytes()
                self._stamps[rank] = stamp
        return messages

    def _files(self) -> list[tuple[int, Path, tuple[int, int]]]:
        pattern = re.compile(r"(\d{1,9})" + re.escape(self._suffix))
        try:
            with os.scandir(self._folder) as entries:
                named = [(match, entry) for entry in entries if (match := pattern.fullmatch(entry.name))]
                return [
                    (int(match.group(1)), Path(entry.path), (status.st_mtime_ns, status.st_ino))
                    for match, entry in named
                    for status in (entry.stat(),)
                ]
        except FileNotFoundError:  # no rank has written a message yet
            return []
