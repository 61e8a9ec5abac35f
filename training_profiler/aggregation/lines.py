"""Attributes samples of the running line to the section that was open at that moment."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from training_profiler.aggregation.span_matching import LeafSpans, Stretches, moments_in
from training_profiler.model.location import Location, Sample
from training_profiler.recording.section_names import SectionNames
from training_profiler.sampling.line_sampler import MOST_WAITING
from training_profiler.snapshot.snapshot import PROFILER
from training_profiler.statistics.arrays import Ints

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
        leaf_spans: LeafSpans,
        stretches: Stretches,
        step_row: Ints,
        complete_steps: int,
        until_ns: int,
        begun_ns: int | None,
    ) -> None:
        """Add the samples before ``until_ns`` to ``counts``, except samples of the profiler's own time.

        Args:
            counts: the counts to add to.
            leaf_spans: of the training thread.
            stretches: of the training thread.
            step_row: the row of each stretch's step; -1 for no step, ``complete_steps`` for the unfinished step.
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
        owners, rows = _owners(times_ns[:due], leaf_spans, stretches, step_row)
        names = self._names.names
        early = due if begun_ns is None else int(np.searchsorted(times_ns[:due], begun_ns))
        for index, (owner, row, location) in enumerate(zip(owners.tolist(), rows.tolist(), locations, strict=True)):
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


def _owners(times_ns: Ints, leaf_spans: LeafSpans, stretches: Stretches, step_row: Ints) -> tuple[Ints, Ints]:
    """Return the section that owns each moment, 0 for none, and the row of its step."""
    stretch, leaf = moments_in(times_ns, leaf_spans, stretches)
    owners = stretches.owners[stretch]
    if len(leaf_spans.ids):
        owners = np.where(leaf >= 0, leaf_spans.ids[leaf], owners)
    return owners, step_row[stretch]
