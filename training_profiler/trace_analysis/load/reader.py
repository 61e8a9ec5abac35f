"""Reads a trace file into typed events. A file that is not a trace gives a clear error of one line."""

import codecs
import re
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from training_profiler.base.errors import TraceError
from training_profiler.base.text import one_line
from training_profiler.base.units import BYTES_PER_MIB
from training_profiler.trace_analysis.load.chunks import MOST_BYTES, chunks_of, pieces_of
from training_profiler.trace_analysis.load.columns import CATEGORIES, NONE

_BETWEEN: Final = re.compile(rb"\}\s*,\s*\{")
_TAIL: Final = 1 << 20  # bytes; the last whole event of a list begins within them
MOST_TRIES: Final = 20  # events inside an argument look like events of the list


def closed(text: bytes) -> tuple[bytes, str] | None:
    """Return JSON whose list of events has an end, and what was left out of it; None if that is not what it lacks.

    A list of events may lack its end, as the format of Chrome allows; the list of an object may too if it ends after a
    whole event. Anything else that is cut off stays refused.
    """
    found = _closed(text)
    if found is None:
        return None
    left_out = len(text.rstrip()) - found[1]
    without = f", without the last {left_out} bytes, a part of an event" if left_out > 1 else ""
    return found[0], f"its list of events has no end; it is read as far as it goes{without}"


def _closed(text: bytes) -> tuple[bytes, int] | None:
    """Return JSON whose list of events is closed, and how many bytes of ``text`` it has."""
    if text.lstrip()[:1] != b"[":
        whole = text.rstrip().rstrip(b",")
        return (whole + b"]}", len(whole)) if _ends_whole(text) and _is_json(whole + b"]}") else None
    ends = [match.start() for match in _BETWEEN.finditer(text, max(0, len(text) - _TAIL))][-MOST_TRIES:]
    if _ends_whole(text):
        ends.append(text.rindex(b"}"))
    for end in reversed(ends):
        if _is_json(text[: end + 1] + b"]"):
            return text[: end + 1] + b"]", end + 1
    return None


def _ends_whole(text: bytes) -> bool:
    """Return whether an event ends at the end, or its comma."""
    return text[-_TAIL:].rstrip().removesuffix(b",").rstrip().endswith(b"}")


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


# An event takes 60 bytes or more; in memory an empty one takes 90. A file full of empty objects is not a trace.
LEAST_OBJECT_BYTES: Final = 12
MOST_SMALL_OBJECTS: Final = 100_000
MOST_DEVICES_BYTES: Final = BYTES_PER_MIB
# Pieces with events of other categories, such as the names of threads at the begin and at the end: so many and one of
# so many others are decoded twice.
MOST_REFUSED: Final = 3
PIECES_A_REFUSAL: Final = 8
_SNIFFED: Final = 1 << 13
# Microseconds since 1970 with a fraction: as floats these would be a quarter of a microsecond apart.
_LARGE_FLOAT: Final = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.\d')
_BEGINS_LIST: Final = re.compile(rb"\s*\[")

Number = int | float | str | None
MISSING: Final = msgspec.Raw()


class CallArgs(msgspec.Struct, gc=False):
    """The arguments of calls of a runtime that the analysis uses."""

    correlation: Number = NONE
    external_id: Number = msgspec.field(default=NONE, name="External id")
    external_id_old: Number = msgspec.field(default=NONE, name="external id")
    kernel: Number = None  # that a call of HIP launches


class OperatorArgs(CallArgs, gc=False):
    """Those of operators and annotations."""

    dims: msgspec.Raw = msgspec.field(default=MISSING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=MISSING, name="Input type")
    values: msgspec.Raw = msgspec.field(default=MISSING, name="Concrete Inputs")
    stack: Any = msgspec.field(default="", name="Call stack")
    module: Any = msgspec.field(default="", name="Module Hierarchy")


class Args(OperatorArgs, gc=False):
    """Those of any event."""

    device: Number = NONE
    stream: Number = NONE
    bytes: Number = NONE
    memory_bytes: Number = msgspec.field(default=NONE, name="Bytes")
    device_type: Number = msgspec.field(default=NONE, name="Device Type")
    device_id: Number = msgspec.field(default=NONE, name="Device Id")
    allocated: Number = msgspec.field(default=NONE, name="Total Allocated")
    reserved: Number = msgspec.field(default=NONE, name="Total Reserved")
    occupancy: Number = msgspec.field(default=None, name="est. achieved occupancy %")
    blocks_per_sm: Number = msgspec.field(default=None, name="blocks per SM")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    size: Number = NONE  # of a copy of MTIA
    elements_in: Number = msgspec.field(default=NONE, name="In msg nelems")
    elements_out: Number = msgspec.field(default=NONE, name="Out msg nelems")
    group_size: Number = msgspec.field(default=NONE, name="Group size")
    group_name: msgspec.Raw = msgspec.field(default=MISSING, name="Process Group Name")
    group_ranks: msgspec.Raw = msgspec.field(default=MISSING, name="Process Group Ranks")
    sequence: Number = msgspec.field(default=NONE, name="Seq")
    dtype: str | None = None


class TraceEvent(msgspec.Struct, gc=False):
    """One event of the file; times in us."""

    ph: Number = ""
    cat: Number = ""
    name: Number = ""
    pid: Number = None
    tid: Number = None
    ts: Number | bool = None
    dur: Number | bool = None
    args: Args | None = None


class _EventAsWritten(TraceEvent, gc=False):
    """An event whose times are the bytes of the file."""

    ts: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]
    dur: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


# By category, where the analysis reads arguments of its events.
_ARGS: Final = {
    "kernel": Args,
    "gpu_memcpy": Args,
    "gpu_memset": Args,
    "cuda_runtime": CallArgs,
    "cpu_op": OperatorArgs,
    "user_annotation": OperatorArgs,
}


class _Span(msgspec.Struct, gc=False):
    """An event as ``TraceEvent``, of a category that is known; of its arguments only those of the category are read."""

    ph: Literal["X"]
    name: Number = ""
    pid: Number = None
    tid: Number = None
    ts: Number | bool = None
    dur: Number | bool = None


class _Arrow(msgspec.Struct, gc=False):
    """An event that connects two others; nothing of it is read."""

    ph: Literal["s", "t", "f"]


def _of_category(category: str, base: type[msgspec.Struct], args: type[msgspec.Struct] | None = None) -> Any:
    """Return the type of the events of a category of the file."""
    fields = [] if args is None else [("args", args | None, None)]
    own = {"cat": category} if args else {"cat": category, "args": None}
    name = f"_{category.title()}"
    return msgspec.defstruct(name, fields, bases=(base,), namespace=own, tag_field="cat", tag=category, gc=False)


_OLD_NAMES: Final = {category.capitalize() for category in CATEGORIES if "_" not in category}
_NOT_ANALYSED: Final = {"Trace", "cuda_sync", "cuda_profiler_range"}
_SPANS: Final = [
    _of_category(each, _Span, _ARGS.get(CATEGORIES.get(each.lower(), "")))
    for each in sorted({*CATEGORIES, *_OLD_NAMES, *_NOT_ANALYSED})
]
_ARROWS: Final = [_of_category(each, _Arrow) for each in ("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd")]
_OF_CATEGORIES: Final = reduce(or_, [*_SPANS, *_ARROWS])


class _File(msgspec.Struct, gc=False):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="deviceProperties")
    distributed: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="distributedInfo")


class _FileAsWritten(_File, gc=False):
    events: list[_EventAsWritten] = msgspec.field(name="traceEvents")  # type: ignore[assignment]


class _FileOfCategories(_File, gc=False):
    """The same, decoded in less time; a file with any other event is refused."""

    events: list[_OF_CATEGORIES] = msgspec.field(name="traceEvents")  # type: ignore[valid-type]


class RawTrace(msgspec.Struct, gc=False):
    """A decoded trace file."""

    events: list[TraceEvent]
    devices: list[dict[str, Any]]
    distributed: dict[str, Any]
    notes: tuple[str, ...] = ()  # what of the file could not be read
    has_others: bool = True  # whether there may be others than spans and arrows


def read_parts(path: Path, most_bytes: int = MOST_BYTES, *, as_written: bool = False) -> Iterator[RawTrace]:
    """Yield the trace in ``path``, which may be gzipped, as parts with some of its events each.

    Of the file, only one part at a time is in memory. The description of the devices is in one of the parts. Times are
    the bytes of the file if they are to be ``as_written``, or if those at the begin of a part are large.

    Raises:
        TraceError: The file cannot be read in parts. ``read_events`` reads it at once, or knows why it cannot be read.
        NoPiecesError: The same.
    """
    refused = 0
    for i, piece in enumerate(pieces_of(chunks_of(path, most_bytes))):
        file = None
        if refused <= MOST_REFUSED + i // PIECES_A_REFUSAL and not as_written and not _has_large_times(piece):
            file = _of_categories(piece)
            refused += file is None
        yield _raw_trace(file or _of_any_times(path, piece, as_written=as_written), [])


def read_events(path: Path, most_bytes: int = MOST_BYTES, *, as_written: bool = False) -> RawTrace:
    """Return the events of the trace in ``path``, which may be gzipped; times as in ``read_parts``.

    Raises:
        TraceError: The file cannot be read, is too large or is not a whole trace. The message has one line.
    """
    text, notes = _without_mark(b"".join(chunks_of(path, most_bytes)))
    if not text or text.isspace():
        raise TraceError(f"{path} is empty: was the training stopped before the trace was written?")
    if text.count(b"{") > MOST_SMALL_OBJECTS + len(text) // LEAST_OBJECT_BYTES:
        raise TraceError(f"{path} is not a trace of torch.profiler: most of it is small or empty objects")
    try:
        file = _of_any_times(path, text, as_written=as_written)
    except TraceError:
        whole = closed(text)
        if whole is None:
            raise
        text, note = whole
        file, notes = _of_any_times(path, text, as_written=as_written), [*notes, note]
    return _raw_trace(file, notes)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the JSON of a trace that ``read_events`` can read, with an end where it lacks one."""
    text, _ = _without_mark(b"".join(chunks_of(path, most_bytes)))
    try:
        _of_any_times(path, text)
    except TraceError:
        whole = closed(text)
        return text if whole is None else whole[0]
    return text


def _raw_trace(file: _File, notes: list[str]) -> RawTrace:
    devices, distributed = _small(file.devices), _small(file.distributed)
    return RawTrace(
        file.events,
        [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        distributed if isinstance(distributed, dict) else {},
        tuple(notes),
        not isinstance(file, _FileOfCategories),
    )


def _without_mark(text: bytes) -> tuple[bytes, list[str]]:
    """Return JSON without its byte order mark, as UTF-8."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return text.decode("utf-16", "replace").encode("utf-8", "replace"), ["read as UTF-16, not UTF-8"]
    if text.startswith(codecs.BOM_UTF8):
        return text.removeprefix(codecs.BOM_UTF8), ["a byte order mark at its begin is left out"]
    return text, []


def _of_any_times(path: Path, text: bytes | bytearray, *, as_written: bool = False) -> _File:
    return _decoded(path, text, _FileAsWritten if as_written or _has_large_times(text) else _File)


def _has_large_times(text: bytes | bytearray) -> bool:
    return _LARGE_FLOAT.search(text, 0, _SNIFFED) is not None


def _of_categories(text: bytearray) -> _File | None:
    """Return a decoded piece; None if it has events of other categories, or cannot be decoded."""
    try:
        return msgspec.json.decode(text, type=_FileOfCategories)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _small(part: msgspec.Raw) -> Any:
    """Return a part of the file that is not events; None if it is missing, not readable, or too large."""
    if not 0 < len(part) <= MOST_DEVICES_BYTES:
        return None
    try:
        return msgspec.json.decode(part)
    except (msgspec.DecodeError, ValueError, RecursionError):  # 1e999, or bytes that are not UTF-8
        return None


def _decoded(path: Path, text: bytes | bytearray, kind: type[_File]) -> _File:
    try:
        if _BEGINS_LIST.match(text):  # the format also allows a plain list of events
            events = msgspec.json.decode(
                text, type=list[_EventAsWritten] if kind is _FileAsWritten else list[TraceEvent]
            )
            return _File(events)  # type: ignore[arg-type]
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path} is not a trace of torch.profiler: {_one_line(error)}") from None
    except RecursionError:
        raise TraceError(f"{path} is not a trace of torch.profiler: its JSON is nested too deeply") from None
    except UnicodeDecodeError:  # in a name; a replaced character does no harm
        return _decoded(path, text.decode("utf-8", "replace").encode(), kind)
    except msgspec.DecodeError as error:
        what = _one_line(error)
        if "truncated" in what and text.rstrip()[-1:] not in (b"}", b"]"):
            raise TraceError(
                f"{path} is cut off after {len(text)} bytes of JSON: was the training stopped while it wrote?"
            ) from None
        raise TraceError(f"{path} is not JSON: {what}") from None


def _one_line(error: Exception) -> str:
    return one_line(" ".join(str(error).split())[:200].removeprefix("JSON is malformed: "))
