"""What reports say of device time; nothing where it was not measured."""

from typing import Final

from training_profiler.recording.known_sections import DATA_LOADING
from training_profiler.snapshot.snapshot import SectionStats, Snapshot
from training_profiler.units import seconds_text

HEADER: Final = "device avg"
HOST: Final = "host"  # in a row of which the host's time alone is known


def device_cells(snapshot: Snapshot, section: SectionStats) -> tuple[str, ...]:
    """Return the cells that a section's row has for it; none where nothing was measured on a device."""
    if snapshot.device is None:
        return ()
    if section.device_avg_s is not None:
        return (seconds_text(section.device_avg_s),)
    return (HOST if section.count else "",)


def device_words(snapshot: Snapshot, section: SectionStats) -> str:
    """Return what a section's line has for it at its end."""
    if snapshot.device is None or not section.count:
        return ""
    if section.device_avg_s is not None:
        return f", device_avg={section.device_avg_s:.4f}s"
    return f", device={HOST}"


def device_lines(snapshot: Snapshot) -> list[str]:
    """Return the lines of the summary: what was measured where, and how long the device waited for input."""
    device = snapshot.device
    if device is None:
        return []
    where = f"{device.kind} ({device.name})" if device.name else device.kind
    line = f"Device time: {where}, {device.timing}; {device.spans} spans measured"
    if device.unmeasured:
        reasons = sorted(device.unmeasured.items(), key=lambda reason: (-reason[1], reason[0]))
        told = ", ".join(f"{reason} {count}" for reason, count in reasons)
        line += f", {sum(device.unmeasured.values())} not ({told})"
    return [line, *_waits(snapshot)]


def _waits(snapshot: Snapshot) -> list[str]:
    """Return how long the device had nothing to do while a batch was fetched."""
    section = snapshot.sections.get(DATA_LOADING)
    if section is None or section.device_avg_s is None or snapshot.device is None or snapshot.device.timing == "sync":
        return []
    share = snapshot.share_of_step(DATA_LOADING) if snapshot.is_by_device(DATA_LOADING) else None
    of_step = "" if share is None else f"{share:.1%} of step time, "
    return [f"Device waited for input: {of_step}{seconds_text(section.device_avg_s)} a batch"]
