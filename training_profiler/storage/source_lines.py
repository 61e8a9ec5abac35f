"""Reads lines of source code, of the program and of libraries, as long as the files are those that ran.

A run folder may come from another user, and name any file of the reader's. So the journal has the digests of
the files that it names, and lines are shown of a file with the same digest alone: who knows the digest knows the file.
"""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from training_profiler.base.units import BYTES_PER_MIB, NS_PER_S
from training_profiler.model.bounds import MOST_SOURCES
from training_profiler.safety.files import read_file

AROUND: Final = 2  # lines before and after
MOST_BYTES: Final = 4 * BYTES_PER_MIB
MOST_COMMAND: Final = 10_000  # characters
ROOT: Final = 0  # can read all files anyway

# Why a file is not shown.
NOT_RECORDED: Final = "not among the files that the run recorded"
NO_DIGESTS: Final = "the run recorded no digests of its files"
CHANGED: Final = "not there, or changed since the run"
OF_OTHERS: Final = "the run folder is another user's"


class SourceFile(NamedTuple):
    """A file of source code."""

    name: str  # in reports
    path: str = ""  # if it is known


class Sources(NamedTuple):
    """Lines of source code around places, and why other files have none."""

    lines: dict[tuple[str, int], tuple[int, tuple[str, ...]]]  # file and line -> number of the first line, and lines
    missing: dict[str, str]  # file -> why


class DigestBook:
    """Takes the digest of each file of a program once, as the run names it.

    The program was started in ``folder`` with the words of ``command``, at ``began_ns`` on the wall clock.
    """

    def __init__(self, folder: str, command: Sequence[str], began_ns: int) -> None:
        self._folders = list(_folders(folder, command))
        self._until_ns = began_ns + NS_PER_S  # file systems round
        self._seen: set[SourceFile] = set()

    def new(self, files: Iterable[SourceFile]) -> dict[str, str]:
        """Return the digests of those ``files`` that are new here, and have not changed since the run began."""
        digests = {}
        for file, known_path in sorted(set(files) - self._seen)[: MOST_SOURCES - len(self._seen)]:
            self._seen.add(SourceFile(file, known_path))
            paths = [Path(known_path)] if known_path else _paths(file, self._folders)
            for path in paths:
                with suppress(OSError, ValueError):
                    if os.stat(path).st_mtime_ns <= self._until_ns:
                        digests[file] = digest_of(read_file(path, MOST_BYTES, follow=True))
                        break
        return digests


@lru_cache(maxsize=MOST_SOURCES)
def library_path(name: str) -> str:
    """Return the path of a file of a library, by its name in reports; "" where it cannot be imported here."""
    return str(next(filter(os.path.isfile, _paths(name, map(Path, map(str, sys.path)))), ""))


def digest_of(content: bytes) -> str:
    """Return the digest of a file's content."""
    import hashlib  # here, as no program without torch needs it at its start

    return hashlib.sha256(content).hexdigest()


def read_lines(
    folder: Path, meta: dict[str, Any], places: Iterable[tuple[str, int]], digests: Mapping[str, str]
) -> Sources:
    """Return the lines around each place whose file is as it ran, and why other files have none.

    Files have their names in reports. ``meta`` is the content of the run's meta.json.
    """
    found = Sources({}, {})
    folder_given, words = meta.get("folder"), list[str]()
    with suppress(ValueError):
        words = shlex.split(str(meta.get("command", ""))[:MOST_COMMAND])
    folders = list(_folders(folder_given, words)) if isinstance(folder_given, str) else []
    why = "" if is_of_this_user(folder) else OF_OTHERS
    folders += map(Path, map(str, sys.path))
    texts: dict[str, list[str] | None] = {}
    for file, line in sorted(places):
        if why or file not in digests:
            found.missing[file] = why or (NOT_RECORDED if digests else NO_DIGESTS)
            continue
        if file not in texts:
            texts[file] = _text(file, folders, digests[file])
        lines = texts[file]
        if lines is None:
            found.missing[file] = CHANGED
        elif 0 < line <= len(lines):
            first = max(1, line - AROUND)
            found.lines[file, line] = (first, tuple(lines[first - 1 : line + AROUND]))
    return found


def _text(file: str, folders: Sequence[Path], digest: str) -> list[str] | None:
    for path in _paths(file, folders):
        with suppress(OSError, ValueError):
            content = read_file(path, MOST_BYTES, follow=True)
            if digest_of(content) == digest:
                return content.decode("utf-8", "replace").splitlines()
    return None


def is_of_this_user(folder: Path) -> bool:
    """Return whether a run folder, and what lies in it, belongs to this user, or to root."""
    if not hasattr(os, "geteuid"):  # Windows
        return True
    try:
        names = [folder / name for name in os.listdir(folder)]
        owners = {os.lstat(path).st_uid for path in (folder, *names)}
    except OSError:
        return False
    return owners <= {os.geteuid(), ROOT}


def _paths(file: str, folders: Iterable[Path]) -> Iterator[Path]:
    name = PurePath(file)
    if name.suffix == ".py" and ".." not in name.parts:
        yield from (folder / name for folder in folders)


def _folders(folder: str, command: Sequence[str]) -> Iterator[Path]:
    """Yield the folder in which the program was started, and those of the files and modules in its command."""
    yield Path(folder)
    yield from {Path(folder, word).parent: None for word in command if word.endswith(".py")}
    for option, word in pairwise(command):
        parts = word.split(".")
        if option == "-m" and all(part.isidentifier() for part in parts):
            yield Path(folder, *parts)  # of a package, whose ``__main__`` was started
            yield Path(folder, *parts[:-1])
