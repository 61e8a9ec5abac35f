"""The ends of a journal, without what lies between them: long runs have long ones, and there may be many."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

HEAD_BYTES: Final = 64 * 1024  # in which the first line ends
TAIL_BYTES: Final = 256 * 1024  # read at first; more where what is wanted is not in it
GROWTH: Final = 8
_END: Final = re.compile(rb'\{"kind": ?"end"')


class End(NamedTuple, Generic[T]):
    """What stands at the end of a journal."""

    value: T | None
    is_torn: bool  # its last line was not written to its end
    has_end: bool  # its last line says how the run ended


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
    return read_end(path, kind, read).value


def read_end(path: Path, kind: str, read: Callable[[dict[str, Any]], T]) -> End[T]:
    """Return the same, and how the file ends.

    Raises:
        OSError: the file cannot be read.
    """
    begins = re.compile(rb'\{"kind": ?"%s"' % kind.encode())
    lines = _lines_backwards(path)
    is_torn = bool(next(lines, b"").strip())
    has_end = False
    for number, line in enumerate(lines):
        has_end |= number == 0 and not is_torn and bool(_END.match(line))
        record = as_record(line) if begins.match(line) else None
        if record is not None:
            try:
                return End(read(record), is_torn, has_end)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
                continue
    return End(None, is_torn, has_end)


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


def as_record(line: bytes) -> dict[str, Any] | None:
    """Return what a line of a journal says; None where it is not whole."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
