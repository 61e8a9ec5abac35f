"""Reads a trace file into typed events. A file that is not a trace gives a clear error of one line."""

import codecs
import os
import re
import zlib
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from training_profiler.errors import TraceError
from training_profiler.safety.files import NotRegularFileError, open_file
from training_profiler.text import one_line
from training_profiler.trace_analysis.load.mend import mend
from training_profiler.trace_analysis.load.times import EXACT_BELOW_US
from training_profiler.units import BYTES_PER_GIB, BYTES_PER_MIB

MOST_BYTES: Final = 2 * BYTES_PER_GIB  # of JSON, some 12 million events; no viewer opens it either
# gzip packs a trace to a tenth or twentieth of its size. What is packed to less than a 100th is not a trace.
MOST_PACKED: Final = 100
PACKED_FREELY_BYTES: Final = 32 * BYTES_PER_MIB
# An event takes 60 bytes or more; in memory an empty one takes 90. A file full of empty objects is not a trace.
LEAST_OBJECT_BYTES: Final = 12
MOST_SMALL_OBJECTS: Final = 100_000
MOST_DEVICES_BYTES: Final = BYTES_PER_MIB
_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 24
_SNIFFED: Final = 1 << 16
# Microseconds since 1970 with a fraction: as floats these would be a quarter of a microsecond apart.
_LARGE_FLOAT: Final = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.\d')

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that the analysis uses."""

    device: Number = None
    stream: Number = None
    correlation: Number = None
    external_id: Number = msgspec.field(default=None, name="External id")
    external_id_old: Number = msgspec.field(default=None, name="external id")
    bytes: Number = None
    memory_bytes: Number = msgspec.field(default=None, name="Bytes")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    occupancy: Number = msgspec.field(default=None, name="est. achieved occupancy %")
    blocks_per_sm: Number = msgspec.field(default=None, name="blocks per SM")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")
    stack: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Call stack")
    module: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Module Hierarchy")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    kernel: Number = None  # that a call of HIP launches
    direction: Number = None  # of a copy of MTIA
    size: Number = None
    elements_in: Number = msgspec.field(default=None, name="In msg nelems")
    elements_out: Number = msgspec.field(default=None, name="Out msg nelems")
    group_size: Number = msgspec.field(default=None, name="Group size")
    group_name: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Process Group Name")
    group_ranks: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Process Group Ranks")
    sequence: Number = msgspec.field(default=None, name="Seq")
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


def read_events(path: Path, most_bytes: int = MOST_BYTES) -> RawTrace:
    """Return the events of the trace in ``path``, which may be gzipped.

    Raises:
        TraceError: The file cannot be read, is too large or is not a whole trace. The message has one line.
    """
    text, notes = _without_mark(_text_of(path, most_bytes))
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
    devices, distributed = _small(file.devices), _small(file.distributed)
    return RawTrace(
        file.events,
        [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        distributed if isinstance(distributed, dict) else {},
        tuple(notes),
    )


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the JSON of a trace that ``read_events`` can read, mended where it must be."""
    text, _ = _without_mark(_text_of(path, most_bytes))
    try:
        _of_any_times(path, text)
    except TraceError:
        mended = mend(text)
        return text if mended is None else mended[0]
    return text


def _without_mark(text: bytes) -> tuple[bytes, list[str]]:
    """Return JSON without its byte order mark, as UTF-8."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return text.decode("utf-16", "replace").encode("utf-8", "replace"), ["read as UTF-16, not UTF-8"]
    if text.startswith(codecs.BOM_UTF8):
        return text.removeprefix(codecs.BOM_UTF8), ["a byte order mark at its begin is left out"]
    return text, []


def _of_any_times(path: Path, text: bytes) -> _File:
    file = _decoded(path, text, _FileAsWritten if _LARGE_FLOAT.search(text[:_SNIFFED]) else _File)
    times = [time for time in map(attrgetter("ts"), file.events) if type(time) is float]
    if times and max(max(times), -min(times)) >= EXACT_BELOW_US:
        file = _decoded(path, text, _FileAsWritten)
    return file


def _small(part: msgspec.Raw) -> Any:
    """Return a part of the file that is not events; None if it is missing, not readable, or too large."""
    if not 0 < len(part) <= MOST_DEVICES_BYTES:
        return None
    try:
        return msgspec.json.decode(part)
    except (msgspec.DecodeError, ValueError, RecursionError):  # 1e999, or bytes that are not UTF-8
        return None


def _decoded(path: Path, text: bytes, kind: type[_File]) -> _File:
    try:
        if text.lstrip()[:1] == b"[":  # the format also allows a plain list of events
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


def _text_of(path: Path, most_bytes: int) -> bytes:
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give a file in it, such as *.pt.trace.json.gz")
    try:
        with open_file(path, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most_bytes:
                raise TraceError(_too_large(path, most_bytes))
            if file.read(len(_GZIP)) == _GZIP:
                file.seek(0)
                data = _unzipped(path, file, most_bytes)
            else:
                file.seek(0)
                data = file.read(size)
    except NotRegularFileError:
        raise TraceError(f"{path} is not a file; write the trace to a file first") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None
    if data.startswith(_GZIP):
        raise TraceError(f"{path} is gzipped twice; unpack it once: gunzip -c FILE > once.json.gz")
    return data


def _unzipped(path: Path, file: BinaryIO, most_bytes: int) -> bytes:
    """Return the unpacked content of ``file``. Unpacking stops at the limits, before the memory is taken."""
    parts, size, rest, packed_bytes = [], 0, file.read(_CHUNK), 0
    while rest:
        packed = zlib.decompressobj(wbits=31)
        try:
            while not packed.eof:
                before = len(rest)
                part = packed.decompress(rest, _CHUNK)
                rest = packed.unconsumed_tail
                packed_bytes += before - len(rest) - len(packed.unused_data)
                if not rest and not packed.eof:
                    rest = file.read(_CHUNK)
                    if not part and not rest:
                        raise TraceError(f"{path} is cut off: the gzip file ends early. Was the training stopped then?")
                size += len(part)
                if size > most_bytes:
                    raise TraceError(_too_large(path, most_bytes))
                if size > PACKED_FREELY_BYTES and size > MOST_PACKED * packed_bytes:
                    raise TraceError(_too_large(path, most_bytes, os.fstat(file.fileno()).st_size))
                parts.append(part)
        except zlib.error as error:
            raise TraceError(f"{path} is damaged: gzip cannot unpack it ({_one_line(error)})") from None
        rest = packed.unused_data or file.read(_CHUNK)
        if not rest.startswith(_GZIP):  # else files put one after another
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(path: Path, most_bytes: int, packed_bytes: int = 0) -> str:
    if packed_bytes:
        return f"{path} unpacks to over {MOST_PACKED} times its {packed_bytes} bytes: no trace does, so it is not read"
    return (
        f"{path} holds over {most_bytes / BYTES_PER_GIB:g} GiB of JSON, the limit; record fewer steps, or less of each"
    )
