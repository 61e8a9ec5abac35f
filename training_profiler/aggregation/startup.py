"""What a program did before its first step, from samples of lines."""

from collections import Counter
from typing import Final

from training_profiler.aggregation.lines import BEFORE_STEPS
from training_profiler.aggregation.totals import Totals
from training_profiler.sampling.location import Location
from training_profiler.sampling.startup_frames import REST
from training_profiler.snapshot.snapshot import StartupPart, StartupStats
from training_profiler.units import NS_PER_S

SAMPLES_NEEDED: Final = 10
MOST_LINES: Final = 3  # of a part
UNSEEN: Final = "not sampled"


def startup_stats(totals: Totals) -> StartupStats | None:
    """Return the parts of the time before the first step; of a run without steps, of all its time.

    The time is exact, and divided by samples.
    """
    samples = {location: count for (id, location), count in totals.lines.items() if id == BEFORE_STEPS}
    seen = sum(samples.values())
    begun_ns = totals.loop_begin_ns
    total_s = ((totals.end_ns if begun_ns is None else begun_ns) - totals.begin_ns) / NS_PER_S
    if seen < SAMPLES_NEEDED or total_s <= 0:
        return None
    parts: dict[str, Counter[str]] = {}
    for location, count in samples.items():
        parts.setdefault(_name_of(location), Counter())[_line_of(location)] += count
    return StartupStats(
        total_s,
        begun_ns is not None,
        tuple(
            StartupPart(
                name,
                lines.total() / seen * total_s,
                tuple((line, count / seen * total_s) for line, count in lines.most_common() if line)[:MOST_LINES],
            )
            for name, lines in sorted(parts.items(), key=lambda part: (-part[1].total(), part[0]))
        ),
    )


def _name_of(location: Location | None) -> str:
    return UNSEEN if location is None else location.activity or REST


def _line_of(location: Location | None) -> str:
    return "" if location is None or not location.file else f"{location.file}:{location.line} {location.function}"
