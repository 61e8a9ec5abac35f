"""Reads a trace file into typed events: in chunks, unpacked within limits; or in pieces that are traces themselves."""

import codecs
import ctypes
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from training_profiler.base.errors import TraceError
from training_profiler.base.text import one_line
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB
from training_profiler.safety.files import NotRegularFileError, open_file
from training_profiler.trace_analysis.columns import NONE

M_TRIM_THRESHOLD: Final = -1  # these two of mallopt(3)
M_MMAP_MAX: Final = -4
MOST_BYTES: Final = 2 * BYTES_PER_GIB  # of JSON, some 12 million events; no viewer opens it either
# gzip packs a trace to a tenth or twentieth of its size. What is packed to less than a 100th is not a trace.
MOST_PACKED: Final = 100
PACKED_FREELY_BYTES: Final = 32 * BYTES_PER_MIB
MOST_MEMBERS: Final = 2_000_000  # files in a chain of gzip files
_GZIP: Final = b"\x1f\x8b"
_FIRST: Final = 4096  # bytes of a member given first: what follows a tiny one is copied with each
# The events of a chunk are decoded into memory that was just freed; smaller chunks cost more calls, larger ones more
# memory (benchmarks/trace_analysis.py).
_CHUNK: Final = BYTES_PER_MIB


def chunks_of(path: Path, most_bytes: int) -> Iterator[bytes]:
    """Yield the content of the trace in ``path``, which may be gzipped.

    Raises:
        TraceError: The file cannot be read or is too large. The message has one line.
    """
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give a file in it, such as *.pt.trace.json.gz")
    try:
        with open_file(path, follow=True) as file:
            if os.fstat(file.fileno()).st_size > most_bytes:
                raise TraceError(_too_large(path, most_bytes))
            is_packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            chunks = _unpacked(path, file, most_bytes) if is_packed else iter(lambda: file.read(_CHUNK), b"")
            for i, chunk in enumerate(chunks):
                if not i and chunk.startswith(_GZIP):
                    raise TraceError(f"{path} is gzipped twice; unpack it once: gunzip -c FILE > once.json.gz")
                yield chunk
    except NotRegularFileError:
        raise TraceError(f"{path} is not a file; write the trace to a file first") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None


def _unpacked(path: Path, file: BinaryIO, most_bytes: int) -> Iterator[bytes]:
    """Yield the unpacked content of ``file``. Unpacking stops at the limits, before the memory is taken."""
    ready, size, packed_bytes, members = bytearray(), 0, 0, 0
    read, at = b"", 0  # what was read last, and the place in it
    while True:
        if len(read) - at < len(_GZIP):
            read, at = read[at:] + file.read(_CHUNK), 0
        if not read.startswith(_GZIP, at):  # else files put one after another
            break
        members += 1
        if members > MOST_MEMBERS:
            raise TraceError(f"{path} consists of over {MOST_MEMBERS} gzip files: no trace does, so it is not read")
        packed, given_bytes = zlib.decompressobj(wbits=31), _FIRST
        try:
            while not packed.eof:
                given = packed.unconsumed_tail
                if not given:
                    if at == len(read):
                        read, at = file.read(_CHUNK), 0
                    given = read[at : at + given_bytes]
                    at, given_bytes = at + len(given), _CHUNK
                chunk = packed.decompress(given, _CHUNK)
                packed_bytes += len(given) - len(packed.unconsumed_tail) - len(packed.unused_data)
                if not given and not chunk:
                    raise TraceError(f"{path} is cut off: the gzip file ends early. Was the training stopped then?")
                size += len(chunk)
                if size > most_bytes:
                    raise TraceError(_too_large(path, most_bytes))
                if size > PACKED_FREELY_BYTES and size > MOST_PACKED * packed_bytes:
                    raise TraceError(_too_large(path, most_bytes, os.fstat(file.fileno()).st_size))
                ready += chunk
                if len(ready) >= _CHUNK:
                    yield bytes(ready)
                    ready.clear()
        except zlib.error as error:
            raise TraceError(f"{path} is damaged: gzip cannot unpack it ({one_line(error)})") from None
        at -= len(packed.unused_data)
    yield bytes(ready)


def _too_large(path: Path, most_bytes: int, packed_bytes: int = 0) -> str:
    if packed_bytes:
        return f"{path} unpacks to over {MOST_PACKED} times its {packed_bytes} bytes: no trace does, so it is not read"
    return (
        f"{path} holds over {most_bytes / BYTES_PER_GIB:g} GiB of JSON, the limit; record fewer steps, or less of each"
    )


MOST_PIECE_BYTES: Final = 4 * BYTES_PER_MIB
# The begin of the list of events, and the first key of the first event.
_LIST: Final = re.compile(rb'("traceEvents"\s*:\s*\[|^\s*\[)\s*\{\s*("[^"\\]*")')
_NEAR_END: Final = 1 << 16  # bytes in which an event ends


class NoPiecesError(ValueError):
    """The JSON is not written so that it can be cut; it may be a trace all the same."""


def pieces_of(chunks: Iterable[bytes]) -> Iterator[bytearray]:
    """Yield the pieces of the JSON in ``chunks``; each has a part of the events.

    A cut goes where an object ends and another begins with the key that the first event begins with. If that is not
    between two events of the list, such as within the arguments of one, the piece is not JSON.

    Raises:
        NoPiecesError: There is no place for a cut.
    """
    buffer = bytearray()
    opening, closing, between = b"", b"", None
    for chunk in chunks:
        buffer += chunk
        if between is None:
            found = _LIST.search(buffer)
            if found is not None:
                opening, closing = (b"[", b"]") if found[1].lstrip() == b"[" else (b'{"traceEvents":[', b"]}")
                between = re.compile(rb"\}\s*(,)\s*\{\s*" + re.escape(found[2]))
        cut = between and between.search(buffer, max(0, len(buffer) - _NEAR_END))
        if cut:
            rest = opening + buffer[cut.end(1) :]
            end = cut.start(1)
            del cut  # it holds the buffer, which then cannot change its length
            buffer[end:] = closing
            yield buffer
            buffer = bytearray(rest)
        elif len(buffer) > MOST_PIECE_BYTES:
            raise NoPiecesError
    yield buffer


def keep_memory() -> None:
    """Have this process keep the memory that it gives back, in small pages; for a process that ends after one command.

    Memory of large columns would go back to the system each time, which clears every page of the next column; huge
    pages are cleared beyond what is used of them. Only with glibc and versions of NumPy that can change it.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library; TypeError: Windows has no CDLL of None
        change = ctypes.CDLL(None).mallopt
        change(M_MMAP_MAX, 0)
        change(M_TRIM_THRESHOLD, 2**31 - 1)
    with suppress(ImportError):  # private: may be gone
        from numpy._core.multiarray import _set_madvise_hugepage  # type: ignore[attr-defined]

        _set_madvise_hugepage(False)


_BETWEEN: Final = re.compile(rb"\}\s*,\s*\{")
_TAIL: Final = 1 << 20  # bytes; the last whole event of a list begins within them
MOST_TRIES: Final = 20  # events inside an argument look like events of the list


def closed(text: bytes) -> tuple[bytes, str] | None:
    """Return JSON whose list of events has an end, and what was left out of it; None if that is not what it lacks.

    A list of events may lack its end, as the format of Chrome allows; the list of an object may too if it ends after a
    whole event. Anything else that is cut off stays refused.
    """
    is_list = text.lstrip()[:1] == b"["
    between = _BETWEEN.finditer(text, max(0, len(text) - _TAIL)) if is_list else ()
    ends = [match.start() + 1 for match in between][-MOST_TRIES:]
    if text[-_TAIL:].rstrip().removesuffix(b",").rstrip().endswith(b"}"):  # the last event is whole
        ends.append(text.rindex(b"}") + 1 if is_list else len(text.rstrip().rstrip(b",")))
    closing = b"]" if is_list else b"]}"
    end = next((end for end in reversed(ends) if _is_json(text[:end] + closing)), None)
    if end is None:
        return None
    left_out = len(text.rstrip()) - end
    without = f", without the last {left_out} bytes, a part of an event" if left_out > 1 else ""
    return text[:end] + closing, f"its list of events has no end; it is read as far as it goes{without}"


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
_BEGINS_LIST: Final = re.compile(rb"\s*\[")

Number = int | float | str | None
MISSING: Final = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The arguments that the analysis uses: of calls of a runtime, of operators and annotations, of any event."""

    correlation: Number = NONE
    external: Number = msgspec.field(default=NONE, name="External id")
    external_old: Number = msgspec.field(default=NONE, name="external id")
    kernel: Number = None  # that a call of HIP launches

    dims: msgspec.Raw = msgspec.field(default=MISSING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=MISSING, name="Input type")
    values: msgspec.Raw = msgspec.field(default=MISSING, name="Concrete Inputs")
    stack: Any = msgspec.field(default="", name="Call stack")
    module: Any = msgspec.field(default="", name="Module Hierarchy")

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
    """One event of the file; times are us as the file has them: as floats, large ones would not be exact."""

    ph: Number = ""
    cat: Number = ""
    name: Number = ""
    pid: Number = None
    tid: Number = None
    ts: msgspec.Raw = MISSING
    dur: msgspec.Raw = MISSING
    args: Args | None = None


class CounterEvent(msgspec.Struct, gc=False):
    """An event that has values of a counter in its arguments, under any keys."""

    ph: Number = ""
    name: Number = ""
    pid: Number = None
    ts: msgspec.Raw = MISSING
    args: msgspec.Raw = MISSING


class _Counters(msgspec.Struct, gc=False):
    events: list[CounterEvent] = msgspec.field(name="traceEvents")


_HAS_COUNTERS: Final = re.compile(rb'"ph"\s*:\s*"C"')
_NO_NUMBER: Final = re.compile(rb'(":\s*)-?(?:nan|inf|NaN|Infinity)(?=\s*[,}])')  # Kineto and Python write it


class _File(msgspec.Struct, gc=False):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="deviceProperties")
    distributed: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="distributedInfo")


class RawTrace(msgspec.Struct, gc=False):
    """A decoded trace file."""

    events: list[TraceEvent]
    devices: list[dict[str, Any]]
    distributed: dict[str, Any]
    notes: tuple[str, ...] = ()  # what of the file could not be read
    counters: list[CounterEvent] = []


def read_parts(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[RawTrace]:
    """Yield the trace in ``path``, which may be gzipped, as parts with some of its events each.

    Of the file, only one part at a time is in memory. The description of the devices is in one of the parts.

    Raises:
        TraceError: The file cannot be read in parts. ``read_events`` reads it at once, or knows why it cannot be read.
        NoPiecesError: The same.
    """
    for piece in pieces_of(chunks_of(path, most_bytes)):
        yield _raw_trace(*_decoded(path, piece), [])


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
        decoded = _decoded(path, text)
    except TraceError:
        whole = closed(text)
        if whole is None:
            raise
        text, note = whole
        decoded, notes = _decoded(path, text), [*notes, note]
    return _raw_trace(*decoded, notes)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the JSON of a trace that ``read_events`` can read, with an end where it lacks one."""
    text, _ = _without_mark(b"".join(chunks_of(path, most_bytes)))
    whole = None if _is_json(text) else closed(text)
    return text if whole is None else whole[0]


def _raw_trace(file: _File, counters: list[CounterEvent], notes: list[str]) -> RawTrace:
    devices, distributed = _small(file.devices), _small(file.distributed)
    return RawTrace(
        file.events,
        [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        distributed if isinstance(distributed, dict) else {},
        tuple(notes),
        counters,
    )


def _without_mark(text: bytes) -> tuple[bytes, list[str]]:
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return text.decode("utf-16", "replace").encode("utf-8", "replace"), ["read as UTF-16, not UTF-8"]
    if text.startswith(codecs.BOM_UTF8):
        return text.removeprefix(codecs.BOM_UTF8), ["a byte order mark at its begin is left out"]
    return text, []


def _small(part: msgspec.Raw) -> Any:
    if not 0 < len(part) <= MOST_DEVICES_BYTES:
        return None
    try:
        return msgspec.json.decode(part)
    except (msgspec.DecodeError, ValueError, RecursionError):  # 1e999, or bytes that are not UTF-8
        return None


def _decoded(path: Path, text: bytes | bytearray) -> tuple[_File, list[CounterEvent]]:
    has_counters = _HAS_COUNTERS.search(text)
    try:
        if _BEGINS_LIST.match(text):  # the format also allows a plain list of events
            file = _File(msgspec.json.decode(text, type=list[TraceEvent]))
        else:
            file = msgspec.json.decode(text, type=_File)
        found = msgspec.json.decode(text, type=_Counters | list[CounterEvent]) if has_counters else []
        events = found.events if isinstance(found, _Counters) else found
        return file, [event for event in events if event.ph == "C" and len(event.ts)]
    except msgspec.ValidationError as error:
        raise TraceError(f"{path} is not a trace of torch.profiler: {_one_line(error)}") from None
    except RecursionError:
        raise TraceError(f"{path} is not a trace of torch.profiler: its JSON is nested too deeply") from None
    except UnicodeDecodeError:  # in a name; a replaced character does no harm
        return _decoded(path, text.decode("utf-8", "replace").encode())
    except msgspec.DecodeError as error:
        mended, count = _NO_NUMBER.subn(rb"\1null", text) if has_counters else (text, 0)
        if count:
            return _decoded(path, mended)
        what = _one_line(error)
        if "truncated" in what and text.rstrip()[-1:] not in (b"}", b"]"):
            raise TraceError(
                f"{path} is cut off after {len(text)} bytes of JSON: was the training stopped while it wrote?"
            ) from None
        raise TraceError(f"{path} is not JSON: {what}") from None


def _one_line(error: Exception) -> str:
    return one_line(" ".join(str(error).split())[:200].removeprefix("JSON is malformed: "))
