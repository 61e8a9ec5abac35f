"""Pauses within steps in the final summary."""

from typing import Final

from training_profiler.base.units import duration_text
from training_profiler.diagnosis.pauses import lost_in_long_steps_s, pauses
from training_profiler.snapshot.pauses import Pause
from training_profiler.snapshot.snapshot import Snapshot

SHOWN_FROM: Final = 0.01  # of step time


def pause_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on the pauses that take 1 % of step time or more, and what they explain; none without."""
    step = snapshot.step
    shown = [] if step is None else [pause for pause in pauses(snapshot) if pause.seconds >= SHOWN_FROM * step.total_s]
    if step is None or not shown:
        return []
    lost_s = lost_in_long_steps_s(snapshot)
    long = (
        f"; steps took {duration_text(lost_s)} more than as many median ones"
        if lost_s >= SHOWN_FROM * step.total_s
        else ""
    )
    return [f"Pauses within steps ({duration_text(step.total_s)}): {', '.join(map(_text, shown))}{long}"]


def _text(pause: Pause) -> str:
    seconds, least, most = (duration_text(seconds) for seconds in (pause.seconds, pause.least_s, pause.most_s))
    return f"{pause.cause} {seconds}" + ("" if least == most else f" ({least} to {most})")
