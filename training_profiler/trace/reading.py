"""Reading a trace file: bytes in, typed events out; what is no trace gives one clear sentence."""

import zlib
from pathlib import Path
from typing import Any, Final

import msgspec

from training_profiler.errors import TraceError
from training_profiler.units import BYTES_PER_GIB

MOST_BYTES: Final = (
    4 * BYTES_PER_GIB
)  # of JSON; a trace of that size holds some 25 million events, and no viewer opens it
_GZIP: Final = b"\x1f\x8b"
_CHUNK: Final = 1 << 24
# A float of so many microseconds still tells nanoseconds apart: 2**42 us is 51 days.
EXACT_BELOW_US: Final = float(2**42)

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """Those arguments of an event that anything here looks at."""

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
    elements_out: Number = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    name: str | None = None  # of a process or thread, in metadata events
    labels: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


class _EventAsWritten(msgspec.Struct, gc=False):
    """The same, with times as they stand in the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = None


class _File(msgspec.Struct, gc=False):
    events: list[Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")


class _FileAsWritten(msgspec.Struct, gc=False):
    events: list[_EventAsWritten] = msgspec.field(name="traceEvents")


class RawTrace(msgspec.Struct, gc=False):
    """A file as it was decoded."""

    events: list[Event]
    devices: list[dict[str, Any]]
    distributed: dict[str, Any]


def read_events(path: Path, most_bytes: int = MOST_BYTES) -> RawTrace:
    """Return the events of the trace in ``path``, which may be gzipped.

    Raises:
        TraceError: it cannot be read, is too large, or is no whole trace; the message says which in one line.
    """
    text = _text_of(path, most_bytes)
    if not text.strip():
        raise TraceError(f"{path} is empty")
    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path} is not a trace: {_sentence(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is cut off or damaged: {_sentence(error)}") from None
    if any(isinstance(event.ts, float) and abs(event.ts) >= EXACT_BELOW_US for event in file.events):
        _read_times_exactly(text, file.events)
    devices = file.devices if isinstance(file.devices, list) else []
    return RawTrace(
        file.events,
        [device for device in devices if isinstance(device, dict)],
        file.distributed if isinstance(file.distributed, dict) else {},
    )


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:1].lower() + text[1:200]


def _text_of(path: Path, most_bytes: int) -> bytes:
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder; give a file in it, such as *.pt.trace.json.gz") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None
    if data.startswith(_GZIP):
        data = _unzipped(path, data, most_bytes)
        if data.startswith(_GZIP):
            raise TraceError(f"{path} is gzipped twice; unpack it once: gunzip -c FILE > once.json.gz")
    if len(data) > most_bytes:
        raise TraceError(_too_large(path, most_bytes))
    return data


def _unzipped(path: Path, data: bytes, most_bytes: int) -> bytes:
    """Return what is packed in ``data``, never holding more than ``most_bytes`` of it."""
    parts, size, rest = [], 0, data
    while rest:
        packed = zlib.decompressobj(wbits=31)
        try:
            while not packed.eof:
                part = packed.decompress(rest, _CHUNK)
                rest = packed.unconsumed_tail
                if not part and not rest and not packed.eof:
                    raise TraceError(f"{path} is cut off: the gzip file has no end")
                size += len(part)
                if size > most_bytes:
                    raise TraceError(_too_large(path, most_bytes))
                parts.append(part)
        except zlib.error as error:
            raise TraceError(f"{path} is no whole gzip file: {_sentence(error)}") from None
        rest = packed.unused_data if packed.unused_data.startswith(_GZIP) else b""  # files put one after another
    return b"".join(parts)


def _too_large(path: Path, most_bytes: int) -> str:
    return f"{path} holds more than {most_bytes / BYTES_PER_GIB:g} GiB of JSON, the limit; record fewer steps"


def _read_times_exactly(text: bytes, events: list[Event]) -> None:
    """Put the times in as whole nanoseconds where a float of microseconds would have rounded them, as strings."""
    for event, written in zip(events, msgspec.json.decode(text, type=_FileAsWritten).events, strict=True):
        event.ts, event.dur = bytes(written.ts).decode() or None, bytes(written.dur).decode() or None
