"""Reading a memory snapshot (torch.cuda.memory._dump_snapshot): a pickle, of which nothing is ever run."""

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
    history: Any = None  # of torch 1.13 and 2.0, which has frames and the size asked for


class Segment(msgspec.Struct, gc=False):
    """What the allocator took from the device in one piece."""

    total_size: int
    blocks: list[Block]
    device: int = 0
    address: int = 0


class Entry(msgspec.Struct, gc=False):
    """Something that the allocator did."""

    action: str
    addr: int | None = None
    size: int = 0
    time_us: int | None = None
    device_free: int | None = None
    frames: Any = None


class RawSnapshot(msgspec.Struct, gc=False):
    """A file as it was decoded."""

    segments: list[Segment]
    device_traces: list[list[Entry]] = []


def read_snapshot(path: Path, most_bytes: int = MOST_BYTES) -> RawSnapshot:
    """Return what ``path`` holds.

    Raises:
        TraceError: it cannot be read, is too large, or is no memory snapshot; the message says which in one line.
    """
    try:
        if path.stat().st_size > most_bytes:
            raise TraceError(f"{path} is over {most_bytes / BYTES_PER_GIB:g} GiB, the limit; record fewer entries")
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from None
    try:
        told = _OnlyData(io.BytesIO(data)).load()
    except _NotDataError as error:
        raise TraceError(f"{path} is no memory snapshot: it would have {error} run, which is refused; {HOW}") from None
    except Exception:  # of a pickle that is none, anything can come
        raise TraceError(f"{path} is no memory snapshot, or cut off: it cannot be unpickled; {HOW}") from None
    try:
        return msgspec.convert(told, RawSnapshot, strict=False)
    except msgspec.ValidationError as error:
        what = " ".join(str(error).split())[:200]
        raise TraceError(f"{path} is no memory snapshot of torch: {what}; {HOW}") from None


class _NotDataError(Exception):
    pass


class _OnlyData(pickle.Unpickler):
    """Knows lists, dictionaries, texts and numbers. Any class or function in a pickle can be made to run a program."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NotDataError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _NotDataError("a reference to something outside")
