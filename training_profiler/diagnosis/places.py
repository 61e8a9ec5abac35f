"""Places in the user's code as findings name them, with their parts of a time."""

from collections.abc import Sequence
from typing import Final

from training_profiler.snapshot.snapshot import CHECKS, PYTHON, LineStats

LINES_A_FUNCTION: Final = 3  # named, of a function whose time is spread over many
MOSTLY_CALLED: Final = 0.5  # of a line's time: the function that it calls is named
NEARLY_ALL: Final = 0.9
SAY_NOTHING: Final = (
    CHECKS,
    PYTHON,
    "step",
    "backward",
)  # no call of the line, and calls that are a section themselves


def places_text(places: Sequence[LineStats], share: float) -> str:
    """Return the places with their parts of the time that is ``share`` of the run; "" for none."""
    texts = [f"{place.place} {place.what} ({of_it(place, share)})" for place in places]
    callers = list(dict.fromkeys(place.caller for place in places if place.caller))
    return ", ".join(texts) + (f"; called at {', '.join(callers)}" if callers else "")


def of_it(place: LineStats, of: float) -> str:
    """Return a place's part of the share ``of``, with the function that a line calls, or the hottest lines of one."""
    text = f"{min(1.0, place.share / of):.0%} of it"
    name, called = max(place.called.items(), key=lambda item: item[1], default=("", 0.0))
    is_named = called >= MOSTLY_CALLED * place.share and name.rpartition(".")[2] not in SAY_NOTHING
    if called and is_named and place.lines == 1 and not place.inside:
        mostly = "" if called >= NEARLY_ALL * place.share else "mostly "
        return f"{text}, {mostly}in {name}()"
    if place.lines > 1 and not place.inside:
        parts = sorted(place.parts, key=lambda part: -part[1])[:LINES_A_FUNCTION]
        text += ": " + ", ".join(f"line {line} {min(1.0, share / of):.0%}" for line, share in parts)
    return text
