"""What the batches of each data loader cost, from the events that say which loader they come from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from training_profiler.aggregation.histogram import Ints
from training_profiler.aggregation.span_matching import Bools, Events
from training_profiler.recording.data_loader import TRAIN, VAL, LoaderCounts
from training_profiler.recording.event_codes import LOADER, SECTION_MASK, STEP_END
from training_profiler.recording.known_sections import LOADER_SECTIONS, OUTSIDE_STEPS_SECTIONS, VALIDATION_EPOCH
from training_profiler.recording.section_names import SectionNames
from training_profiler.snapshot.snapshot import PROFILER, LoaderStats
from training_profiler.units import NS_PER_S

# What is summed up of each loader, in training and once more in validation. BETWEEN is no section, but the time from
# the arrival of one batch to that of the next.
DATA, FORWARD, BACKWARD, OPTIMIZER, BETWEEN = range(5)
KINDS: Final = 5
KIND_OF: Final = dict(zip(LOADER_SECTIONS, (DATA, FORWARD, BACKWARD, OPTIMIZER), strict=True))
IN_VALIDATION: Final = f"{VALIDATION_EPOCH}/"
NEITHER, IS_APART = -1, -2  # of the table from section to kind
NO_LOADER: Final = 0  # the serial of none
MOST_CHANGES: Final = 4096  # of loader, that a section still open may have seen
NS_A_ROW: Final = NS_PER_S // 10  # trackers get a row about this often where nobody said how often


class LoaderSums:
    """Time and count of each kind: ``table(serial)[kind]`` is (ns, count), in validation at ``kind + KINDS``."""

    def __init__(self) -> None:
        self.tables: dict[int, Ints] = {}

    def table(self, serial: int) -> Ints:
        """Return the sums of one loader; zeros where nothing is known of it."""
        return self.tables.get(serial, np.zeros((2 * KINDS, 2), np.int64))

    def add_table(self, serial: int, table: Ints) -> None:
        """Add sums of one loader."""
        self.tables[serial] = self.table(serial) + table

    def add(self, later: "LoaderSums") -> None:
        """Add the sums of a later stretch of time."""
        for serial, table in later.tables.items():
            self.add_table(serial, table)


class LoaderInterval(NamedTuple):
    """What came after one step of the row before, up to the end of step ``step``."""

    step: int  # counted from 1
    sums: LoaderSums
    batches: dict[int, int]  # serial -> training batches of the run so far


class LoaderIntervals:
    """Cuts the sums at the ends of steps, for those who follow a training while it goes on."""

    def __init__(self, every: int | None) -> None:
        self.every = every  # steps a row; None for as many as there are, at most ten rows a second
        self.done: dict[int, LoaderInterval] = {}
        self._unfinished = LoaderSums()
        self._batches: Counter[int] = Counter()
        self._bucket = -1
        self._steps = 0

    def ends_among(self, ends_ns: Ints, first_step: int) -> tuple[Ints, Ints]:
        """Return (ends in ns, steps) of those of the steps that end a row."""
        steps = np.arange(first_step + 1, first_step + 1 + len(ends_ns))
        if len(steps):
            self._steps = int(steps[-1])
        if self.every is not None:
            ends_row = steps % self.every == 0
        else:
            buckets = ends_ns // NS_A_ROW
            ends_row = np.diff(buckets, prepend=self._bucket) != 0
            self._bucket = int(buckets[-1]) if len(buckets) else self._bucket
        return ends_ns[ends_row], steps[ends_row]

    def add(self, serial: int, tables: Ints, steps: Ints) -> None:
        """Add the sums of one loader, one table for each of the rows that ``steps`` end, and one for what follows."""
        for row in np.flatnonzero(tables[:-1].any(axis=(1, 2))).tolist():
            self._row_at(int(steps[row])).sums.add_table(serial, tables[row])
        self._unfinished.add_table(serial, tables[-1])

    def end(self, steps: Ints) -> None:
        """End the rows of these steps; what was unfinished before is part of the first."""
        for step in steps.tolist()[:1]:
            self._row_at(step).sums.add(self._unfinished)
            self._unfinished = LoaderSums()

    def _row_at(self, step: int) -> LoaderInterval:
        return self.done.setdefault(step, LoaderInterval(step, LoaderSums(), {}))

    def take(self, is_last: bool = False) -> list[LoaderInterval]:
        """Return the rows that have ended since they were taken last, at the end of a run with what is left over."""
        if is_last:
            self.end(np.array([self._steps], np.int64))
        rows, self.done = [self.done[step] for step in sorted(self.done)], {}
        for row in rows:
            self._batches.update({serial: int(table[DATA, 1]) for serial, table in row.sums.tables.items()})
            row.batches.update(self._batches)
        return [row for row in rows if any(table.any() for table in row.sums.tables.values())]


class LoaderBooking:
    """Books spans of the training thread on the loader that the batch under way came from."""

    def __init__(self, names: SectionNames) -> None:
        self.rows: LoaderIntervals | None = None  # where anybody wants them
        self._names = names
        self._kinds = np.zeros(0, np.int64)  # section id -> kind
        self._kinds_known = 0
        self._is_needed = False  # whether a loader was ever named
        self._since_ns = np.array([np.iinfo(np.int64).min])  # when batches began to come from another loader
        self._serials = np.array([NO_LOADER])  # and from which
        self._apart_ns = np.zeros(0, np.int64)  # when work that is no part of a step began, in this batch of events
        self._arrival_ns: int | None = None  # of the training's last batch
        self._is_apart_since = False
        self._ends: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def wants_rows(self, is_wanted: bool, every: int | None) -> None:
        """Cut the sums at the ends of steps from now on, or no more."""
        if not is_wanted:
            self.rows = None
        elif self.rows is None:
            self.rows = LoaderIntervals(every)
        else:
            self.rows.every = every

    def take_rows(self, is_last: bool = False) -> Sequence[LoaderInterval]:
        """Return the rows that have ended; none where nobody wants them."""
        return () if self.rows is None else self.rows.take(is_last)

    def take_out(self, events: Events, is_training: bool) -> Events:
        """Return the events without those that say which loader is meant; the training thread's are remembered."""
        if not len(events.codes) or events.codes.max() < LOADER:
            return events
        is_change = events.codes >= LOADER
        if is_training:
            self._is_needed = True
            self._since_ns = np.concatenate([self._since_ns, events.times_ns[is_change]])
            self._serials = np.concatenate([self._serials, events.codes[is_change] - LOADER])
        return Events(events.times_ns[~is_change], events.codes[~is_change])

    def begin(self, training: Events, marks: list[tuple[int, int]], first_step: int) -> None:
        """Begin with the events of the training thread, of which the spans will be booked next."""
        if not self._is_needed:
            return
        begun = training.codes > 0
        ids = training.codes[begun] & SECTION_MASK
        self._apart_ns = training.times_ns[begun][self._kinds_of(ids) == IS_APART]
        if self.rows is not None:
            ends_ns = np.array([ns for kind, ns in marks if kind == STEP_END], np.int64)
            self._ends = self.rows.ends_among(ends_ns, first_step)

    def book(
        self, sums: LoaderSums, ids: Ints, begin_ns: Ints, durations_ns: Ints, is_outermost: Bools, is_counted: Bools
    ) -> None:
        """Add the spans that ended to ``sums``, and to the rows.

        Args:
            sums: what to add to.
            ids: their sections, one entry a span, in any order.
            begin_ns: when they began.
            durations_ns: how long they took.
            is_outermost: whether they lie in no other span of their section.
            is_counted: whether they are executions of their section; the others add to its time alone.
        """
        if not self._is_needed:
            return
        kinds = self._kinds_of(ids)
        # What a loader does before the fetch, such as starting workers, is no part of ``next(iterator)``.
        rows = np.flatnonzero((kinds >= 0) & is_outermost & (is_counted | (kinds % KINDS != DATA)))
        kinds, ends_ns, spent_ns = kinds[rows], (begin_ns + durations_ns)[rows], durations_ns[rows]
        # A section by hand may lie around the fetch that says which loader is meant.
        at_ns = np.where(kinds % KINDS == DATA, ends_ns, begin_ns[rows])
        change = np.searchsorted(self._since_ns, at_ns, side="right") - 1
        serials = self._serials[np.maximum(change, 0)]
        known = serials != NO_LOADER
        if not known.all():
            rows, kinds, ends_ns, spent_ns, serials = (
                array[known] for array in (rows, kinds, ends_ns, spent_ns, serials)
            )
        counts = is_counted[rows].astype(np.int64)
        between = self._between(ends_ns, kinds)
        if len(between[0]):
            kinds = np.concatenate([kinds, np.full(len(between[0]), BETWEEN)])
            serials = np.concatenate([serials, serials[between[0]]])
            ends_ns = np.concatenate([ends_ns, ends_ns[between[0]]])
            spent_ns = np.concatenate([spent_ns, between[1]])
            counts = np.concatenate([counts, np.ones(len(between[0]), np.int64)])
        self._add(sums, serials, kinds, ends_ns, spent_ns, counts)

    def _between(self, ends_ns: Ints, kinds: Ints) -> tuple[Ints, Ints]:
        """Return (rows, ns) of the batches of training that came after another one, and how long after it."""
        rows = np.flatnonzero(kinds == DATA)
        rows = rows[np.argsort(ends_ns[rows], kind="stable")]
        arrivals_ns = ends_ns[rows]
        if not len(rows):
            self._is_apart_since |= len(self._apart_ns) > 0
            return rows, arrivals_ns
        is_first = self._arrival_ns is None
        before_ns = np.concatenate([[arrivals_ns[0] if is_first else self._arrival_ns], arrivals_ns[:-1]])
        apart = np.searchsorted(self._apart_ns, arrivals_ns) - np.searchsorted(self._apart_ns, before_ns)
        apart[0] += is_first or self._is_apart_since
        self._arrival_ns = int(arrivals_ns[-1])
        self._is_apart_since = bool(len(self._apart_ns) and self._apart_ns[-1] >= self._arrival_ns)
        return rows[apart == 0], (arrivals_ns - before_ns)[apart == 0]

    def _add(self, sums: LoaderSums, serials: Ints, kinds: Ints, ends_ns: Ints, spent_ns: Ints, counts: Ints) -> None:
        row_ends_ns, steps = self._ends
        self._ends = (row_ends_ns[:0], steps[:0])
        row_of = np.searchsorted(row_ends_ns, ends_ns) if len(steps) else np.zeros(len(ends_ns), np.int64)
        present, loader = np.unique(serials, return_inverse=True)
        shape = (len(present), len(steps) + 1, 2 * KINDS)
        cells = (loader * shape[1] + row_of) * shape[2] + kinds
        size = shape[0] * shape[1] * shape[2]
        tables = np.stack(
            [np.bincount(cells, values, size).reshape(shape) for values in (spent_ns, counts)], axis=-1
        ).astype(np.int64)
        if self.rows is not None:
            self.rows.end(steps)
        for serial, table in zip(present.tolist(), tables, strict=True):
            sums.add_table(serial, table.sum(axis=0))
            if self.rows is not None:
                self.rows.add(serial, table, steps)

    def forget(self, still_open: Events) -> None:
        """Forget the changes of loader that no span still to end has seen."""
        if len(self._serials) <= 1:
            return
        ids = still_open.codes & SECTION_MASK
        begins_ns = still_open.times_ns[self._kinds_of(ids) >= 0]
        first = len(self._serials) - 1
        if len(begins_ns):
            first = max(0, int(np.searchsorted(self._since_ns, begins_ns.min(), side="right")) - 1)
        first = max(first, len(self._serials) - MOST_CHANGES)
        self._since_ns, self._serials = self._since_ns[first:], self._serials[first:]

    def _kinds_of(self, ids: Ints) -> Ints:
        names = self._names.names
        if self._kinds_known != len(names):
            known = list(names.items())
            self._kinds_known = len(known)
            self._kinds = np.full(max(id for id, _ in known) + 1, NEITHER)
            for id, name in known:
                self._kinds[id] = _kind_of(name)
        return self._kinds[ids]


def _kind_of(name: str) -> int:
    if name in OUTSIDE_STEPS_SECTIONS or name == PROFILER:
        return IS_APART
    if name.startswith(IN_VALIDATION):
        kind = KIND_OF.get(name.removeprefix(IN_VALIDATION))
        return NEITHER if kind is None else KINDS + kind
    return KIND_OF.get(name, NEITHER)


def loader_stats(loaders: Sequence[LoaderCounts], sums: LoaderSums) -> tuple[LoaderStats, ...]:
    """Return the figures of each loader that gave at least one batch, in training and then in validation."""
    stats = []
    for phase in (TRAIN, VAL):
        tallies = [(counts, counts.of(phase)) for counts in loaders]
        batches = sum(tally.batches for _, tally in tallies)
        for counts, tally in tallies:
            if not tally.batches:
                continue
            table = sums.table(counts.loader_id)[KINDS * (phase == VAL) :]
            wait_ns = int(table[DATA, 0]) if table[DATA, 1] else tally.wait_ns  # by hand, on another thread
            stats.append(
                LoaderStats(
                    name=counts.name,
                    batches=tally.batches,
                    samples=tally.samples,
                    wait_s=wait_ns / NS_PER_S,
                    phase=phase,
                    proportion=tally.batches / batches,
                    asked_proportion=counts.requested_share if phase == TRAIN else None,
                    **_means(table),
                )
            )
    return tuple(stats)


def interval_stats(row: LoaderInterval, loaders: Sequence[LoaderCounts]) -> tuple[LoaderStats, ...]:
    """Return the figures of one row for trackers; proportions are of the run so far, samples are not told."""
    batches = sum(row.batches.values())
    stats = []
    for counts in loaders:
        table = row.sums.table(counts.loader_id)
        for phase, part in ((TRAIN, table[:KINDS]), (VAL, table[KINDS:])):
            so_far = row.batches.get(counts.loader_id, 0) if phase == TRAIN else 0
            if not so_far and not part.any():
                continue
            one = LoaderStats(
                counts.name, int(part[DATA, 1]), None, int(part[DATA, 0]) / NS_PER_S, phase, **_means(part)
            )
            if so_far:
                one = replace(one, proportion=so_far / batches, asked_proportion=counts.requested_share)
            stats.append(one)
    return tuple(stats)


def _means(table: Ints) -> dict[str, Any]:
    """Return the means a batch, of an update for the optimizer, in s; None of what did not happen."""
    batches = int(table[DATA, 1])

    def mean(kind: int, count: int) -> float | None:
        return int(table[kind, 0]) / count / NS_PER_S if count and table[kind].any() else None

    return {
        "data_avg_s": mean(DATA, batches),
        "forward_avg_s": mean(FORWARD, batches),
        "backward_avg_s": mean(BACKWARD, batches),
        "optimizer_avg_s": mean(OPTIMIZER, int(table[OPTIMIZER, 1])),
        "batch_wait_avg_s": mean(BETWEEN, int(table[BETWEEN, 1])),
    }
