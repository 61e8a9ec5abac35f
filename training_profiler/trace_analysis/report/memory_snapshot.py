"""A memory snapshot as text: a table of each device that adds up to what is reserved, and who asked for it."""

from collections.abc import Sequence
from typing import Final

from training_profiler.trace_analysis.memory.snapshot import Held, Peak, SnapshotOfDevice
from training_profiler.trace_analysis.report.tables import amount, counted, percent, short, table

MOST_PLACES: Final = 12
MOST_FAILED: Final = 3
PLACE_WIDTH: Final = 70


def render_snapshot(name: str, devices: Sequence[SnapshotOfDevice]) -> str:
    """Return what fills each device."""
    if not devices:
        return f"{name}: no memory of a device was reserved, and nothing recorded."
    return "\n\n".join(_device(name, one) for one in devices)


def _device(name: str, one: SnapshotOfDevice) -> str:
    parts = [
        f"{name}, device {one.device}: {amount(one.reserved_bytes)} reserved in {counted(one.segments, 'segment')}"
    ]
    if one.reserved_bytes:
        rows = [
            ("tensors", one.requested_bytes),
            ("rounding of their sizes", one.rounding_bytes),
            ("freed, another stream may still use it", one.awaiting_bytes),
            ("unused, in segments partly in use", one.unused_in_use_bytes),
            ("unused, in empty segments", one.unused_empty_bytes),
        ]
        told = [(what, amount(count), percent(count / one.reserved_bytes)) for what, count in rows]
        parts.append(table(("", "", "of reserved"), [*told, ("reserved", amount(one.reserved_bytes), "100.0%")]))
        if one.largest_unused_bytes:
            parts.append(f"Largest unused piece: {amount(one.largest_unused_bytes)}")
    if one.by_place:
        parts.append(_held("Tensors that live", one.by_phase, one.by_place, one.requested_bytes))
    if one.peak is not None:
        parts.append(_peak(one.peak))
    parts += [
        f"Out of memory: {amount(failed.bytes)} asked for at {short(failed.place, PLACE_WIDTH)}"
        + ("" if failed.free_bytes is None else f", with {amount(failed.free_bytes)} free on the device")
        for failed in one.out_of_memory[-MOST_FAILED:]
    ]
    return "\n\n".join(parts)


def _peak(peak: Peak) -> str:
    when = "" if peak.before_end_s is None else f", {peak.before_end_s:.3f} s before the end"
    what = f"Peak of {amount(peak.bytes)}{when} (the highest in a history of {counted(peak.entries, 'event')})"
    return _held(what, peak.by_phase, peak.by_place, peak.bytes)


def _held(title: str, by_phase: Sequence[Held], by_place: Sequence[Held], total: int) -> str:
    phases = ", ".join(f"{one.phase} {percent(one.bytes / max(1, total))}" for one in by_phase)
    rows = [
        (short(one.place, PLACE_WIDTH), one.phase, one.blocks, amount(one.bytes), percent(one.bytes / max(1, total)))
        for one in by_place[:MOST_PLACES]
    ]
    rest = by_place[MOST_PLACES:]
    if rest:
        held = sum(one.bytes for one in rest)
        blocks = sum(one.blocks for one in rest)
        rows.append((f"{len(rest)} more places", "", blocks, amount(held), percent(held / max(1, total))))
    headers = ("asked for at", "phase", "blocks", "", "")
    return f"{title}: {phases}\n{table(headers, rows, left=2)}"
