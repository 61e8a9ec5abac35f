"""Reads a trace file into typed events. A file that is not a trace gives a clear error of one line."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from training_profiler.errors import TraceError
from training_profiler.text import one_line
from training_profiler.trace_analysis.load.chunks import MOST_BYTES, chunks_of
from training_profiler.trace_analysis.load.columns import NONE
from training_profiler.trace_analysis.load.mend import mend
from training_profiler.trace_analysis.load.pieces import pieces_of
from training_profiler.trace_analysis.load.times import EXACT_BELOW_US
from training_profiler.units import BYTES_PER_MIB

# An event takes 60 bytes or more; in memory an empty one takes 90. A file full of empty objects is not a trace.
LEAST_OBJECT_BYTES: Final = 12
MOST_SMALL_OBJECTS: Final = 100_000
MOST_DEVICES_BYTES: Final = BYTES_PER_MIB
_SNIFFED: Final = 1 << 16
# Microseconds since 1970 with a fraction: as floats these would be a quarter of a microsecond apart.
_LARGE_FLOAT: Final = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.\d')
_BEGINS_LIST: Final = re.compile(rb"\s*\[")

Number = int | float | str | None
MISSING: Final = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that the analysis uses."""

    device: Number = NONE
    stream: Number = NONE
    correlation: Number = NONE
    external_id: Number = msgspec.field(default=NONE, name="External id")
    external_id_old: Number = msgspec.field(default=NONE, name="external id")
    bytes: Number = NONE
    memory_bytes: Number = msgspec.field(default=NONE, name="Bytes")
    device_type: Number = msgspec.field(default=NONE, name="Device Type")
    device_id: Number = msgspec.field(default=NONE, name="Device Id")
    allocated: Number = msgspec.field(default=NONE, name="Total Allocated")
    reserved: Number = msgspec.field(default=NONE, name="Total Reserved")
    occupancy: Number = msgspec.field(default=None, name="est. achieved occupancy %")
    blocks_per_sm: Number = msgspec.field(default=None, name="blocks per SM")
    dims: msgspec.Raw = msgspec.field(default=MISSING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=MISSING, name="Input type")
    values: msgspec.Raw = msgspec.field(default=MISSING, name="Concrete Inputs")
    stack: Any = msgspec.field(default="", name="Call stack")
    module: Any = msgspec.field(default="", name="Module Hierarchy")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    kernel: Number = None  # that a call of HIP launches
    size: Number = NONE  # of a copy of MTIA
    elements_in: Number = msgspec.field(default=NONE, name="In msg nelems")
    elements_out: Number = msgspec.field(default=NONE, name="Out msg nelems")
    group_size: Number = msgspec.field(default=NONE, name="Group size")
    group_name: msgspec.Raw = msgspec.field(default=MISSING, name="Process Group Name")
    group_ranks: msgspec.Raw = msgspec.field(default=MISSING, name="Process Group Ranks")
    sequence: Number = msgspec.field(default=NONE, name="Seq")
    dtype: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of the file; times in us."""

    ph: Number = ""
    cat: Number = ""
    name: Number = ""
    pid: Number = None
    tid: Number = None
    ts: Number | bool = None
    dur: Number | bool = None
    args: Args | None = None


class _EventAsWritten(Event, gc=False):
    """An event whose times are the bytes of the file."""

    ts: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]
    dur: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


class _File(msgspec.Struct, gc=False):
    events: list[Event] = msgspec.field(name="traceEvents")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="deviceProperties")
    distributed: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="distributedInfo")


class _FileAsWritten(_File, gc=False):
    events: list[_EventAsWritten] = msgspec.field(name="traceEvents")  # type: ignore[assignment]


class RawTrace(msgspec.Struct, gc=False):
    """A decoded trace file."""

    events: list[Event]
    devices: list[dict[str, Any]]
    distributed: dict[str, Any]
    notes: tuple[str, ...] = ()  # what of the file could not be read


def read_parts(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[RawTrace]:
    """Yield the trace in ``path``, which may be gzipped, as parts with some of its events each.

    Of the file, only one part at a time is in memory. The description of the devices is in one of the parts.

    Raises:
        TraceError: The file cannot be read in parts. ``read_events`` reads it at once, or knows why it cannot be read.
        NoPiecesError: The same.
    """
    for piece in pieces_of(chunks_of(path, most_bytes)):
        yield _raw_trace(_of_any_times(path, piece), [])


def read_events(path: Path, most_bytes: int = MOST_BYTES) -> RawTrace:
    """Return the events of the trace in ``path``, which may be gzipped.

    Raises:
        TraceError: The file cannot be read, is too large or is not a whole trace. The message has one line.
    """
    text, notes = _without_mark(b"".join(chunks_of(path, most_bytes)))
    if not text or text.isspace():
        raise TraceError(f"{path} is empty: was the training stopped before the trace was written?")
    if text.count(b"{") > MOST_SMALL_OBJECTS + len(text) // LEAST_OBJECT_BYTES:
        raise TraceError(f"{path} is not a trace of torch.profiler: most of it is small or empty objects")
    try:
        file = _of_any_times(path, text)
    except TraceError:
        mended = mend(text)
        if mended is None:
            raise
        text, note = mended
        file, notes = _of_any_times(path, text), [*notes, note]
    return _raw_trace(file, notes)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the JSON of a trace that ``read_events`` can read, mended where it must be."""
    text, _ = _without_mark(b"".join(chunks_of(path, most_bytes)))
    try:
        _of_any_times(path, text)
    except TraceError:
        mended = mend(text)
        return text if mended is None else mended[0]
    return text


def _raw_trace(file: _File, notes: list[str]) -> RawTrace:
    devices, distributed = _small(file.devices), _small(file.distributed)
    return RawTrace(
        file.events,
        [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        distributed if isinstance(distributed, dict) else {},
        tuple(notes),
    )


def _without_mark(text: bytes) -> tuple[bytes, list[str]]:
    """Return JSON without its byte order mark, as UTF-8."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return text.decode("utf-16", "replace").encode("utf-8", "replace"), ["read as UTF-16, not UTF-8"]
    if text.startswith(codecs.BOM_UTF8):
        return text.removeprefix(codecs.BOM_UTF8), ["a byte order mark at its begin is left out"]
    return text, []


def _of_any_times(path: Path, text: bytes | bytearray) -> _File:
    if not _LARGE_FLOAT.search(text, 0, _SNIFFED):
        file = _decoded(path, text, _File)
        if not _has_large_floats(file.events):
            return file
    return _decoded(path, text, _FileAsWritten)


def _has_large_floats(events: list[Event]) -> bool:
    """Return whether a time is a float that may not be exact."""
    if float not in {type(event.ts) for event in events}:
        return False
    times = [event.ts for event in events if type(event.ts) is float]
    return max(max(times), -min(times)) >= EXACT_BELOW_US


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
            events = msgspec.json.decode(text, type=list[_EventAsWritten] if kind is _FileAsWritten else list[Event])
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
