"""The line on the time before the first step."""

from typing import Final

from training_profiler.base.units import duration_text
from training_profiler.reports.labels import bar_label
from training_profiler.snapshot.snapshot import Snapshot, StartupPart

SHOWN_FROM_S: Final = 0.5  # a shorter start-up needs no explanation
NEARLY_ALL: Final = 0.9  # of a part: less is said of its longest line
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
    text = f"{bar_label(part.name)} {duration_text(part.seconds)}"
    if not part.lines:
        return text
    place, seconds = part.lines[0]
    most = "" if seconds >= NEARLY_ALL * part.seconds else f"{duration_text(seconds)} at "
    return f"{text} ({most}{place})"
