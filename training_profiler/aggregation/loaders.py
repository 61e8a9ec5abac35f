"""The cost of the batches of each data loader, from the events that name the loader."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from training_profiler.aggregation.span_matching import EndedSpans, Events, SectionKinds
from training_profiler.base.sections import (
    LOADER_SECTIONS,
    OUTSIDE_STEPS_SECTIONS,
    VALIDATION_EPOCH,
    WITHIN,
    SectionNames,
)
from training_profiler.base.units import NS_PER_S
from training_profiler.model.loader_workers import IDLE, PHASES, TRAIN, VAL, Phase, WorkerSums
from training_profiler.model.snapshot import PROFILER, LoaderStats, WorkerLineStats, WorkerStats
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.event_codes import EPOCH_BEGIN, LOADER, SECTION_MASK, STEP_END
from training_profiler.statistics.arrays import Bools, Ints

SAMPLES_NEEDED: Final = 30  # of work, or of waiting; a share of one half is then accurate to about 18 points (95 %)
BATCHES_NEEDED: Final = 4  # before a mean batch says anything


def worker_stats(sums: WorkerSums | None) -> WorkerStats | None:
    """Return the stats of a loader's workers; None where they made too few batches."""
    if sums is None or sums.batches < BATCHES_NEEDED or not sums.wall_ns:
        return None
    of_batches_ns = sums.batches * NS_PER_S
    seen = Counter({IDLE: sums.idle_samples})
    for line in sums.lines:
        seen[line.phase] += line.samples
    work = sum(line.samples for line in sums.lines)
    # A worker also waits for a CPU between batches; of a batch it is at most the time that is not CPU time.
    queued_ns = min(sums.queued_ns, max(0, sums.fetch_ns - sums.cpu_ns))
    return WorkerStats(
        workers=sums.workers,
        batches=sums.batches,
        busy=min(1.0, sums.fetch_ns / sums.wall_ns),
        batch_avg_s=sums.fetch_ns / of_batches_ns,
        batch_max_s=sums.slowest_ns / NS_PER_S,
        cpu_avg_s=sums.cpu_ns / of_batches_ns,
        cpu_wait_avg_s=queued_ns / of_batches_ns,
        samples=sums.samples,
        phases={
            phase: seen[phase] / sums.samples for phase in PHASES if seen[phase] and sums.samples >= SAMPLES_NEEDED
        },
        lines=tuple(
            WorkerLineStats(*line[1:4], line.samples / work, line.samples, line.phase, line.inside)
            for line in sorted(sums.lines, key=lambda line: (-line.samples, line))
            if line.file and work >= SAMPLES_NEEDED
        ),
        memory_bytes=max((memory.last for memory in sums.memory), default=None),
        memory_growth_bytes=max((memory.last - memory.first for memory in sums.memory), default=None),
        memory_copied_bytes=max((memory.copied for memory in sums.memory), default=None),
        in_order_wait_share=sums.held / sums.waits if sums.waits >= SAMPLES_NEEDED else None,
        pinning_share=sums.pinning / sums.pin_waits if sums.pin_waits >= SAMPLES_NEEDED else None,
        sampling_share=sums.sampling_ns / sums.wall_ns,
        repeats=sums.repeats,
        threads=sums.threads / sums.workers if sums.threads else None,
    )


# The sums of each loader, once for training and once for validation. BETWEEN is not a section: it is the time from
# the arrival of one batch to the arrival of the next.
DATA, FORWARD, BACKWARD, OPTIMIZER, BETWEEN = range(5)
KINDS: Final = 5
KIND_OF: Final = dict(zip(LOADER_SECTIONS, (DATA, FORWARD, BACKWARD, OPTIMIZER), strict=True))
MEANS: Final = ("data_avg_s", "forward_avg_s", "backward_avg_s", "optimizer_avg_s", "batch_wait_avg_s")  # by kind
IN_VALIDATION: Final = VALIDATION_EPOCH + WITHIN
NEITHER, IS_OUTSIDE = -1, -2  # in the table from section to kind
NO_SECTION: Final = 0  # the id of no section
NO_LOADER: Final = 0  # the id of no loader
MOST_CHANGES: Final = 4096  # changes of loader kept for sections that are still open
INTERVAL_NS: Final = NS_PER_S // 10  # default: about ten intervals a second for trackers


class LoaderSums:
    """Time and count of each kind: ``table(loader_id)[kind]`` is (ns, count); validation is at ``kind + KINDS``."""

    def __init__(self) -> None:
        self.tables: dict[int, Ints] = {}

    def table(self, loader_id: int) -> Ints:
        """Return the sums of one loader; zeros for an unknown loader."""
        return self.tables.get(loader_id, np.zeros((2 * KINDS, 2), np.int64))

    def add_table(self, loader_id: int, table: Ints) -> None:
        """Add the sums of one loader."""
        self.tables[loader_id] = self.table(loader_id) + table

    def add(self, later: "LoaderSums") -> None:
        """Add the sums of a later stretch of time."""
        for loader_id, table in later.tables.items():
            self.add_table(loader_id, table)


class LoaderInterval(NamedTuple):
    """The sums of the steps after the previous interval, up to the end of step ``step``."""

    step: int  # counted from 1
    sums: LoaderSums
    batches: dict[int, int]  # loader id -> training batches of the run so far

    def stats(self, loaders: Sequence[LoaderCounts]) -> tuple[LoaderStats, ...]:
        """Return the stats for trackers; proportions are of the run so far, samples are left out."""
        batches = sum(self.batches.values())
        stats, names = [], {phase: _names(loaders, phase) for phase in (TRAIN, VAL)}
        for counts in loaders:
            table = self.sums.table(counts.loader_id)
            for phase, part in ((TRAIN, table[:KINDS]), (VAL, table[KINDS:])):
                so_far = self.batches.get(counts.loader_id, 0) if phase == TRAIN else 0
                if not so_far and not part.any():
                    continue
                loader = LoaderStats(
                    names[phase].get(counts.loader_id, counts.name),
                    int(part[DATA, 1]),
                    None,
                    int(part[DATA, 0]) / NS_PER_S,
                    phase,
                    **_means(part),
                )
                if so_far:
                    loader = replace(loader, proportion=so_far / batches, requested_proportion=counts.requested_share)
                stats.append(loader)
        return tuple(stats)


class LoaderIntervals:
    """Cuts the sums at the ends of steps, for trackers that follow a running training."""

    def __init__(self, every: int | None) -> None:
        self.every = every  # steps an interval; None for up to ten intervals a second
        self.done: list[tuple[int, LoaderSums]] = []  # the step that ends each, and its sums
        self._unfinished = LoaderSums()
        self._batches: Counter[int] = Counter()
        self._bucket = -1
        self._steps = 0

    def ends_among(self, ends_ns: Ints, first_step: int) -> tuple[Ints, Ints]:
        """Return (ends in ns, steps) of the steps that end an interval."""
        steps = np.arange(first_step + 1, first_step + 1 + len(ends_ns))
        if len(steps):
            self._steps = int(steps[-1])
        if self.every is not None:
            ends_interval = steps % self.every == 0
        else:
            buckets = ends_ns // INTERVAL_NS
            ends_interval = np.diff(buckets, prepend=self._bucket) != 0
            self._bucket = int(buckets[-1]) if len(buckets) else self._bucket
        return ends_ns[ends_interval], steps[ends_interval]

    def add(self, tables: Mapping[int, Ints], steps: Ints) -> None:
        """Add the sums of loaders: a table for each interval that ``steps`` end, and one for the time after them."""
        sums = [self._unfinished, *(LoaderSums() for _ in steps)]
        for loader_id, of_loader in tables.items():
            for row in np.flatnonzero(of_loader.any(axis=(1, 2))).tolist():
                sums[row].add_table(loader_id, of_loader[row])
        self._unfinished = sums[-1]
        self.done += zip(steps.tolist(), sums, strict=False)

    def pop(self, is_last: bool = False) -> list[LoaderInterval]:
        """Return the intervals that have ended since the last call; at the end of a run also the unfinished one."""
        self.done += [(self._steps, self._unfinished)] * is_last
        intervals = []
        for step, sums in self.done:
            self._batches.update({loader_id: int(table[DATA, 1]) for loader_id, table in sums.tables.items()})
            if any(table.any() for table in sums.tables.values()):
                intervals.append(LoaderInterval(step, sums, dict(self._batches)))
        self.done = []
        return intervals


class LoaderTimeline:
    """From when on batches came from which loader."""

    def __init__(self) -> None:
        self.since_ns = np.array([np.iinfo(np.int64).min])
        self.loader_ids = np.array([NO_LOADER])

    def at(self, times_ns: Ints) -> Ints:
        """Return the loaders at these times."""
        return self.loader_ids[np.maximum(np.searchsorted(self.since_ns, times_ns, side="right") - 1, 0)]

    def extend(self, since_ns: Ints, loader_ids: Ints) -> None:
        """Add later times, in order; those at which nothing changes are left out."""
        is_change = np.diff(loader_ids, prepend=self.loader_ids[-1]) != 0
        self.since_ns = np.concatenate([self.since_ns, since_ns[is_change]])
        self.loader_ids = np.concatenate([self.loader_ids, loader_ids[is_change]])

    def discard_before(self, ns: int | None) -> None:
        """Discard what no time from ``ns`` on needs; None leaves the last loader alone."""
        first = len(self.loader_ids) - 1
        if ns is not None:
            first = max(0, int(np.searchsorted(self.since_ns, ns, side="right")) - 1)
        first = max(first, len(self.loader_ids) - MOST_CHANGES)
        self.since_ns, self.loader_ids = self.since_ns[first:], self.loader_ids[first:]


class LoaderAttribution:
    """Attributes spans of the training thread to the loader of the current batch.

    A fetch belongs to the loader that it asks. Every other span belongs to the loader of the last batch of its own
    phase: validation may have a loader of its own while the training makes its data in the loop.
    """

    def __init__(self, names: SectionNames) -> None:
        self.intervals: LoaderIntervals | None = None  # set if a tracker wants intervals
        self._kinds = SectionKinds(names, _kind_of)
        self._is_needed = False  # whether any loader was named
        self._asked = LoaderTimeline()
        self._fetched = (LoaderTimeline(), LoaderTimeline())  # in training, in validation
        self._outside_ns = np.zeros(0, np.int64)  # begins of epochs and of sections outside steps, in this batch
        self._arrival_ns: int | None = None  # of the last training batch
        self._was_outside_since = False
        self._ends: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def configure_intervals(self, is_wanted: bool, every: int | None) -> None:
        """Start or stop cutting the sums at the ends of steps."""
        if not is_wanted:
            self.intervals = None
        elif self.intervals is None:
            self.intervals = LoaderIntervals(every)
        else:
            self.intervals.every = every

    def pop_intervals(self, is_last: bool = False) -> Sequence[LoaderInterval]:
        """Return the intervals that have ended; none if no tracker wants them."""
        return () if self.intervals is None else self.intervals.pop(is_last)

    def extract_changes(self, events: Events, is_training: bool) -> Events:
        """Return the events without changes of loader; those of the training thread are kept for ``attribute``."""
        if not len(events.codes) or events.codes.max() < LOADER:
            return events
        is_change = events.codes >= LOADER
        if is_training:
            self._is_needed = True
            self._asked.extend(events.times_ns[is_change], events.codes[is_change] - LOADER)
        return Events(events.times_ns[~is_change], events.codes[~is_change])

    def begin(self, training: Events, marks: Events, first_step: int) -> None:
        """Start with the training thread's events; their spans are attributed next."""
        if not self._is_needed:
            return
        begun = np.where(training.codes > 0, training.codes & SECTION_MASK, NO_SECTION)
        outside_ns = training.times_ns[np.flatnonzero(self._kinds.of(begun) == IS_OUTSIDE)]
        self._outside_ns = np.sort(np.concatenate([outside_ns, marks.times_ns[marks.codes == EPOCH_BEGIN]]))
        if self.intervals is not None:
            ends_ns = marks.times_ns[marks.codes == STEP_END]
            self._ends = self.intervals.ends_among(ends_ns, first_step)

    def attribute(self, sums: LoaderSums, spans: EndedSpans) -> None:
        """Add the spans that ended to ``sums`` and to the intervals."""
        if not self._is_needed:
            return
        kinds = self._kinds.of(spans.ids)
        is_outermost = spans.parents != spans.ids
        # Work before the fetch, such as starting workers, is not part of ``next(iterator)``.
        rows = np.flatnonzero((kinds >= 0) & is_outermost & (spans.is_counted | ~_are_fetches(kinds)))
        kinds, begin_ns, ends_ns = kinds[rows], spans.begin_ns[rows], spans.end_ns[rows]
        spent_ns = spans.durations_ns[rows]
        loader_ids = self._loaders_of(kinds, begin_ns, ends_ns)
        known = loader_ids != NO_LOADER
        if not known.all():
            rows, kinds, ends_ns, spent_ns, loader_ids = (
                array[known] for array in (rows, kinds, ends_ns, spent_ns, loader_ids)
            )
        counts = spans.is_counted[rows].astype(np.int64)
        fetches = np.flatnonzero(kinds == DATA)
        fetches = fetches[np.argsort(ends_ns[fetches], kind="stable")]
        follow, between_ns = self._between(ends_ns[fetches])
        if len(follow):
            fetches = fetches[follow]
            kinds = np.concatenate([kinds, np.full(len(fetches), BETWEEN)])
            loader_ids = np.concatenate([loader_ids, loader_ids[fetches]])
            ends_ns = np.concatenate([ends_ns, ends_ns[fetches]])
            spent_ns = np.concatenate([spent_ns, between_ns])
            counts = np.concatenate([counts, np.ones(len(fetches), np.int64)])
        self._add(sums, loader_ids, kinds, ends_ns, spent_ns, counts)

    def _loaders_of(self, kinds: Ints, begins_ns: Ints, ends_ns: Ints) -> Ints:
        loader_ids = np.full(len(kinds), NO_LOADER)
        for is_validation, fetched in enumerate(self._fetched):
            is_of_phase = (kinds >= KINDS) == is_validation
            if not is_of_phase.any():
                continue
            fetches = np.flatnonzero(kinds == is_validation * KINDS + DATA)
            # A manual section may enclose the fetch that names the loader.
            loader_ids[fetches] = self._asked.at(ends_ns[fetches])
            in_order = fetches[np.argsort(ends_ns[fetches], kind="stable")]
            fetched.extend(ends_ns[in_order], loader_ids[in_order])
            others = np.flatnonzero(is_of_phase & ~_are_fetches(kinds))
            loader_ids[others] = fetched.at(begins_ns[others])
        return loader_ids

    def _between(self, arrivals_ns: Ints) -> tuple[Ints, Ints]:
        """Return (rows, ns) of the training batches, in ascending order, that followed another, and the time since."""
        if not len(arrivals_ns):
            self._was_outside_since |= len(self._outside_ns) > 0
            return arrivals_ns, arrivals_ns
        is_first = self._arrival_ns is None
        before_ns = np.concatenate([[arrivals_ns[0] if is_first else self._arrival_ns], arrivals_ns[:-1]])
        outside = np.searchsorted(self._outside_ns, arrivals_ns) - np.searchsorted(self._outside_ns, before_ns)
        outside[0] += is_first or self._was_outside_since
        self._arrival_ns = int(arrivals_ns[-1])
        self._was_outside_since = bool(len(self._outside_ns) and self._outside_ns[-1] >= self._arrival_ns)
        follow = np.flatnonzero(outside == 0)
        return follow, (arrivals_ns - before_ns)[follow]

    def _add(
        self, sums: LoaderSums, loader_ids: Ints, kinds: Ints, ends_ns: Ints, spent_ns: Ints, counts: Ints
    ) -> None:
        row_ends_ns, steps = self._ends
        self._ends = (row_ends_ns[:0], steps[:0])
        row_of = np.searchsorted(row_ends_ns, ends_ns) if len(steps) else np.zeros(len(ends_ns), np.int64)
        present, loader = loader_ids[:1], np.zeros(len(loader_ids), np.int64)
        if (loader_ids != present).any():
            present, loader = np.unique(loader_ids, return_inverse=True)
        shape = (len(present), len(steps) + 1, 2 * KINDS)
        cells = (loader * shape[1] + row_of) * shape[2] + kinds
        size = shape[0] * shape[1] * shape[2]
        tables = np.stack(
            [np.bincount(cells, values, size).reshape(shape) for values in (spent_ns, counts)], axis=-1
        ).astype(np.int64)
        of_loaders = dict(zip(present.tolist(), tables, strict=True))
        for loader_id, of_loader in of_loaders.items():
            sums.add_table(loader_id, of_loader.sum(axis=0))
        if self.intervals is not None:
            self.intervals.add(of_loaders, steps)

    def discard_old_changes(self, still_open: Events) -> None:
        """Discard the changes of loader that no open span began before."""
        for timeline in (self._asked, *self._fetched):
            if len(timeline.loader_ids) > 1:
                begins_ns = still_open.times_ns[self._kinds.of(still_open.codes & SECTION_MASK) >= 0]
                timeline.discard_before(int(begins_ns.min()) if len(begins_ns) else None)


def _are_fetches(kinds: Ints) -> Bools:
    fetches: Bools = (kinds == DATA) | (kinds == KINDS + DATA)  # a remainder would take several times as long
    return fetches


def _kind_of(name: str) -> int:
    if name in OUTSIDE_STEPS_SECTIONS or name == PROFILER:
        return IS_OUTSIDE
    if name.startswith(IN_VALIDATION):
        kind = KIND_OF.get(name.removeprefix(IN_VALIDATION))
        return NEITHER if kind is None else KINDS + kind
    return KIND_OF.get(name, NEITHER)


def _names(loaders: Sequence[LoaderCounts], phase: Phase) -> dict[int, str]:
    """Return the names of the loaders with batches in a phase, each a name of its own, by their ids.

    A loader of validation may have the name of one of training, as the loaders of two dictionaries with the same keys.
    """
    used = [counts for counts in loaders if counts.of(phase).batches]
    names = {counts.loader_id: counts.name for counts in used if not counts.other_names}  # the program's own, numbers
    taken = set(names.values())
    for counts in used:
        if counts.loader_id not in names:
            others = (*counts.other_names, *(f"{counts.name}-{number}" for number in range(2, len(used) + 2)))
            name = next(each for each in (counts.name, *others) if each not in taken)
            names[counts.loader_id] = name
            taken.add(name)
    return names


def loader_stats(loaders: Sequence[LoaderCounts], sums: LoaderSums) -> tuple[LoaderStats, ...]:
    """Return the stats of each loader that yielded at least one batch: training first, then validation."""
    stats = []
    for phase in (TRAIN, VAL):
        tallies = [(counts, counts.of(phase)) for counts in loaders]
        batches, names = sum(tally.batches for _, tally in tallies), _names(loaders, phase)
        for counts, tally in tallies:
            if not tally.batches:
                continue
            table = sums.table(counts.loader_id)[KINDS * (phase == VAL) :]
            wait_ns = int(table[DATA, 0]) if table[DATA, 1] else tally.wait_ns  # manual section on another thread
            made = tally.made
            stats.append(
                LoaderStats(
                    name=names[counts.loader_id],
                    batches=tally.batches,
                    samples=tally.samples,
                    wait_s=wait_ns / NS_PER_S,
                    phase=phase,
                    proportion=tally.batches / batches,
                    requested_proportion=counts.requested_share if phase == TRAIN else None,
                    cut_passes=tally.cut_passes,
                    batch_cpu_avg_s=made.cpu_ns / made.number / NS_PER_S if made.number >= BATCHES_NEEDED else None,
                    workers=worker_stats(counts.workers) if phase == TRAIN or not counts.of(TRAIN).batches else None,
                    **({} if counts.arguments is None else counts.arguments._asdict()),
                    **_means(table),
                )
            )
    return tuple(stats)


def _means(table: Ints) -> dict[str, Any]:
    """Return means in s, per batch and for the optimizer per update; None for kinds without any time."""
    means = {}
    for kind, name in enumerate(MEANS):
        count = int(table[kind if kind in (OPTIMIZER, BETWEEN) else DATA, 1])
        means[name] = int(table[kind, 0]) / count / NS_PER_S if count and table[kind].any() else None
    return means
