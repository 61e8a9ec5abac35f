"""What fills the device's memory, from a memory snapshot: by place and phase of the requests, now and at the peak."""

import io
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import msgspec

from training_profiler.base.errors import TraceError
from training_profiler.base.text import one_line, printable
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB
from training_profiler.safety.files import read_file
from training_profiler.trace_analysis.code_places import FRAME, is_of_program

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
    """Refuse a snapshot in which few bytes stand for more than ``most`` blocks and entries."""
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


NO_STACK: Final = "no stack recorded"
MOST_TEXT: Final = 1_000  # characters of a name: the patterns take long on longer ones
MOST_FRAMES: Final = 1_000
BEFORE: Final = "before the history"
ELSEWHERE: Final = "elsewhere"
_NATIVE: Final = re.compile(r"^$|^\?\?$|^none$|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|so)(?:[.:]|$)")
_MODULE: Final = "torch/nn/modules/module.py"
# The first phase that matches any frame of a stack counts: a backward pass may compute a forward pass again.
_PHASES: Final = (
    ("optimizer", re.compile(r"torch/optim/.*:")),
    (
        "backward",
        re.compile(
            r"torch/(?:_tensor|autograd/(?:__init__|graph))\.py:(?:backward|grad|_engine_run_backward)$"
            r"|:.*autograd::Engine::"
        ),
    ),
    ("forward", re.compile(rf"{re.escape(_MODULE)}:_(?:wrapped_)?call_impl$")),
    (
        "model made or moved",
        re.compile(rf"{re.escape(_MODULE)}:(?:_apply|convert|to|cuda)$|:reset_parameters$|torch/nn/init\.py:"),
    ),
    ("data", re.compile(r"torch/utils/data/.*:|:pin_memory$")),
)


class MemoryOrigin(NamedTuple):
    """A place in the program, such as "model/net.py:31 in forward", and the phase of the training."""

    place: str
    phase: str


Live = dict[int | None, tuple[int, MemoryOrigin]]  # by address, the bytes that were requested, and where


class Origins(dict[int, tuple[Any, MemoryOrigin]]):
    """Origins by the id of their stack, with the stack, so that its id stays its own: each is read once."""

    def of(self, frames: Any) -> MemoryOrigin:
        """Return the origin of a stack, whose innermost frame is the first. The stack may be missing."""
        if id(frames) not in self:
            self[id(frames)] = (frames, _origin(frames))
        return self[id(frames)][1]


def _origin(frames: Any) -> MemoryOrigin:
    recorded = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    stack = [
        _frame(_text(frame.get("filename", "")), _text(frame.get("line", 0)), _text(frame.get("name", "")))
        for frame in recorded[:MOST_FRAMES]
    ]
    if not stack:
        return MemoryOrigin(NO_STACK, NO_STACK)
    words = [f"{file}:{name}" for file, _, name in stack]
    phase = next((phase for phase, pattern in _PHASES if any(pattern.search(word) for word in words)), ELSEWHERE)
    python = [frame for frame in stack if not _NATIVE.search(frame[0])]
    own = [frame for frame in python if is_of_program(frame[0])]
    if own or python:
        file, line, name = (own or python)[0]
        return MemoryOrigin(f"{'/'.join(file.split('/')[-2:])}:{line} in {name}", phase)
    return MemoryOrigin(f"{stack[0][2]} (no Python in its stack)", phase)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:MOST_TEXT]
    return str(value) if isinstance(value, int) and abs(value) < 2**63 else ""


def _frame(file: str, line: Any, name: str) -> tuple[str, Any, str]:
    whole = FRAME.fullmatch(name) if file == "none" else None  # a snapshot made from a profile has it in the name
    if whole is not None:
        file, line, name = whole.groups()
    return printable(file.replace("\\", "/"), MOST_TEXT), printable(str(line)), printable(name, MOST_TEXT)


ALLOCATED: Final = "active_allocated"
INACTIVE: Final = "inactive"
US_PER_S: Final = 1e6


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that was requested in one place or phase; bytes as requested."""

    place: str
    phase: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The highest allocation within the allocator's history; bytes as requested."""

    bytes: int
    before_end_s: float | None  # time from the peak to the end of the history
    entries: int  # of the history
    by_phase: tuple[Held, ...]
    by_place: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that failed; ``free_bytes`` is the free memory of the device, None if unknown."""

    bytes: int
    free_bytes: int | None
    place: str


@dataclass(frozen=True, slots=True)
class SnapshotOfDevice:
    """Memory of a device. ``reserved_bytes`` is exactly the sum of the five fields after it."""

    device: int
    reserved_bytes: int
    requested_bytes: int  # by live tensors
    rounding_bytes: int  # beyond the request, in the same blocks
    awaiting_bytes: int  # freed, but another stream may still use them
    unused_in_use_bytes: int  # free, in segments that also hold live blocks: cannot be returned
    unused_empty_bytes: int  # free, in segments without live blocks
    largest_unused_bytes: int
    segments: int
    by_phase: tuple[Held, ...]
    by_place: tuple[Held, ...]
    peak: MemoryPeak | None  # None without a history
    out_of_memory: tuple[OutOfMemory, ...]


def devices_of(raw: RawSnapshot) -> list[SnapshotOfDevice]:
    """Return the memory of each device that has reserved memory or a history."""
    by_device: dict[int, list[Segment]] = defaultdict(list)
    for segment in raw.segments:
        by_device[segment.device].append(segment)
    histories = {device: entries for device, entries in enumerate(raw.device_traces) if entries}
    origins = Origins()
    return [
        _of_device(device, by_device.get(device, []), histories.get(device, []), origins)
        for device in sorted({*by_device, *histories})
    ]


def _of_device(
    device: int, segments: Sequence[Segment], history: Sequence[Entry], origins: Origins
) -> SnapshotOfDevice:
    live: Live = {}
    requested = rounding = awaiting = in_use = empty = largest = 0
    for number, segment in enumerate(segments):
        unused, rest, is_used = 0, segment.total_size, False
        at = segment.address or -(number + 1) << 60  # torch 2.0 and older record no addresses of blocks
        for block in segment.blocks:
            rest -= block.size
            if block.state == INACTIVE:
                unused += block.size
                largest = max(largest, block.size)
            elif block.state == ALLOCATED:
                asked, frames = _asked(block)
                live[block.address or at] = (asked, origins.of(frames))
                requested, rounding, is_used = requested + asked, rounding + block.size - asked, True
            else:
                awaiting, is_used = awaiting + block.size, True
            at += block.size
        unused += rest  # bytes outside of blocks are unused
        in_use, empty = (in_use + unused, empty) if is_used else (in_use, empty + unused)
    return SnapshotOfDevice(
        device=device,
        reserved_bytes=sum(segment.total_size for segment in segments),
        requested_bytes=requested,
        rounding_bytes=rounding,
        awaiting_bytes=awaiting,
        unused_in_use_bytes=in_use,
        unused_empty_bytes=empty,
        largest_unused_bytes=largest,
        segments=len(segments),
        by_phase=_held(live, has_place=False),
        by_place=_held(live),
        peak=_peak(live, history, origins),
        out_of_memory=tuple(
            OutOfMemory(entry.size, entry.device_free, origins.of(entry.frames).place)
            for entry in history
            if entry.action == "oom"
        ),
    )


def _asked(block: MemoryBlock) -> tuple[int, Any]:
    if block.requested_size is not None:
        return min(block.size, block.requested_size), block.frames
    newest = block.history[0] if isinstance(block.history, list) and block.history else None
    if isinstance(newest, dict) and isinstance(newest.get("real_size"), int):
        return min(block.size, newest["real_size"]), newest.get("frames")
    return block.size, block.frames


def _held(live: Live, has_place: bool = True) -> tuple[Held, ...]:
    """Return what was requested in each place, or in each phase alone, the largest first."""
    sums: dict[MemoryOrigin, list[int]] = defaultdict(lambda: [0, 0])
    for size, origin in live.values():
        total = sums[origin if has_place else origin._replace(place="")]
        total[0] += size
        total[1] += 1
    rows = (Held(origin.place, origin.phase, size, count) for origin, (size, count) in sums.items())
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.place, row.phase)))


def _peak(live: Live, history: Sequence[Entry], origins: Origins) -> MemoryPeak | None:
    moves = [entry for entry in history if entry.action in ("alloc", "free_requested") and entry.addr is not None]
    if not moves:
        return None
    back = (entry.size if entry.action == "free_requested" else -entry.size for entry in reversed(moves))
    levels = list(accumulate(back, initial=sum(size for size, _ in live.values())))
    highest = max(levels)
    at = len(moves) - levels.index(highest)  # number of moves before the peak
    then = _lived_at(live, moves, at, origins)
    last_us = next((entry.time_us for entry in reversed(history) if entry.time_us is not None), None)
    peak_us = moves[at - 1].time_us if at else None
    return MemoryPeak(
        bytes=highest,
        before_end_s=None if last_us is None or peak_us is None else (last_us - peak_us) / US_PER_S,
        entries=len(history),
        by_phase=_held(then, has_place=False),
        by_place=_held(then),
    )


def _lived_at(live: Live, moves: Sequence[Entry], at: int, origins: Origins) -> Live:
    asked: dict[int | None, Entry] = {}  # the requests of live blocks
    requests = []  # that each move ends
    for entry in moves:
        requests.append(asked.pop(entry.addr, None))
        if entry.action == "alloc":
            asked[entry.addr] = entry
    then = dict(live)
    for entry, request in list(zip(moves, requests, strict=True))[at:][::-1]:
        then.pop(entry.addr, None)
        if entry.action == "free_requested":
            origin = MemoryOrigin(BEFORE, BEFORE) if request is None else origins.of(request.frames)
            then[entry.addr] = entry.size, origin
    return then
