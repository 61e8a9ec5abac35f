"""Reads a trace file into typed events. A file that is not a trace gives a clear error of one line."""

import re
import zlib
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Final

import msgspec

from training_profiler.errors import TraceError
from training_profiler.trace_analysis.load.times import EXACT_BELOW_US
from training_profiler.units import BYTES_PER_GIB, BYTES_PER_MIB

MOST_BYTES: Final = 2 * BYTES_PER_GIB  # of JSON, some 12 million events; no viewer opens it either
# gzip packs a trace to a tenth or twentieth of its size. A large file packed to less than a 200th is not a trace.
MOST_PACKED: Final = 200
PACKED_FREELY_BYTES: Final = 64 * BYTES_PER_MIB
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
    collective: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: Number = msgspec.field(default=None, name="In msg nelems")
    dtype: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of the file; times in us."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class _EventAsWritten(Event, gc=False):
    """An event whose times are the bytes of the file."""

    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()


class _File(msgspec.Struct, gc=False):
    events: list[Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")


class _FileAsWritten(_File, gc=False):
    events: list[_EventAsWritten] = msgspec.field(name="traceEvents")  # type: ignore[assignment]


class RawTrace(msgspec.Struct, gc=False):
    """A decoded trace file."""

    events: list[Event]
    devices: list[dict[str, Any]]
    distributed: dict[str, Any]

    @property
    def kinds(self) -> set[str]:
        """The phases of its events ("X", "i", "B", ...)."""
        return {event.ph for event in self.events}


def read_events(path: Path, most_bytes: int = MOST_BYTES) -> RawTrace:
    """Return the events of the trace in ``path``, which may be gzipped.

    Raises:
        TraceError: The file cannot be read, is too large or is not a whole trace. The message has one line.
    """
    text = _text_of(path, most_bytes)
    if not text.strip():
        raise TraceError(f"{path} is empty: was the training stopped before the trace was written?")
    file = _decoded(path, text, _FileAsWritten if _LARGE_FLOAT.search(text[:_SNIFFED]) else _File)
    if any(type(event.ts) is float and abs(event.ts) >= EXACT_BELOW_US for event in file.events):
        file = _decoded(path, text, _FileAsWritten)
    devices = file.devices if isinstance(file.devices, list) else []
    return RawTrace(
        file.events,
        [device for device in devices if isinstance(device, dict)],
        file.distributed if isinstance(file.distributed, dict) else {},
    )


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
    return " ".join(str(error).split())[:200].removeprefix("JSON is malformed: ")


def _text_of(path: Path, most_bytes: int) -> bytes:
    try:
        status = path.stat()
        if S_ISDIR(status.st_mode):
            raise TraceError(f"{path} is a folder; give a file in it, such as *.pt.trace.json.gz")
        if not S_ISREG(status.st_mode):
            raise TraceError(f"{path} is not a file; write the trace to a file first")
        if status.st_size > most_bytes:
            raise TraceError(_too_large(path, most_bytes))
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None
    if data.startswith(_GZIP):
        data = _unzipped(path, data, most_bytes)
        if data.startswith(_GZIP):
            raise TraceError(f"{path} is gzipped twice; unpack it once: gunzip -c FILE > once.json.gz")
    return data


def _unzipped(path: Path, data: bytes, most_bytes: int) -> bytes:
    """Return the unpacked ``data``. Unpacking stops at the limits."""
    most_of_it = min(most_bytes, max(PACKED_FREELY_BYTES, MOST_PACKED * len(data)))
    parts, size, rest = [], 0, data
    while rest:
        packed = zlib.decompressobj(wbits=31)
        try:
            while not packed.eof:
                part = packed.decompress(rest, _CHUNK)
                rest = packed.unconsumed_tail
                if not part and not rest and not packed.eof:
                    raise TraceError(f"{path} is cut off: the gzip file ends early. Was the training stopped then?")
                size += len(part)
                if size > most_of_it:
                    raise TraceError(_too_large(path, most_bytes, 0 if size > most_bytes else len(data)))
                parts.append(part)
        except zlib.error as error:
            raise TraceError(f"{path} is damaged: gzip cannot unpack it ({_one_line(error)})") from None
        rest = packed.unused_data if packed.unused_data.startswith(_GZIP) else b""  # files put one after another
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(path: Path, most_bytes: int, packed_bytes: int = 0) -> str:
    if packed_bytes:
        return f"{path} unpacks to over {MOST_PACKED} times its {packed_bytes} bytes: no trace does, so it is not read"
    return (
        f"{path} holds over {most_bytes / BYTES_PER_GIB:g} GiB of JSON, the limit; record fewer steps, or less of each"
    )
