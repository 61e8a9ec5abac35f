"""Reads lines of the program's source code, as long as the files are those that ran."""

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final

from training_profiler.safety.files import read_file
from training_profiler.units import BYTES_PER_MIB, NS_PER_S

AROUND: Final = 2  # lines before and after
MOST_BYTES: Final = 4 * BYTES_PER_MIB
MOST_COMMAND: Final = 10_000  # characters


def read_lines(
    meta: dict[str, Any], places: Iterable[tuple[str, int]], began_ns: int
) -> dict[tuple[str, int], tuple[int, tuple[str, ...]]]:
    """Return the number of the first line and the lines around each place whose file has not changed since the run.

    Args:
        meta: content of meta.json.
        places: files as reports name them, and lines.
        began_ns: begin of the run on the wall clock; 0 if unknown.
    """
    found: dict[tuple[str, int], tuple[int, tuple[str, ...]]] = {}
    folders = list(_folders(meta))
    for file, line in places:
        name = PurePath(file)
        if name.suffix != ".py" or ".." in name.parts:
            continue
        for folder in folders:
            path = folder / name
            with suppress(OSError, ValueError):
                if began_ns and os.stat(path).st_mtime_ns > began_ns + NS_PER_S:
                    continue
                lines = read_file(path, MOST_BYTES, follow=True).decode("utf-8", "replace").splitlines()
                if 0 < line <= len(lines):
                    first = max(1, line - AROUND)
                    found[file, line] = (first, tuple(lines[first - 1 : line + AROUND]))
                    break
    return found


def _folders(meta: dict[str, Any]) -> Iterator[Path]:
    """Yield the folder in which the program was started, and those of the files in its command."""
    cwd = meta.get("folder")
    if not isinstance(cwd, str):
        return
    yield Path(cwd)
    with suppress(ValueError):
        words = shlex.split(str(meta.get("command", ""))[:MOST_COMMAND])
        yield from {Path(cwd, word).parent: None for word in words if word.endswith(".py")}
