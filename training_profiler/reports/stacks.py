"""The line samples of a run as stacks: collapsed text, and a file for speedscope."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from training_profiler.base.text import printable_data
from training_profiler.model.location import Location
from training_profiler.reports.labels import table_label
from training_profiler.snapshot.lines import WorkerStats
from training_profiler.snapshot.series import RankSeries
from training_profiler.snapshot.snapshot import BETWEEN

NOT_YOURS: Final = "(no line of your code)"
MOST_DEPTH: Final = 20  # sections in each other
SPEEDSCOPE_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[str, ...]


def stacks_of(series: RankSeries) -> Counter[Stack]:
    """Return the samples of each stack, outermost first: sections, the line of the user's code, what it called."""
    stacks: Counter[Stack] = Counter()
    for name, lines in series.samples.items():
        sections = _sections(series, name)
        for line, samples in lines.items():
            if samples > 0:
                stacks[(*sections, *_frames(line))] += samples
    return stacks


def worker_stacks(workers: WorkerStats) -> Counter[Stack]:
    """Return the samples of what the workers of a loader did: the phase, the line, what it called."""
    stacks: Counter[Stack] = Counter()
    for line in workers.lines:
        inside = line.inside.split(BETWEEN) if line.inside else []
        stacks[(line.phase, f"{line.place} {line.function}", *inside)] += line.samples
    return stacks


def _sections(series: RankSeries, name: str) -> Stack:
    """Return a section and those around it, outermost first. Circles are only in damaged journals."""
    chain = [name]
    while (parent := series.parents.get(chain[-1])) and parent not in chain and len(chain) < MOST_DEPTH:
        chain.append(parent)
    return tuple(table_label(each, series.samples) for each in reversed(chain))


def _frames(line: Location | None) -> Stack:
    if line is None:
        return (NOT_YOURS,)
    inside = line.inside.split(BETWEEN) if line.inside else []
    waits = [f"{line.waits_in}() waits for the device"] if line.waits_in else []
    phase = [line.phase] if line.phase and line.phase not in line.inside else []
    return (f"{line.file}:{line.line} {line.function}", *inside, *phase, *waits)


def collapsed(ranks: Sequence[RankSeries]) -> str:
    """Return a line per stack and its samples: "a;b;c 12". With several ranks, the rank is the outermost frame."""
    lines = []
    for series in ranks:
        own = (f"rank {series.rank}",) if len(ranks) > 1 else ()
        for stack, samples in sorted(stacks_of(series).items()):
            frames = ";".join(frame.replace(";", ",") for frame in (*own, *stack))
            lines.append(f"{frames} {samples}\n")
    return "".join(lines)


def speedscope(ranks: Sequence[RankSeries], name: str) -> str:
    """Return a document for speedscope, a profile per rank. Stacks have no order in time, so they are sorted."""
    numbers: dict[str, int] = {}
    profiles = []
    for series in ranks:
        stacks = sorted(stacks_of(series).items())
        weights = [samples for _, samples in stacks]
        profiles.append(
            {
                "type": "sampled",
                "name": f"rank {series.rank}",
                "unit": "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[numbers.setdefault(frame, len(numbers)) for frame in stack] for stack, _ in stacks],
                "weights": weights,
            }
        )
    data: dict[str, Any] = {
        "$schema": SPEEDSCOPE_SCHEMA,
        "name": name,
        "exporter": "training-profiler",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in numbers]},
        "profiles": profiles,
    }
    return json.dumps(printable_data(data), allow_nan=False, separators=(",", ":")) + "\n"
