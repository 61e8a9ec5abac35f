"""Reads the first and last lines of a journal: journals of long runs are long, and there may be many."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from training_profiler.safety.files import may_follow, open_file
from training_profiler.storage.journal_lines import as_object as as_record
from training_profiler.storage.limits import MOST_LINE_BYTES
from training_profiler.units import BYTES_PER_MIB

T = TypeVar("T")

HEAD_BYTES: Final = 64 * 1024  # contain the first line
TAIL_BYTES: Final = 256 * 1024  # first read; more if the line is not in it
GROWTH: Final = 8
MOST_AT_ONCE: Final = 8 * BYTES_PER_MIB
_BEGIN: Final = re.compile(rb'\{"kind": ?"begin"')
_END: Final = re.compile(rb'\{"kind": ?"end"')


class End(NamedTuple, Generic[T]):
    """The end of a journal."""

    value: T | None
    is_torn: bool  # the last line is incomplete
    has_end: bool  # the last line is the end of the run


def read_head(path: Path) -> dict[str, Any] | None:
    """Return the first line, which identifies the journal; None if it is incomplete or of another kind.

    Raises:
        OSError: the file cannot be read.
    """
    with open_file(path, follow=may_follow(path)) as file:
        head, newline, _ = file.read(HEAD_BYTES).partition(b"\n")
    record = as_record(head) if newline else None
    return record if record is not None and record.get("kind") == "begin" else None


def is_beginning(path: Path) -> bool:
    """Return whether a journal has less than its first line, as for a moment when a run begins.

    Raises:
        OSError: the file cannot be read.
    """
    with open_file(path, follow=may_follow(path)) as file:
        head = file.read(HEAD_BYTES)
    return not head or (b"\n" not in head and _BEGIN.match(head) is not None)


def last_of(path: Path, kind: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    """Return ``read(line)`` of the last line of that kind that ``read`` accepts; None without any.

    Raises:
        OSError: the file cannot be read.
    """
    return read_end(path, kind, read).value


def read_end(path: Path, kind: str, read: Callable[[dict[str, Any]], T]) -> End[T]:
    """Return the same, and the state of the end of the file.

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
    """Yield the lines of a file from the last to the first, without reading more of it than needed."""
    with open_file(path, follow=may_follow(path)) as file:
        at = file.seek(0, 2)
        rest, length = b"", TAIL_BYTES
        while at > 0:
            begin = max(0, at - length)
            file.seek(begin)
            rest = file.read(at - begin) + rest
            at, length = begin, min(length * GROWTH, MOST_AT_ONCE)
            if at:
                rest, newline, lines = rest.partition(b"\n")
                if not newline:
                    if len(rest) > MOST_LINE_BYTES:  # no line of ours
                        return
                    continue
            else:
                lines = rest
            yield from reversed(lines.split(b"\n"))
