"""From what torch wrote to the file that stays: sections and steps put in, packed, in one piece."""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from training_profiler.capture.clocks import ClockMap, Marked, find_marks, meet
from training_profiler.capture.spans import Span

CHUNK: Final = 1 << 20  # zlib lets other threads run while it packs one
OVERLAP: Final = 2048  # longer than the event of a mark
HEAD: Final = 1 << 22  # in which the list of events begins
END: Final = 8192  # in which what follows the events begins
_LIST: Final = b'"traceEvents"'
_LAST: Final = b'"traceName"'
# A profiler of the program's own marks steps, by numbers of its own, also while its schedule has it wait.
_STEP: Final = b'"ProfilerStep#'
_THEIR_STEP: Final = b"\"program's ProfilerStep#"


class CaptureError(Exception):
    """A window's trace could not be written; says why."""


def write_trace(
    raw: Path,
    path: Path,
    spans: Sequence[Span],
    marks: Sequence[Sequence[tuple[int, int]]],
    most_bytes: float,
    is_called_off: Callable[[], bool],
) -> int:
    """Write ``raw`` with ``spans`` to ``path``, packed; return its bytes. Nothing is left where it fails.

    Args:
        raw: the trace as torch wrote it.
        path: appears when all is written.
        spans: of the training thread.
        marks: those of each end of the window, see ``clocks.meet``.
        most_bytes: a larger file is none.
        is_called_off: asked now and then.

    Raises:
        CaptureError: the trace is not whole, too large, or it was called off.
        OSError: a file cannot be read or written.
    """
    found = {key: mark for piece in _pieces(raw, OVERLAP) for key, mark in find_marks(piece).items()}
    pairs = [pair for pair in (meet(group, found) for group in marks) if pair is not None]
    if not pairs:
        raise CaptureError("torch's trace does not have our marks: the window was not recorded")
    added = _events(spans, ClockMap(pairs), next(iter(found.values())))
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            packed = zlib.compressobj(6, wbits=31)
            for piece in _with(added, raw):
                file.write(packed.compress(piece))
                if file.tell() > most_bytes:
                    raise CaptureError(f"the file would be over {most_bytes / 1e6:g} MB (megabytes=)")
                if is_called_off():
                    raise CaptureError("the run ended before it was written")
            file.write(packed.flush())
        size = part.stat().st_size
        os.replace(part, path)
        return size
    finally:
        part.unlink(missing_ok=True)


def check_whole(raw: Path) -> None:
    """Raise where torch, which tells nobody of a full disk, has not written ``raw`` to its end.

    Raises:
        CaptureError, OSError: it is not there, or cut off.
    """
    try:
        with raw.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END))
            end = file.read()
    except FileNotFoundError:
        raise CaptureError("torch could not write the trace (is the disk full, or the folder not writable?)") from None
    if _LAST not in end or not end.rstrip().endswith(b"}"):
        raise CaptureError("torch could not write the trace to its end (is the disk full?)")


def _pieces(raw: Path, overlap: int) -> Iterator[bytes]:
    with raw.open("rb") as file:
        before = b""
        while piece := file.read(CHUNK):
            yield before + piece
            before = piece[-overlap:]


def _with(added: bytes, raw: Path) -> Iterator[bytes]:
    with raw.open("rb") as file:
        head = file.read(HEAD)
        at = head.find(b"[", head.find(_LIST)) + 1 if _LIST in head else 0
        if not at:
            raise CaptureError("torch's trace has no list of events")
        yield head[:at] + added
        held = b""
        piece = head[at:]
        while piece:
            text = (held + piece).replace(_STEP, _THEIR_STEP)
            held = text[1 - len(_STEP) :]
            yield text[: 1 - len(_STEP)]
            piece = file.read(CHUNK)
        yield held


def _events(spans: Sequence[Span], clocks: ClockMap, mark: Marked) -> bytes:
    place = f'"pid":{mark.pid.decode()},"tid":{mark.tid.decode()}'
    names = {span.name: json.dumps(span.name) for span in spans}
    lines = []
    for span in spans:
        begin_ns, end_ns = clocks.trace_ns(span.begin_ns), clocks.trace_ns(span.end_ns)
        lines.append(
            f'{{"ph":"X","cat":"user_annotation","name":{names[span.name]},{place},"ts":{_us(begin_ns)},'
            f'"dur":{_us(end_ns - begin_ns)},"args":{{}}}},\n'
        )
    return ("\n" + "".join(lines)).encode()  # torch's own events follow: there are at least our marks


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
