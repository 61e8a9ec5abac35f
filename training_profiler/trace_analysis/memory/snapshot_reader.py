"""Reads a memory snapshot (torch.cuda.memory._dump_snapshot). It is a pickle; no code in it is ever run."""

import io
import pickle
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from training_profiler.errors import TraceError
from training_profiler.units import BYTES_PER_GIB

MOST_BYTES: Final = 2 * BYTES_PER_GIB
HOW: Final = "write one with torch.cuda.memory._dump_snapshot(FILE)"


class Block(msgspec.Struct, gc=False):
    """A piece of a segment; sizes in bytes."""

    size: int
    state: str  # "active_allocated", "active_awaiting_free" or older names of it, "inactive"
    requested_size: int | None = None
    address: int | None = None
    frames: Any = None
    history: Any = None  # of torch 1.13 and 2.0; holds the frames and the requested size


class Segment(msgspec.Struct, gc=False):
    """Memory that the allocator got from the device in one piece."""

    total_size: int
    blocks: list[Block]
    device: int = 0
    address: int = 0


class Entry(msgspec.Struct, gc=False):
    """An action of the allocator."""

    action: str
    addr: int | None = None
    size: int = 0
    time_us: int | None = None
    device_free: int | None = None
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
        if path.stat().st_size > most_bytes:
            raise TraceError(f"{path} is over {most_bytes / BYTES_PER_GIB:g} GiB, the limit; record fewer entries")
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None
    try:
        decoded = _OnlyData(io.BytesIO(data)).load()
    except _NotDataError as error:
        raise TraceError(f"{path} is not a memory snapshot: it would run {error}, which is refused; {HOW}") from None
    except Exception:  # a damaged pickle can raise anything
        raise TraceError(f"{path} is not a memory snapshot, or cut off: it cannot be unpickled; {HOW}") from None
    try:
        return msgspec.convert(decoded, RawSnapshot, strict=False)
    except msgspec.ValidationError as error:
        what = " ".join(str(error).split())[:200]
        raise TraceError(f"{path} is not a memory snapshot of torch: {what}; {HOW}") from None


class _NotDataError(Exception):
    pass


class _OnlyData(pickle.Unpickler):
    """Knows lists, dictionaries, texts and numbers. A class or function in a pickle could run any program."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NotDataError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _NotDataError("a reference to something outside")
