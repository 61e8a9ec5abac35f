"""What a program did before its first step, from samples of lines."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from training_profiler.aggregation.lines import BEFORE_STEPS
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.sampling.location import Location
from training_profiler.sampling.startup_frames import REST
from training_profiler.snapshot.snapshot import StartupPart, StartupStats

SAMPLES_NEEDED: Final = 10
MOST_LINES: Final = 3  # of a part
UNSEEN: Final = "not sampled"


def startup_stats(totals: Totals, section_s: Mapping[str, float] | None = None) -> StartupStats | None:
    """Return the parts of the time before the first step; of a run without steps, of all its time.

    The time is exact, and divided by samples. In a run without steps, the times of its sections are exact, too.

    Args:
        totals: of the run.
        section_s: exclusive time of each section, in s.
    """
    samples = {location: count for (id, location), count in totals.lines.items() if id == BEFORE_STEPS}
    begun_ns = totals.loop_begin_ns
    total_s = ((totals.end_ns if begun_ns is None else begun_ns) - totals.begin_ns) / NS_PER_S
    if sum(samples.values()) < SAMPLES_NEEDED or total_s <= 0:
        return None
    parts: dict[str, Counter[str]] = {}
    for location, count in samples.items():
        parts.setdefault(_name_of(location), Counter())[_line_of(location)] += count
    exact_s = section_s if section_s is not None and begun_ns is None else {}
    seconds = _seconds_of({name: lines.total() for name, lines in parts.items()}, total_s, exact_s)
    return StartupStats(
        total_s,
        begun_ns is not None,
        tuple(
            StartupPart(name, part_s, _lines_of(parts[name], part_s))
            for name, part_s in sorted(seconds.items(), key=lambda part: (-part[1], part[0]))
        ),
    )


def _lines_of(samples: Counter[str], part_s: float) -> tuple[tuple[str, float], ...]:
    """Return the lines of a part that have the most samples, with their time."""
    found = tuple((line, part_s * count / samples.total()) for line, count in samples.most_common() if line)
    return found[:MOST_LINES]


def _seconds_of(samples: Mapping[str, int], total_s: float, exact_s: Mapping[str, float]) -> dict[str, float]:
    """Return the time of each part: of a section its own, of the others their samples' share of what is left."""
    seconds = {name: exact_s[name] for name in samples if name in exact_s}
    left_s = max(0.0, total_s - sum(seconds.values()))
    others = {name: count for name, count in samples.items() if name not in seconds}
    seen = sum(others.values())
    return seconds | {name: left_s * count / seen for name, count in others.items()}


def _name_of(location: Location | None) -> str:
    return UNSEEN if location is None else location.activity or REST


def _line_of(location: Location | None) -> str:
    return "" if location is None or not location.file else f"{location.file}:{location.line} {location.function}"
