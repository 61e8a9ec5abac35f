"""Writes the final trace file: torch's trace with sections and steps added, compressed, and moved in place at once."""

import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.base.sections import CLOCK_MARK, SAMPLED_LINE
from training_profiler.model.location import Sample

MARKS: Final = 4  # at each end of a window; the shortest mark is the most precise
_EVENT: Final = re.compile(
    rb'"cat":\s*"user_annotation",\s*"name":\s*"' + CLOCK_MARK.encode().replace(b".", rb"\.") + rb' (\d+)",\s*'
    rb'"pid":\s*([^,\s]+),\s*"tid":\s*([^,\s]+),\s*"ts":\s*"?(\d+(?:\.\d+)?)"?,\s*"dur":\s*"?(\d+(?:\.\d+)?)"?'
)


class Marked(NamedTuple):
    """A mark in a trace; times in ns."""

    pid: bytes
    tid: bytes
    begin_ns: int
    end_ns: int


class Pair(NamedTuple):
    """One moment in both clocks."""

    own_ns: int
    trace_ns: int


def find_marks(text: bytes) -> dict[int, Marked]:
    """Return the marks in a piece of a trace, by the recorder's time in their names."""
    found = {}
    for event in _EVENT.finditer(text) if CLOCK_MARK.encode() in text else ():
        begin_ns = _ns(event[4])
        found[int(event[1])] = Marked(event[2], event[3], begin_ns, begin_ns + _ns(event[5]))
    return found


def _ns(us: bytes) -> int:
    whole, _, fraction = us.partition(b".")
    return int(whole) * 1000 + int(fraction[:3].ljust(3, b"0") or 0)


def meet(marks: Iterable[tuple[int, int]], found: dict[int, Marked]) -> Pair | None:
    """Return one moment in both clocks, estimated from the marks; None if the trace has no marks.

    Args:
        marks: the recorder's times right before and right after each mark.
        found: the marks in the trace, by the first of these times.
    """
    met = [(before_ns, after_ns, found[before_ns]) for before_ns, after_ns in marks if before_ns in found]
    if not met:
        return None
    least_ns = max(mark.end_ns - after_ns for _, after_ns, mark in met)
    most_ns = min(mark.begin_ns - before_ns for before_ns, _, mark in met)
    at_ns = met[-1][1]
    return Pair(at_ns, at_ns + (least_ns + most_ns) // 2)


def on_trace_clock(pairs: Sequence[Pair], own_ns: int) -> int:
    """Return the trace's time, in ns, of one of the recorder's: linear between the two ends of the window."""
    (begin, at), (end, until) = pairs[0], pairs[-1]
    drift_ns = (until - end) - (at - begin)
    return own_ns + (at - begin) + (drift_ns * (own_ns - begin) // (end - begin) if end > begin else 0)


MOST_SPANS: Final = 200_000  # of a window; later spans are left out of the trace


class WrittenSpan(NamedTuple):
    """A section or a step with its times in the recorder's clock, or a line of the program at one time."""

    name: str
    begin_ns: int
    end_ns: int | None  # None for a line, which the training thread ran at ``begin_ns``


class CapturedSpans:
    """Collects the spans of a window until all spans up to its end have arrived."""

    def __init__(self, names: Mapping[int, str], begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.end_ns: int | None = None  # of the window, after its end
        self.is_complete = threading.Event()
        self.left_out = 0
        self._names = names
        self._rows: list[tuple[int, int, int]] = []
        self._samples: list[Sample] = []
        self._until_ns = begin_ns

    def add(self, ids: Any, begins_ns: Any, ends_ns: Any, until_ns: int) -> None:
        """Add arrays of ended spans. Spans later than ``until_ns`` come with a later call."""
        is_inside = ends_ns > self.begin_ns
        rows = list(zip(*(array[is_inside].tolist() for array in (ids, begins_ns, ends_ns)), strict=True))
        room = MOST_SPANS - len(self._rows)
        self._rows += rows[:room]
        self.left_out += len(rows[room:])
        self._until_ns = until_ns
        self._check_complete()

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Add samples, which come before the spans of their time."""
        self._samples += samples

    def ends(self, at_ns: int) -> None:
        """Record the end of the window."""
        self.end_ns = at_ns
        self._check_complete()

    def _check_complete(self) -> None:
        if self.end_ns is not None and self._until_ns >= self.end_ns:
            self.is_complete.set()

    def written(self) -> list[WrittenSpan]:
        """Return the spans in the window, cut at its ends, and the lines that were sampled in it."""
        end_ns = self._until_ns if self.end_ns is None else self.end_ns
        spans = [
            WrittenSpan(self._names.get(id, "?"), max(begin, self.begin_ns), min(end, end_ns))
            for id, begin, end in list(self._rows)
            if begin < end_ns
        ]
        return spans + [
            WrittenSpan(f"{location.file}:{location.line} in {location.function}", at_ns, None)
            for at_ns, location in list(self._samples)
            if location is not None and self.begin_ns <= at_ns < end_ns
        ]


CHUNK: Final = 1 << 20  # zlib releases the GIL while it compresses a chunk
OVERLAP: Final = 2048  # longer than the event of a mark
HEAD: Final = 1 << 22  # the list of events begins within it
END: Final = 8192  # the list of events ends within it
_LIST: Final = b'"traceEvents"'
_LAST: Final = b'"traceName"'
# The program's own profiler also marks steps, with numbers of its own, even while its schedule waits.
_STEP: Final = b'"ProfilerStep#'
_THEIR_STEP: Final = b"\"program's ProfilerStep#"


class CaptureError(Exception):
    """The trace of a window could not be written. The message has the reason."""


def write_trace(
    raw: Path,
    path: Path,
    added: Sequence[WrittenSpan],
    marks: Sequence[Sequence[tuple[int, int]]],
    most_bytes: float,
    is_called_off: Callable[[], bool],
) -> int:
    """Write ``raw`` with what is ``added`` to ``path``, packed; return its bytes. An error leaves no file.

    Args:
        raw: the trace as torch wrote it, in a folder that only this user can write to.
        path: the final file, which appears when all is written.
        added: spans and sampled lines of the training thread.
        marks: those of each end of the window, see ``clocks.meet``.
        most_bytes: limit on the size of the file.
        is_called_off: checked regularly.

    Raises:
        CaptureError: the trace is not whole, too large, or it was called off.
        OSError: a file cannot be read or written.
    """
    found = {key: mark for piece in _pieces(raw, OVERLAP) for key, mark in find_marks(piece).items()}
    pairs = [pair for pair in (meet(group, found) for group in marks) if pair is not None]
    if not pairs:
        raise CaptureError("torch's trace does not have our marks: the window was not recorded")
    head = _events(added, pairs, next(iter(found.values())))
    part = raw.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            packed = zlib.compressobj(6, wbits=31)
            written = 0
            for piece in _with(head, raw):
                written += file.write(packed.compress(piece))
                if written > most_bytes:
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
    """Raise if ``raw`` is incomplete: torch does not report a full disk.

    Raises:
        CaptureError, OSError: the file is missing or cut off.
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


def _events(added: Sequence[WrittenSpan], pairs: Sequence[Pair], mark: Marked) -> bytes:
    place = f'"pid":{mark.pid.decode()},"tid":{mark.tid.decode()}'
    lines = []
    for name, own_begin_ns, own_end_ns in added:
        begin_ns = on_trace_clock(pairs, own_begin_ns)
        phase, category, rest = "i", SAMPLED_LINE, '"s":"t"'
        if own_end_ns is not None:
            rest = f'"dur":{_us(on_trace_clock(pairs, own_end_ns) - begin_ns)},"args":{{}}'
            phase, category = "X", "user_annotation"
        at = f'{place},"ts":{_us(begin_ns)},{rest}'
        lines.append(f'{{"ph":"{phase}","cat":"{category}","name":{_json(name)},{at}}},\n')
    return ("\n" + "".join(lines)).encode()  # torch's own events follow: there are at least our marks


_json = lru_cache(maxsize=1000)(json.dumps)  # few names, many events


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
