"""What fills the device's memory, from a memory snapshot: by place and phase of the requests, now and at the peak."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from training_profiler.trace_analysis.memory.origins import Origin, Origins
from training_profiler.trace_analysis.memory.snapshot_reader import Block, Entry, RawSnapshot, Segment, read_snapshot

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
class Peak:
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
    peak: Peak | None  # None without a history
    out_of_memory: tuple[OutOfMemory, ...]


def memory_snapshot(path: Path) -> list[SnapshotOfDevice]:
    """Return the memory of each device that has reserved memory or a history.

    Raises:
        TraceError: The file cannot be read as a memory snapshot.
    """
    return devices_of(read_snapshot(path))


def devices_of(raw: RawSnapshot) -> list[SnapshotOfDevice]:
    """Return the memory of each device in a decoded snapshot."""
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
    live: dict[int, tuple[int, Origin]] = {}
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
        by_phase=_by(live.values(), lambda origin: Origin("", origin.phase)),
        by_place=_by(live.values(), lambda origin: origin),
        peak=_peak(live, history, origins),
        out_of_memory=tuple(
            OutOfMemory(entry.size, entry.device_free, origins.of(entry.frames).place)
            for entry in history
            if entry.action == "oom"
        ),
    )


def _asked(block: Block) -> tuple[int, Any]:
    """Return the bytes that a tensor requested, and the stack of the request."""
    if block.requested_size is not None:
        return min(block.size, block.requested_size), block.frames
    newest = block.history[0] if isinstance(block.history, list) and block.history else None
    if isinstance(newest, dict) and isinstance(newest.get("real_size"), int):
        return min(block.size, newest["real_size"]), newest.get("frames")
    return block.size, block.frames


def _by(live: Iterable[tuple[int, Origin]], key: Callable[[Origin], Origin]) -> tuple[Held, ...]:
    sums: dict[Origin, list[int]] = defaultdict(lambda: [0, 0])
    for size, origin in live:
        total = sums[key(origin)]
        total[0] += size
        total[1] += 1
    rows = (Held(origin.place, origin.phase, size, count) for origin, (size, count) in sums.items())
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.place, row.phase)))


def _peak(live: dict[int, tuple[int, Origin]], history: Sequence[Entry], origins: Origins) -> Peak | None:
    """Find the peak: the live blocks are known at the end, so the moves are undone from there."""
    moves = [entry for entry in history if entry.action in ("alloc", "free_requested") and entry.addr is not None]
    if not moves:
        return None
    level = highest = sum(size for size, _ in live.values())
    at = len(moves)  # number of moves before the peak
    for i in range(len(moves) - 1, -1, -1):
        level += moves[i].size if moves[i].action == "free_requested" else -moves[i].size
        if level > highest:
            highest, at = level, i
    then = _lived_at(live, moves, at, origins)
    last_us = next((entry.time_us for entry in reversed(history) if entry.time_us is not None), None)
    peak_us = moves[at - 1].time_us if at else None
    return Peak(
        bytes=highest,
        before_end_s=None if last_us is None or peak_us is None else (last_us - peak_us) / US_PER_S,
        entries=len(history),
        by_phase=_by(then.values(), lambda origin: Origin("", origin.phase)),
        by_place=_by(then.values(), lambda origin: origin),
    )


def _lived_at(
    live: dict[int, tuple[int, Origin]], moves: Sequence[Entry], at: int, origins: Origins
) -> dict[int, tuple[int, Origin]]:
    """Return the live blocks after the first ``at`` moves."""
    asked: dict[int | None, Any] = {}  # the requests of live blocks
    of_freed: dict[int, Any] = {}
    for i, entry in enumerate(moves):
        if entry.action == "alloc":
            asked[entry.addr] = entry
        else:
            of_freed[i] = asked.pop(entry.addr, None)
    then: dict[int, tuple[int, Origin]] = dict(live)
    for i in range(len(moves) - 1, at - 1, -1):
        entry = moves[i]
        if entry.addr is None:
            continue
        if entry.action == "alloc":
            then.pop(entry.addr, None)
        else:
            before = of_freed[i]
            then[entry.addr] = (entry.size, origins.before_history() if before is None else origins.of(before.frames))
    return then
