"""Reads a memory snapshot (torch.cuda.memory._dump_snapshot). It is a pickle; no code in it is ever run."""

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec

from training_profiler.base.errors import TraceError
from training_profiler.base.text import one_line
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB
from training_profiler.safety.files import read_file

MOST_BYTES: Final = 2 * BYTES_PER_GIB
# A pickle may name one object many times; torch writes 20 bytes or more for each block and entry.
LEAST_BYTES: Final = 8
FREE_OBJECTS: Final = 10_000
# A few bytes of a pickle can ask for gigabytes. What torch writes takes some 10 times its size.
MEMORY_FACTOR: Final = 24
FREE_MEMORY: Final = 256 * BYTES_PER_MIB
HOW: Final = "write one with torch.cuda.memory._dump_snapshot(FILE)"


Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class MemoryBlock(msgspec.Struct, gc=False):
    """A piece of a segment; sizes in bytes."""

    size: Bytes
    state: str  # "active_allocated", "active_awaiting_free" or older names of it, "inactive"
    requested_size: Bytes | None = None
    address: Number | None = None
    frames: Any = None
    history: Any = None  # of torch 1.13 and 2.0; holds the frames and the requested size


class Segment(msgspec.Struct, gc=False):
    """Memory that the allocator got from the device in one piece."""

    total_size: Bytes
    blocks: list[MemoryBlock]
    device: Number = 0
    address: Number = 0


class Entry(msgspec.Struct, gc=False):
    """An action of the allocator."""

    action: str
    addr: Number | None = None
    size: Bytes = 0
    time_us: Number | None = None
    device_free: Number | None = None
    frames: Any = None


class RawSnapshot(msgspec.Struct, gc=False):
    """A decoded snapshot."""

    segments: list[Segment]
    device_traces: list[list[Entry]] = []


def read_snapshot(path: Path, most_bytes: int = MOST_BYTES) -> RawSnapshot:
    """Return the snapshot in ``path``.

    Raises:
        TraceError: The file cannot be read, is too large or is not a memory snapshot. The message has one line.
    """
    try:
        if path.is_file() and path.stat().st_size > most_bytes:
            raise TraceError(f"{path} is over {most_bytes / BYTES_PER_GIB:g} GiB, the limit; record fewer entries")
        data = read_file(path, most_bytes, follow=True)
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None
    try:
        # Python itself prints a line of its own if the pickle ends within a bytearray.
        with _limited_memory(FREE_MEMORY + MEMORY_FACTOR * len(data)), redirect_stderr(io.StringIO()):
            decoded = _OnlyData(io.BytesIO(data)).load()
    except _NotDataError as error:
        raise TraceError(f"{path} is not a memory snapshot: it would run {error}, which is refused; {HOW}") from None
    except Exception:  # a damaged pickle can raise anything
        raise TraceError(f"{path} is not a memory snapshot, or cut off: it cannot be unpickled; {HOW}") from None
    try:
        _check_size(decoded, FREE_OBJECTS + len(data) // LEAST_BYTES)
        return msgspec.convert(decoded, RawSnapshot, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        what = one_line(" ".join(str(error).split())[:200])
        raise TraceError(f"{path} is not a memory snapshot of torch: {what}; {HOW}") from None


def _check_size(decoded: Any, most: int) -> None:
    """Refuse a snapshot in which few bytes stand for many blocks.

    Raises:
        ValidationError: it has more blocks and entries than ``most``.
    """
    if not isinstance(decoded, dict):
        return
    objects = 0
    for key in ("segments", "device_traces"):
        parts = decoded.get(key)
        for part in parts if isinstance(parts, list) else ():
            inner = part.get("blocks") if isinstance(part, dict) else part
            objects += 1 + (len(inner) if isinstance(inner, list) else 0)
            if objects > most:
                raise msgspec.ValidationError("it has more blocks and entries than its size allows")


@contextmanager
def _limited_memory(more_bytes: int) -> Iterator[None]:
    """Let the process take only so much more memory, where the system can limit that."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = used + more_bytes if soft == resource.RLIM_INFINITY else min(soft, used + more_bytes)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class _NotDataError(Exception):
    pass


class _OnlyData(pickle.Unpickler):
    """Knows lists, dictionaries, texts and numbers. A class or function in a pickle could run any program."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NotDataError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _NotDataError("a reference to something outside")
