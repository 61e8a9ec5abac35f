"""Device time in reports; nothing where it was not measured."""

from typing import Final

from training_profiler.base.units import MS_PER_S, ms_text
from training_profiler.snapshot.snapshot import SectionStats, Snapshot
from training_profiler.tables.sections import DATA_LOADING

HEADER: Final = "device avg"
HOST: Final = "host"  # in the row of a section whose time was measured on the host alone


def device_cell(section: SectionStats) -> str:
    """Return the cell of a section's row, in ms."""
    if section.device_avg_s is not None:
        return f"{section.device_avg_s * MS_PER_S:.3f}"
    return HOST if section.count else ""


def device_words(snapshot: Snapshot, section: SectionStats) -> str:
    """Return the end of a section's greppable line; "" where nothing was measured on a device."""
    if snapshot.device is None or not section.count:
        return ""
    if section.device_avg_s is not None:
        return f", device_avg={section.device_avg_s:.4f}s"
    return f", device={HOST}"


def device_lines(snapshot: Snapshot) -> list[str]:
    """Return where device time was measured, and how long the device waited for input."""
    device = snapshot.device
    if device is None:
        return []
    where = f"{device.kind} ({device.name})" if device.name else device.kind
    line = f"Device time: {where}, {device.timing}; {device.spans} spans measured"
    if device.unmeasured:
        reasons = sorted(device.unmeasured.items(), key=lambda reason: (-reason[1], reason[0]))
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons)
        line += f", {sum(device.unmeasured.values())} not ({counts})"
    return [line, *_waits(snapshot)]


def _waits(snapshot: Snapshot) -> list[str]:
    """Return how long the device was idle while a batch was fetched."""
    section = snapshot.sections.get(DATA_LOADING)
    if section is None or section.device_avg_s is None or snapshot.device is None or snapshot.device.timing == "sync":
        return []
    share = snapshot.share_of_step(DATA_LOADING) if snapshot.is_by_device(DATA_LOADING) else None
    of_step = "" if share is None else f"{share:.1%} of step time, "
    return [f"Device waited for input: {of_step}{ms_text(section.device_avg_s)} per batch"]
