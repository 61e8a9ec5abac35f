"""The ends of a journal, without what lies between them: long runs have long ones, and there may be many."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

HEAD_BYTES: Final = 64 * 1024  # in which the first line ends
TAIL_BYTES: Final = 256 * 1024  # read at first; more where what is wanted is not in it
GROWTH: Final = 8


def read_head(path: Path) -> dict[str, Any] | None:
    """Return the first line, which says whose journal it is; None where it is torn or of another kind.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head, newline, _ = file.read(HEAD_BYTES).partition(b"\n")
    record = as_record(head) if newline else None
    return record if record is not None and record.get("kind") == "begin" else None


def last_of(path: Path, kind: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    """Return what ``read`` makes of the last line of that kind of which it makes something; None without any.

    Raises:
        OSError: the file cannot be read.
    """
    begins = re.compile(rb'\{"kind": ?"%s"' % kind.encode())
    for line in _lines_backwards(path):
        record = as_record(line) if begins.match(line) else None
        if record is not None:
            try:
                return read(record)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
                continue
    return None


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, the last first, reading no more of it than is asked for."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        rest, length = b"", TAIL_BYTES
        while at > 0:
            begin = max(0, at - length)
            file.seek(begin)
            rest = file.read(at - begin) + rest
            at, length = begin, length * GROWTH
            if at:
                rest, newline, lines = rest.partition(b"\n")
                if not newline:
                    continue
            else:
                lines = rest
            yield from reversed(lines.split(b"\n"))


def is_torn(path: Path) -> bool:
    """Return whether the last line of a file was not written to its end.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return size > 0 and file.read(1) != b"\n"


def as_record(line: bytes) -> dict[str, Any] | None:
    """Return what a line of a journal says; None where it is not whole."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
