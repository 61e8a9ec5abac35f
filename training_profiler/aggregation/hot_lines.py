"""From samples of lines to the stats of a section's lines."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from training_profiler.model.loader_workers import PHASES
from training_profiler.model.location import Location
from training_profiler.snapshot.snapshot import BETWEEN, LineStats, SectionStats
from training_profiler.tables.framework_frames import LOOP, FileRows
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    DATA_LOADING,
    FIRST_FETCH,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    GRAPH_REPLAY,
    OPTIMIZER_STEP,
    ROLLOUT,
    WITHIN,
    WORKER_START,
)

NO_TIMES: Final[Mapping[str, Counter[Location | None]]] = MappingProxyType({})
MOST_LINES: Final = 100  # in a section; the rest is below one percent of it
SEEN_IN: Final = 2  # sections: then a line calls a loop, and itself says nothing
OF_A_LOOP: Final = {DATA_LOADING, FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, GRAPH_REPLAY}
SAMPLES_NEEDED: Final = 3  # in a section; fewer may be of a section's edge
ENOUGH: Final = 30  # samples in a section
KNOWN_TO: Final = 0.18  # of these
AGRESTI: Final = 4  # samples beside those that were taken, half of them of the line: two standard errors, squared
MOST_OF_IT: Final = 0.5
PHASE_SAMPLES: Final = 10  # of a phase of a trainer; a share of fewer means little
MOST_PHASES: Final = 20
_SAME_WORK: Final = {
    FIRST_FETCH: DATA_LOADING,
    WORKER_START: DATA_LOADING,
    FORWARD_WITHOUT_GRAD: FORWARD_PASS,
    ROLLOUT: FORWARD_PASS,
}
Shares = dict[str, float]  # by the name of what a line does
MAKING_SAMPLES: Final = 30  # a share of one half is then accurate to about 18 points (95 %)


def lines_with_loops(counts: Mapping[str, Counter[Location | None]]) -> set[Location]:
    """Return the lines that say nothing, because a library that they call has the loop: ``trainer.train()``.

    Such a line is in several sections at once, one of which every training has, or the loop of a known trainer was seen
    in it. A function that computes a metric is called in steps, between them and in validation, and has no loop.
    """
    seen: dict[Location, set[str]] = {}
    callers = set()
    for name, samples in counts.items():
        here: Counter[Location] = Counter()
        for location, count in samples.items():
            if location is not None and location.inside:
                here[location.alone()] += count
                if has_known_loop(location.inside):
                    callers.add(location.alone())
        work = _work_of(name)
        for line, count in here.items():
            if count >= SAMPLES_NEEDED:
                seen.setdefault(line, set()).add(work)
    return callers | {line for line, works in seen.items() if len(works) >= SEEN_IN and works & OF_A_LOOP}


def _work_of(section: str) -> str:
    """Return what a section does: training and validation may read one data set, and call one model."""
    plain = section.rpartition(WITHIN)[2]
    return _SAME_WORK.get(plain, plain)


def has_known_loop(inside: str) -> bool:
    """Return whether the first frame inside a line is the loop of a known trainer."""
    place, _, function = inside.partition(BETWEEN)[0].partition(" ")
    return _is_known_loop(place.rpartition(":")[0], function)


@lru_cache(maxsize=1000)
def _is_known_loop(file: str, function: str) -> bool:
    return FileRows(f"/{file}", has_hooks=False).phase_of(function) == LOOP


def lines_of(
    share: float,
    samples: Counter[Location | None],
    callers: set[Location],
    times: Counter[Location | None] | None = None,
) -> tuple[LineStats, ...]:
    """Return the lines of a section of this share, the longest first; those of ``callers`` by what ran in them.

    ``times`` are those that the samples stand for; None: each for as much as any other.
    """
    spent = _spent(samples, times)
    of_one = share / spent.total()
    seen: Counter[Location] = Counter()
    shares: dict[Location, float] = {}
    waits: dict[Location, Shares] = {}
    phases: dict[Location, Counter[str]] = {}
    held: dict[Location, Shares] = {}
    called: dict[Location, Shares] = {}
    for location, count in samples.items():
        if location is None:
            continue
        line, part = location.alone(), spent[location] * of_one
        if line in callers:
            line = line._replace(inside=location.inside)
        seen[line] += count
        shares[line] = shares.get(line, 0.0) + part
        phases.setdefault(line, Counter())[location.making or location.phase] += count
        for parts, name in ((waits, location.waits_in), (held, location.held_by), (called, location.called)):
            if name:
                of_line = parts.setdefault(line, {})
                of_line[name] = of_line.get(name, 0.0) + part
    return tuple(
        LineStats(
            *line[:3],
            share=its_share,
            samples=seen[line],
            waiting_share=sum(waits.get(line, {}).values()),
            waits_in=next(iter(_sorted(waits.get(line, {}))), ""),
            inside=line.inside,
            phase=_main_phase(phases[line]),
            held_by=_sorted(held.get(line, {})),
            called=_sorted(called.get(line, {})),
        )
        for line, its_share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:MOST_LINES]
    )


def is_known(samples: Counter[Location | None]) -> bool:
    """Return whether the samples of a section suffice for its lines: shares are known to 18 points (95 %).

    That takes 30 samples, but only 11 of the same line: the interval is that of Agresti and Coull (1998). Where fewer
    are spread over many lines, which are the longest is chance.
    """
    most, total = max((count for line, count in samples.items() if line is not None), default=0), samples.total()
    if not most or 2 * most < total < ENOUGH:
        return False
    share = (most + AGRESTI / 2) / (total + AGRESTI)
    return total >= ENOUGH or 2 * math.sqrt(share * (1 - share) / (total + AGRESTI)) <= KNOWN_TO


def _spent(samples: Counter[Location | None], times: Counter[Location | None] | None) -> Counter[Location | None]:
    return samples if not times or not times.total() else times


def _sorted(shares: Shares) -> Shares:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def phase_shares(
    counts: Mapping[str, Counter[Location | None]],
    sections: Mapping[str, SectionStats],
    times: Mapping[str, Counter[Location | None]] = NO_TIMES,
) -> dict[str, float]:
    """Return the share of the run in each phase of a trainer, the largest first; none of those seen seldom.

    As for lines, ``times`` are those that the samples stand for.
    """
    seen: Counter[str] = Counter()
    shares: dict[str, float] = {}
    for name, samples in counts.items():
        if name not in sections or not samples:
            continue
        spent = _spent(samples, times.get(name))
        of_one = sections[name].share / spent.total()
        for location, count in samples.items():
            if location is not None and location.phase:
                seen[location.phase] += count
                shares[location.phase] = shares.get(location.phase, 0.0) + spent[location] * of_one
    often = [phase for phase, count in seen.items() if count >= PHASE_SAMPLES]
    return {phase: shares[phase] for phase in sorted(often, key=lambda phase: -shares[phase])[:MOST_PHASES]}


def making_shares(counts: Mapping[str, Counter[Location | None]]) -> dict[str, float]:
    """Return the parts of making batches in the training itself, as shares of that; none with few samples."""
    seen = Counter(dict.fromkeys(PHASES, 0))
    for samples in counts.values():
        for location, count in samples.items():
            if location is not None and location.making in seen:
                seen[location.making] += count
    total = seen.total()
    return {phase: count / total for phase, count in seen.items() if count} if total >= MAKING_SAMPLES else {}


def _main_phase(phases: Counter[str]) -> str:
    (phase, count), *_ = phases.most_common(1)
    return phase if count > MOST_OF_IT * phases.total() else ""
