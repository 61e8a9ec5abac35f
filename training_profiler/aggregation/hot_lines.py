"""From samples of lines to the stats of a section's lines."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from training_profiler.sampling.framework_frames import LOOP, FileRows
from training_profiler.sampling.location import Location
from training_profiler.snapshot.snapshot import BETWEEN, LineStats, SectionStats

MOST_LINES: Final = 100  # in a section; the rest is below one percent of it
SEEN_IN: Final = 2  # sections: then a line calls a loop, and itself says nothing
SAMPLES_NEEDED: Final = 3  # in a section; fewer may be of a section's edge
MOST_OF_IT: Final = 0.5
PHASE_SAMPLES: Final = 10  # of a phase of a trainer; a share of fewer means little
MOST_PHASES: Final = 20


def lines_with_loops(counts: Mapping[str, Counter[Location | None]]) -> set[Location]:
    """Return the lines that say nothing, because a library that they call has the loop: ``trainer.train()``.

    Such a line is in several sections at once, or the loop of a known trainer was seen in it.
    """
    seen: Counter[Location] = Counter()
    callers = set()
    for samples in counts.values():
        here: Counter[Location] = Counter()
        for location, count in samples.items():
            if location is not None and location.inside:
                here[location.alone()] += count
                if has_known_loop(location.inside):
                    callers.add(location.alone())
        seen.update({line: 1 for line, count in here.items() if count >= SAMPLES_NEEDED})
    return callers | {line for line, sections in seen.items() if sections >= SEEN_IN}


def has_known_loop(inside: str) -> bool:
    """Return whether the first frame inside a line is the loop of a known trainer."""
    place, _, function = inside.partition(BETWEEN)[0].partition(" ")
    return _is_known_loop(place.rpartition(":")[0], function)


@lru_cache(maxsize=1000)
def _is_known_loop(file: str, function: str) -> bool:
    return FileRows(f"/{file}", has_hooks=False).phase_of(function) == LOOP


def lines_of(share: float, samples: Counter[Location | None], callers: set[Location]) -> tuple[LineStats, ...]:
    """Return the lines of a section of this share, most samples first; those of ``callers`` by what ran in them."""
    of_a_sample = share / samples.total()
    seen: Counter[Location] = Counter()
    waits: dict[Location, Counter[str]] = {}
    phases: dict[Location, Counter[str]] = {}
    held: dict[Location, Counter[str]] = {}
    for location, count in samples.items():
        if location is None:
            continue
        line = location.alone()
        if line in callers:
            line = line._replace(inside=location.inside)
        seen[line] += count
        phases.setdefault(line, Counter())[location.phase] += count
        if location.waits_in:
            waits.setdefault(line, Counter())[location.waits_in] += count
        if location.held_by:
            held.setdefault(line, Counter())[location.held_by] += count
    return tuple(
        LineStats(
            *line[:3],
            share=count * of_a_sample,
            samples=count,
            waiting_share=waits[line].total() * of_a_sample if line in waits else 0.0,
            waits_in=waits[line].most_common(1)[0][0] if line in waits else "",
            inside=line.inside,
            phase=_main_phase(phases[line]),
            held_by={place: samples * of_a_sample for place, samples in held.get(line, Counter()).most_common()},
        )
        for line, count in sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:MOST_LINES]
    )


def phase_shares(
    counts: Mapping[str, Counter[Location | None]], sections: Mapping[str, SectionStats]
) -> dict[str, float]:
    """Return the share of the run in each phase of a trainer, the largest first; none of those seen seldom."""
    seen: Counter[str] = Counter()
    shares: dict[str, float] = {}
    for name, samples in counts.items():
        if name not in sections or not samples:
            continue
        of_a_sample = sections[name].share / samples.total()
        for location, count in samples.items():
            if location is not None and location.phase:
                seen[location.phase] += count
                shares[location.phase] = shares.get(location.phase, 0.0) + count * of_a_sample
    often = [phase for phase, count in seen.items() if count >= PHASE_SAMPLES]
    return {phase: shares[phase] for phase in sorted(often, key=lambda phase: -shares[phase])[:MOST_PHASES]}


def _main_phase(phases: Counter[str]) -> str:
    (phase, count), *_ = phases.most_common(1)
    return phase if count > MOST_OF_IT * phases.total() else ""
