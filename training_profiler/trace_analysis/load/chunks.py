"""The content of a trace file: in chunks, unpacked within limits, and in pieces that are traces themselves."""

import ctypes
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from training_profiler.base.errors import TraceError
from training_profiler.base.text import one_line
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB
from training_profiler.safety.files import NotRegularFileError, open_file

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
