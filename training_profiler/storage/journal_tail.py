"""Reads the first and last lines of a journal: journals of long runs are long, and there may be many."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from training_profiler.base.errors import RunFolderError
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB
from training_profiler.model.bounds import MOST_JOURNAL_BYTES, MOST_LINE_BYTES
from training_profiler.safety.files import lines_of, may_follow, open_file
from training_profiler.storage.journal_lines import as_object as as_record

T = TypeVar("T")

HEAD_BYTES: Final = 64 * 1024  # contain the first line
TAIL_BYTES: Final = 256 * 1024  # first read; more if the line is not in it
GROWTH: Final = 8
MOST_AT_ONCE: Final = 8 * BYTES_PER_MIB
MOST_TRIES: Final = 1_000  # lines of the kind that cannot be used
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


def lines_of_journal(path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a journal; None for one that is too long.

    Raises:
        RunFolderError: the file cannot be read, or is larger than any journal.
    """
    try:
        with open_file(path, follow=may_follow(path)) as file:
            if os.fstat(file.fileno()).st_size > MOST_JOURNAL_BYTES:
                raise RunFolderError(f"{path} is larger than {MOST_JOURNAL_BYTES / BYTES_PER_GIB:g} GiB")
            yield from lines_of(file, MOST_LINE_BYTES)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read ({error.strerror})") from None


def is_beginning(path: Path) -> bool:
    """Return whether a journal has less than its first line, as for a moment when a run begins.

    Raises:
        OSError: the file cannot be read.
    """
    with open_file(path, follow=may_follow(path)) as file:
        head = file.read(HEAD_BYTES)
    return not head or (b"\n" not in head and _BEGIN.match(head) is not None)


def read_end(path: Path, kind: str, read: Callable[[dict[str, Any]], T]) -> End[T]:
    """Return ``read(line)`` of the last line of that kind that ``read`` accepts, and the state of the file's end.

    Raises:
        OSError: the file cannot be read.
    """
    of_kind = re.compile(rb'^\{"kind": ?"%s"[^\n]*' % kind.encode(), re.MULTILINE)
    end: End[T] = End(None, False, False)
    last, tries = b"", 0
    for number, block in enumerate(_blocks_backwards(path)):
        lines, _, torn = block.rpartition(b"\n") if not number else (block, b"", b"")
        last = last or lines.rstrip().rpartition(b"\n")[2]
        is_torn = end.is_torn or bool(torn.strip())
        end = End(None, is_torn, not is_torn and _END.match(last) is not None)
        for line in reversed(of_kind.findall(lines)):
            record, tries = as_record(line), tries + 1
            with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
                if record is not None:
                    return end._replace(value=read(record))
            if tries >= MOST_TRIES:
                return end
    return end


def _blocks_backwards(path: Path) -> Iterator[bytes]:
    """Yield whole lines of a file, the last ones first, without reading more of it than needed."""
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
            yield lines
