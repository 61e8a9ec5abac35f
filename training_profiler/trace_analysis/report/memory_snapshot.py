"""A memory snapshot as text: for each device a table that adds up to the reserved memory, and its origins."""

from collections.abc import Sequence
from typing import Final

from training_profiler.base.table import shortened, table, wrapped
from training_profiler.base.units import counted
from training_profiler.trace_analysis.memory_snapshot import Held, MemoryPeak, SnapshotOfDevice
from training_profiler.trace_analysis.report.figures import amount, percent

MOST_PLACES: Final = 12
MOST_FAILED: Final = 3
PLACE_WIDTH: Final = 70


def render_snapshot(name: str, devices: Sequence[SnapshotOfDevice]) -> str:
    """Return what fills the memory of each device."""
    if not devices:
        return f"{name}: no device memory was reserved, and no history was recorded."
    return "\n\n".join(_device(name, device) for device in devices)


def _device(name: str, device: SnapshotOfDevice) -> str:
    reserved = device.reserved_bytes
    parts = [
        wrapped(f"{name}, device {device.device}: {amount(reserved)} reserved in {counted(device.segments, 'segment')}")
    ]
    if reserved:
        sizes = [
            ("tensors", device.requested_bytes),
            ("rounding of their sizes", device.rounding_bytes),
            ("freed, another stream may still use it", device.awaiting_bytes),
            ("unused, in segments partly in use", device.unused_in_use_bytes),
            ("unused, in empty segments", device.unused_empty_bytes),
            ("reserved", reserved),
        ]
        parts.append(table(("", "", "of reserved"), [(what, amount(n), percent(n / reserved)) for what, n in sizes]))
        if device.largest_unused_bytes:
            parts.append(f"Largest unused block: {amount(device.largest_unused_bytes)}")
    if device.by_place:
        parts.append(_held("Live tensors", device.by_phase, device.by_place, device.requested_bytes))
    if device.peak is not None:
        parts.append(_peak(device.peak))
    parts += [
        wrapped(
            f"Out of memory: {amount(failed.bytes)} requested at {shortened(failed.place, PLACE_WIDTH)}"
            + ("" if failed.free_bytes is None else f", with {amount(failed.free_bytes)} free on the device")
        )
        for failed in device.out_of_memory[-MOST_FAILED:]
    ]
    return "\n\n".join(parts)


def _peak(peak: MemoryPeak) -> str:
    when = "" if peak.before_end_s is None else f", {peak.before_end_s:.3f} s before the end"
    title = f"Peak of {amount(peak.bytes)}{when} (the highest in a history of {counted(peak.entries, 'event')})"
    return _held(title, peak.by_phase, peak.by_place, peak.bytes)


def _held(title: str, by_phase: Sequence[Held], by_place: Sequence[Held], total: int) -> str:
    phases = ", ".join(f"{held.phase} {percent(held.bytes / max(1, total))}" for held in by_phase)
    rows = [
        (held.place, held.phase, held.blocks, amount(held.bytes), percent(held.bytes / max(1, total)))
        for held in by_place[:MOST_PLACES]
    ]
    rest = by_place[MOST_PLACES:]
    if rest:
        rest_bytes = sum(held.bytes for held in rest)
        blocks = sum(held.blocks for held in rest)
        rows.append((f"{len(rest)} more places", "", blocks, amount(rest_bytes), percent(rest_bytes / max(1, total))))
    headers = ("requested at", "phase", "blocks", "", "")
    return f"{wrapped(f'{title}: {phases}')}\n{table(headers, rows, left=(0, 1))}"
