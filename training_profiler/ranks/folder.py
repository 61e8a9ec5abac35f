"""Messages between ranks as files in the run folder, where the ranks have no store in common."""

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from training_profiler.ranks.message import MOST_MESSAGE_BYTES
from training_profiler.safety.files import NotRegularFileError, is_folder, make_inner_folder, read_file, replace_file

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
        make_inner_folder(self._folder)
        path = self._folder / f"{rank}{self._suffix}"
        replace_file(path, data, path.with_suffix(".part"))

    def read(self, world_size: int | None = None) -> Mapping[int, bytes]:
        """Return the messages that are new since the last call, by rank; those of ``world_size`` and above are others'.

        A message that cannot be read is tried again when its file has changed.
        """
        messages = {}
        for rank, path, stamp in self._files():
            if self._stamps.get(rank) != stamp and (world_size is None or rank < world_size):
                with suppress(FileNotFoundError):  # being replaced
                    with suppress(NotRegularFileError):
                        messages[rank] = read_file(path, MOST_MESSAGE_BYTES)
                    self._stamps[rank] = stamp
        return messages

    def _files(self) -> list[tuple[int, Path, tuple[int, int]]]:
        pattern = re.compile(r"(\d{1,9})" + re.escape(self._suffix))
        if os.path.lexists(self._folder) and not is_folder(self._folder):
            return []
        try:
            with os.scandir(self._folder) as entries:
                named = [(match, entry) for entry in entries if (match := pattern.fullmatch(entry.name))]
                return [
                    (int(match.group(1)), Path(entry.path), (status.st_mtime_ns, status.st_ino))
                    for match, entry in named
                    for status in (entry.stat(follow_symlinks=False),)
                    if stat.S_ISREG(status.st_mode)
                ]
        except FileNotFoundError:  # no rank has written a message yet
            return []
