"""The function whose samples carry the difference of a section between two runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import PurePath
from typing import Final

from training_profiler.snapshot.snapshot import LineStats, Snapshot

CLEARLY: Final = 3.0  # standard errors of the number of samples
OF_SECTION: Final = 0.3  # part of the section's difference that one function has to explain


@dataclass(frozen=True, slots=True)
class LineDifference:
    """A function, its hottest line in the run that spends more time there, and the difference per step."""

    file: str
    line: int
    function: str
    seconds: float


class _Place:
    """Time of a function per step, and the variance of that by the number of its samples."""

    def __init__(self) -> None:
        self.seconds = self.variance = 0.0
        self.hottest: LineStats | None = None

    def add(self, line: LineStats, seconds: float) -> None:
        """Add a line of the function; the lines come hottest first."""
        self.seconds += seconds
        self.variance += seconds**2 / max(1, line.samples)
        self.hottest = self.hottest or line


def line_of(before: Snapshot, after: Snapshot, section: str, seconds: float) -> LineDifference | None:
    """Return the function with most of a section's difference of ``seconds``; None if the samples show none."""
    old, new = (_places(run, section) for run in (before, after))
    sign = 1 if seconds > 0 else -1
    best: LineDifference | None = None
    for key in old.keys() | new.keys():
        was, now = old.get(key, _Place()), new.get(key, _Place())
        difference = now.seconds - was.seconds
        hottest = (now if sign > 0 else was).hottest
        is_clear = sign * difference >= max(CLEARLY * sqrt(was.variance + now.variance), OF_SECTION * abs(seconds))
        if hottest is not None and is_clear and (best is None or abs(difference) > abs(best.seconds)):
            best = LineDifference(hottest.file, hottest.line, hottest.function, difference)
    return best


def _places(run: Snapshot, section: str) -> dict[tuple[Sequence[str], str], _Place]:
    """Return the functions of a section: by the end of their path, because checkouts lie in different folders."""
    places: dict[tuple[Sequence[str], str], _Place] = {}
    for line in run.lines.get(section, ()):
        place = places.setdefault((PurePath(line.file).parts[-2:], line.function), _Place())
        place.add(line, line.share * run.wall_s / max(1, run.steps))
    return places
