"""The line on the time before the first step."""

from typing import Final

from training_profiler.snapshot.snapshot import Snapshot, StartupPart
from training_profiler.units import duration_text

SHOWN_FROM_S: Final = 0.5  # a shorter start-up needs no explanation
SHOWN_SHARE: Final = 0.03  # of the start-up


def startup_lines(snapshot: Snapshot) -> list[str]:
    """Return what the program did before its first step, each with its longest line; nothing if that is short."""
    startup = snapshot.startup
    if startup is None or startup.total_s < SHOWN_FROM_S:
        return []
    parts = [_text(part) for part in startup.parts if part.seconds >= SHOWN_SHARE * startup.total_s]
    of = "Before the first step" if startup.has_steps else "Without steps, the run"
    return [f"{of} ({duration_text(startup.total_s)}): {', '.join(parts)}"]


def _text(part: StartupPart) -> str:
    place = f" ({part.lines[0][0]})" if part.lines else ""
    return f"{part.name} {duration_text(part.seconds)}{place}"
