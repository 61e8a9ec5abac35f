"""Attributes samples of the running line to the section that was open at that moment."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from training_profiler.aggregation.span_matching import Stretches
from training_profiler.base.framework_frames import LOOP, FileRows
from training_profiler.base.sections import (
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
    SectionNames,
)
from training_profiler.model.loader_workers import PHASES
from training_profiler.model.location import MOST_WAITING, Location, Sample
from training_profiler.model.snapshot import BETWEEN, PROFILER, TOKENIZERS, LineStats, SectionStats
from training_profiler.statistics.arrays import Ints

NO_TIMES: Final[Mapping[str, Counter[Location | None]]] = MappingProxyType({})
MOST_LINES: Final = 100  # in a section; the rest is below one percent of it
OF_A_LOOP: Final = {DATA_LOADING, FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP, GRAPH_REPLAY}
ENOUGH: Final = 30  # samples in a section
_TOKENIZES: Final = re.compile(rf"transformers/tokenization_|^(tiktoken|sentencepiece)/|^{TOKENIZERS}(/|\.Tokenizer\.)")
AGRESTI: Final = 4  # samples beside those that were taken, half of them of the line: two standard errors, squared
_SAME_WORK: Final = {
    FIRST_FETCH: DATA_LOADING,
    WORKER_START: DATA_LOADING,
    FORWARD_WITHOUT_GRAD: FORWARD_PASS,
    ROLLOUT: FORWARD_PASS,
}
Shares = dict[str, float]  # by the name of what a line does


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
                place, _, function = location.inside.partition(BETWEEN)[0].partition(" ")
                if _is_known_loop(place.rpartition(":")[0], function):
                    callers.add(location.alone())
        plain = name.rpartition(WITHIN)[2]  # training and validation may read one data set, and call one model
        work = _SAME_WORK.get(plain, plain)
        for line, count in here.items():
            if count >= 3:  # fewer may be of a section's edge
                seen.setdefault(line, set()).add(work)
    return callers | {line for line, works in seen.items() if len(works) > 1 and works & OF_A_LOOP}


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
    spent = spent_on(samples, times)
    of_one = share / spent.total()
    seen: Counter[Location] = Counter()
    shares: dict[Location, float] = {}
    phases: dict[Location, Counter[str]] = {}
    waits, held, called, packages = (dict[Location, Shares]() for _ in range(4))
    for location, count in samples.items():
        if location is None:
            continue
        line, part = location.alone(), spent[location] * of_one
        if line in callers or location.loaded_by:
            line = line._replace(inside=location.loaded_by or location.inside)
        seen[line] += count
        shares[line] = shares.get(line, 0.0) + part
        phases.setdefault(line, Counter())[location.making or location.phase] += count
        is_of_texts = _TOKENIZES.search(location.inside or location.called)
        package = TOKENIZERS if is_of_texts else location.inside.partition("/")[0]
        names = location.waits_in, location.held_by, location.called, package if location.making else ""
        for parts, name in zip((waits, held, called, packages), names, strict=True):
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
            phase=next((phase for phase, n in phases[line].items() if n > 0.5 * seen[line]), ""),
            held_by=_sorted(held.get(line, {})),
            called=_sorted(called.get(line, {})),
            packages=_sorted(packages.get(line, {})),
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
    return total >= ENOUGH or 2 * math.sqrt(share * (1 - share) / (total + AGRESTI)) <= 0.18


def spent_on(samples: Counter[Location | None], times: Counter[Location | None] | None) -> Counter[Location | None]:
    """Return the times of lines in proportion: those that their samples stand for, where these are known."""
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
        spent = spent_on(samples, times.get(name))
        of_one = sections[name].share / spent.total()
        for location, count in samples.items():
            if location is not None and location.phase:
                seen[location.phase] += count
                shares[location.phase] = shares.get(location.phase, 0.0) + spent[location] * of_one
    often = [phase for phase, count in seen.items() if count >= 10]  # a share of fewer means little
    return {phase: shares[phase] for phase in sorted(often, key=lambda phase: -shares[phase])[:20]}


def making_shares(counts: Mapping[str, Counter[Location | None]]) -> dict[str, float]:
    """Return the parts of making batches in the training itself, as shares of that; none with few samples."""
    seen = Counter(dict.fromkeys(PHASES, 0))
    for samples in counts.values():
        for location, count in samples.items():
            if location is not None and location.making in seen:
                seen[location.making] += count
    total = seen.total()
    return {phase: count / total for phase, count in seen.items() if count} if total >= 30 else {}


# Samples by section id and line; id 0 stands for no section. Samples of no section within complete steps are counted
# once more under IN_STEPS: only the end of a step shows that it was one.
LineCounts = Counter[tuple[int, Location | None]]
LineTimes = Counter[tuple[int, Location | None]]  # ns instead of samples
IN_STEPS: Final = -1
# All samples before the first step, once more, with what the program prepared then.
BEFORE_STEPS: Final = -2
POOLED: Final = 40  # samples; the error of a part of a half is then 0.08


class _Pool(NamedTuple):
    """Samples of a stretch of time, all of which stand for the same time."""

    lines: LineCounts
    samples: int  # which may be more than those of ``lines``
    wall_ns: int

    def together(self, following: "_Pool") -> "_Pool":
        samples = self.samples + following.samples
        return _Pool(self.lines + following.lines, samples, self.wall_ns + following.wall_ns)

    def times(self) -> LineTimes:
        samples = self.samples or self.lines.total()  # of earlier stretches alone, whose step has ended in this one
        return Counter({key: round(count * self.wall_ns / samples) for key, count in self.lines.items() if count})


NO_SAMPLES: Final = _Pool(Counter(), 0, 0)


class WeightedLines:
    """The time that samples of lines stand for: they are denser in the first seconds of a run than later.

    All samples of a pool count the same. It has at least ``POOLED`` of them: where samples are rare, one of a short
    stretch would stand for seconds, and the shares of lines would be chance.
    """

    def __init__(self) -> None:
        self._done: LineTimes = Counter()
        self._last = self._open = NO_SAMPLES  # the pool before the open one, which may have too few samples

    def add(self, lines: LineCounts, wall_ns: int) -> None:
        """Add the samples of a stretch and its time, which may have none."""
        self._add(_Pool(lines, sum(count for (section, _), count in lines.items() if section >= 0), wall_ns))

    def _add(self, pool: _Pool) -> None:
        self._open = self._open.together(pool)
        if self._open.samples >= POOLED:
            self._done.update(self._last.times())
            self._last, self._open = self._open, NO_SAMPLES

    def together(self, following: "WeightedLines") -> "WeightedLines":
        """Return the sums of two consecutive parts of a run."""
        sums = WeightedLines()
        for each in (self, following):
            sums._done.update(each._done)
            sums._add(each._last)
            sums._add(each._open)
        return sums

    def keep_in_steps(self, kept: LineCounts) -> None:
        """Forget the lines outside of steps; samples in steps of lines that are not in ``kept`` are of no line then."""
        self._done = _in_steps(self._done, kept)
        self._last, self._open = (each._replace(lines=_in_steps(each.lines, kept)) for each in (self._last, self._open))

    def times(self) -> LineTimes:
        """Return the time of each line, in ns."""
        return self._done + self._last.together(self._open).times()


def _in_steps(numbers: LineCounts, kept: LineCounts) -> LineCounts:
    found: LineCounts = Counter()
    for (section, location), number in numbers.items():
        if section > 0 or section == IN_STEPS:
            found[section, location if (section, location) in kept else None] += number
    return found


class LineAttribution:
    """Keeps samples until the events of their time arrive, and samples of no section until their step ends."""

    def __init__(self, names: SectionNames) -> None:
        self.of_unfinished_step: Counter[Location | None] = Counter()
        self._names = names
        self._waiting: list[Sample] = []

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Keep samples, in time order, until their events arrive; limited in number in case the clock stands still."""
        self._waiting += samples[: MOST_WAITING - len(self._waiting)]

    def attribute(
        self,
        counts: LineCounts,
        stretches: Stretches,
        step_rows: Ints,
        complete_steps: int,
        until_ns: int,
        begun_ns: int | None,
    ) -> None:
        """Add the samples before ``until_ns`` to ``counts``, except samples of the profiler's own time.

        Args:
            counts: the counts to add to.
            stretches: of the training thread.
            step_rows: the row of each piece's step; -1 for no step, ``complete_steps`` for the unfinished step.
            complete_steps: how many steps were completed since the last call.
            until_ns: the end of the last stretch.
            begun_ns: when the first step began; None if none has so far.
        """
        if complete_steps:
            counts.update({(IN_STEPS, location): count for location, count in self.of_unfinished_step.items()})
            self.of_unfinished_step.clear()
        if not self._waiting:
            return
        times_ns = np.array([ns for ns, _ in self._waiting], np.int64)
        due = int(np.searchsorted(times_ns, until_ns))
        locations = [location for _, location in self._waiting[:due]]
        del self._waiting[:due]
        at = stretches.at(times_ns[:due])
        owners, rows = at.owners.tolist(), step_rows[at.pieces].tolist()
        names = self._names.names
        early = due if begun_ns is None else int(np.searchsorted(times_ns[:due], begun_ns))
        for index, (owner, row, location) in enumerate(zip(owners, rows, locations, strict=True)):
            if names[owner] == PROFILER:
                continue
            if index < early:
                counts[BEFORE_STEPS, _prepared(location, names[owner] if owner else "")] += 1
            if location is not None and location.activity:
                location = location._replace(activity="") if location.file else None
            counts[owner, location] += 1
            if not owner and row == complete_steps:
                self.of_unfinished_step[location] += 1
            elif not owner and row >= 0:
                counts[IN_STEPS, location] += 1


def _prepared(location: Location | None, section: str) -> Location | None:
    """Return the line with what it prepared: what a section says of it is exact."""
    if not section:
        return location
    return (location or Location("", 0, ""))._replace(activity=section)
