"""Which sections count, for inferred sections yield to manual ones, and the sums of each, in one row a section."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from training_profiler.aggregation.span_matching import Events, SectionKinds
from training_profiler.base.sections import (
    OUTSIDE_STEPS_SECTIONS,
    STEP_PARTS,
    SectionNames,
)
from training_profiler.model.interval import SectionRecord
from training_profiler.recording.event_codes import DISCARDED, INFERRED, SECTION_MASK
from training_profiler.statistics.arrays import Bools, Floats, Ints, sums_by
from training_profiler.statistics.histogram import BIN_COUNT, bins_of, quantiles_ns

STEP_PART, OUTSIDE = 1, 2  # manual sections of these kinds hide inferred ones; other names are of kind 0


class InferredSectionFilter:
    """Drops inferred events that a manual section already covers, and removes the mark from the others.

    A manual section that is part of a step, such as ``forward_pass``, hides all inferred sections inside it. A manual
    section outside steps, such as validation, hides only inferred sections that are outside steps as well.
    """

    def __init__(self, names: SectionNames, is_needed: bool = False) -> None:
        self.is_needed = is_needed  # whether this run has inferred sections
        self.spans = 0  # inferred ones, as many as have ended
        self._open: dict[int, tuple[int, int]] = {}  # thread id -> open manual ones: (step parts, outside steps)
        self._dropped: dict[int, Counter[int]] = {}  # thread id -> dropped enters without an exit so far
        self._kinds = SectionKinds(names, _kind_of)

    def admit(self, thread_id: int, events: Events) -> Events:
        """Return the events of thread ``thread_id`` that count, with plain section ids."""
        if not self.is_needed or not len(events.codes):
            return events
        codes = np.abs(events.codes)
        is_unaffected = thread_id not in self._open and thread_id not in self._dropped
        if is_unaffected and codes.max() < INFERRED and not self._kinds.of(codes).any():  # a user's own sections alone
            return events
        mark = codes & INFERRED
        is_inferred = mark != 0
        self.spans += int(np.count_nonzero(is_inferred & (events.codes < 0)))
        plain = np.where(events.codes > 0, events.codes - mark, events.codes + mark)
        manual = codes[np.flatnonzero(~is_inferred)] & SECTION_MASK
        if is_unaffected and not self._kinds.of(manual).any():  # as in nearly all runs
            return Events(events.times_ns, plain)
        ids = codes & SECTION_MASK
        sign = np.sign(events.codes) * ~is_inferred
        kinds = self._kinds.of(ids)
        is_outside = kinds == OUTSIDE
        steps_before, outside_before = self._open.pop(thread_id, (0, 0))
        in_step = (sign * (kinds == STEP_PART)).cumsum() + steps_before
        in_outside = (sign * is_outside).cumsum() + outside_before
        still_open = (max(0, int(in_step[-1])), max(0, int(in_outside[-1])))
        if still_open != (0, 0):
            self._open[thread_id] = still_open
        covered = (in_step > 0) | ((in_outside > 0) & is_outside)
        kept = ~(is_inferred & covered)
        if thread_id in self._dropped or not kept.all():
            self._keep_in_pairs(thread_id, events.codes, is_inferred, kept)
        return Events(events.times_ns[kept], plain[kept])

    def _keep_in_pairs(self, thread_id: int, codes: Ints, is_inferred: Bools, kept: Bools) -> None:
        """Keep the exit of an inferred span exactly if its enter was kept, whatever manual sections lie in between."""
        if thread_id not in self._dropped and _are_pairs(codes[is_inferred], kept[is_inferred]):
            return
        dropped = self._dropped.pop(thread_id, Counter())
        enters: dict[int, list[bool]] = {}  # code -> for each open span, whether its enter was kept
        for row in np.flatnonzero(is_inferred).tolist():
            code = int(codes[row])
            if code > 0:
                enters.setdefault(code, []).append(bool(kept[row]))
                continue
            code = -code % DISCARDED
            if enters.get(code):
                kept[row] = enters[code].pop()
            else:  # entered in an earlier batch
                kept[row] = not dropped[code]
                dropped[code] -= not kept[row]
        for code, were_kept in enters.items():
            dropped[code] += were_kept.count(False)
        if +dropped:
            self._dropped[thread_id] = +dropped


def _kind_of(name: str) -> int:
    if name in STEP_PARTS:
        return STEP_PART
    return OUTSIDE if name in OUTSIDE_STEPS_SECTIONS else 0


def _are_pairs(codes: Ints, kept: Bools) -> bool:
    """Return whether each enter is followed by its exit before the next of its kind, and both are kept, or neither."""
    spans = np.abs(codes) % DISCARDED
    order = spans.argsort(kind="stable")
    spans, is_enter, kept = spans[order], codes[order] > 0, kept[order]
    if len(spans) % 2 or not is_enter[::2].all() or is_enter[1::2].any():
        return False
    return bool((spans[::2] == spans[1::2]).all() and (kept[::2] == kept[1::2]).all())


NEVER = np.iinfo(np.int64).max
ADDED, MEASURED = SectionRecord.__struct_fields__[:10], SectionRecord.__struct_fields__[10:15]


def rows_for(sections: int) -> int:
    """Return the number of rows to keep for this many sections; a multiple of 16, so that arrays seldom grow."""
    return (sections // 16 + 1) * 16


class SectionSums:
    """Running sums. Row i of each array belongs to the section with id i; row 0 is time in no section.

    ``count`` and ``total_ns`` cover all spans. ``measured``, ``mean_ns``, ``m2``, ``min_ns``, ``max_ns`` and ``bins``
    leave out the spans of warm-up steps if the user has set their number. ``self_ns`` is exclusive time on the
    training thread, ``elsewhere_ns`` on other threads. ``step_self_ns`` and ``step_total_ns`` are the parts within
    training steps. ``after_ns`` and ``after_count`` are the parts of ``self_ns`` and ``count`` after the last of these
    (``loop_end_ns``). ``device_ns`` is the accelerator's time for ``device_count`` spans; it may become known after
    the spans have ended.
    """

    def __init__(self, rows: int = 16) -> None:
        self.count, self.total_ns, self.self_ns, self.elsewhere_ns = np.zeros((4, rows), np.int64)
        self.step_self_ns, self.step_total_ns, self.device_ns, self.device_count = np.zeros((4, rows), np.int64)
        self.after_ns, self.after_count, self.measured = np.zeros((3, rows), np.int64)
        self.min_step, self.max_step = np.zeros((2, rows), np.int64)  # from 1; 0 outside of steps
        self.mean_ns, self.m2 = np.zeros((2, rows))  # m2: sum of squared distances from the mean, ns^2
        self.min_ns = np.full(rows, NEVER, np.int64)
        self.max_ns = np.full(rows, -1, np.int64)
        self.bins = np.zeros((rows, BIN_COUNT), np.int64)
        self.parents: dict[tuple[int, int], int] = {}  # (parent id, id) -> spans

    @property
    def rows(self) -> int:
        """Number of sections there is room for."""
        return len(self.count)

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` sections."""
        if rows <= self.rows:
            return
        roomier = SectionSums(rows)
        for row, filled in self.filled_bins():  # the table is large, and most of it is never written
            roomier.bins[row, filled] = self.bins[row, filled]
        for name, array in list(vars(self).items()):
            if name not in ("bins", "parents"):
                getattr(roomier, name)[: len(array)] = array
        roomier.parents = self.parents
        vars(self).update(vars(roomier))

    def filled_bins(self) -> list[tuple[int, slice]]:
        """Return for each section with measured spans where in its row of ``bins`` these are."""
        rows = np.flatnonzero(self.measured)
        if not len(rows):
            return []
        first, last = (bins_of(extremes_ns[rows]).tolist() for extremes_ns in (self.min_ns, self.max_ns))
        return [(row, slice(begin, end + 1)) for row, begin, end in zip(rows.tolist(), first, last, strict=True)]

    def quantiles_ns(self, id: int, shares: Sequence[float]) -> list[float]:
        """Return several quantiles of a section's measured spans; none where they are not known."""
        first, last = bins_of(np.array([self.min_ns[id], self.max_ns[id]])).tolist()
        return quantiles_ns(self.bins[id, first : last + 1], shares, first)

    def clear_after(self) -> None:
        """A step has ended: nothing is after it yet."""
        self.after_ns[:] = self.after_count[:] = 0

    def add_after(self, ids: Ints, own_ns: Ints, begun: Ints) -> None:
        """Add exclusive times after the last step, and the sections that have ``begun`` there."""
        self.after_ns += sums_by(ids, own_ns, self.rows)
        self.after_count += np.bincount(begun, minlength=self.rows)

    def add_spans(
        self,
        ids: Ints,
        durations_ns: Ints,
        parents: Ints,
        step_numbers: Ints,
        is_measured: Bools,
        is_counted: Bools,
    ) -> None:
        """Add ended spans, one entry each in every array, in any order.

        Args:
            ids: sections.
            durations_ns: durations.
            parents: enclosing sections; 0 for none.
            step_numbers: steps the spans began in, counted from 1; 0 outside of steps.
            is_measured: the spans that count for averages and quantiles.
            is_counted: False for spans that only add to the time of their section.
        """
        self.total_ns += sums_by(ids, durations_ns, self.rows)
        self.count += np.bincount(ids[is_counted], minlength=self.rows)
        edges, counts = np.unique(parents[is_counted] * self.rows + ids[is_counted], return_counts=True)
        for key, count in zip(edges.tolist(), counts.tolist(), strict=True):
            edge = divmod(key, self.rows)
            self.parents[edge] = self.parents.get(edge, 0) + count
        chosen = is_measured & is_counted
        if chosen.any():
            self._add_measured(ids[chosen], durations_ns[chosen], step_numbers[chosen])

    def _add_measured(self, ids: Ints, durations_ns: Ints, step_numbers: Ints) -> None:
        """Add spans to averages and quantiles."""
        counts = np.bincount(ids, minlength=self.rows)
        self._add_extremes(ids, durations_ns, step_numbers)
        np.add.at(self.bins.reshape(-1), ids * BIN_COUNT + bins_of(durations_ns), 1)
        means = sums_by(ids, durations_ns, self.rows) / np.maximum(counts, 1)
        distances = durations_ns - means[ids]
        m2 = np.zeros(self.rows)
        np.add.at(m2, ids, distances * distances)
        self._add_moments(counts, means, m2)

    def _add_extremes(self, ids: Ints, durations_ns: Ints, step_numbers: Ints) -> None:
        shortest, longest = self.min_ns.copy(), self.max_ns.copy()
        np.minimum.at(shortest, ids, durations_ns)
        np.maximum.at(longest, ids, durations_ns)
        for section in np.flatnonzero((shortest < self.min_ns) | (longest > self.max_ns)).tolist():
            own = np.flatnonzero(ids == section)
            if shortest[section] < self.min_ns[section]:
                self.min_step[section] = step_numbers[own[durations_ns[own].argmin()]]
            if longest[section] > self.max_ns[section]:
                self.max_step[section] = step_numbers[own[durations_ns[own].argmax()]]
        self.min_ns, self.max_ns = shortest, longest

    def _add_distributions(self, filled: Sequence[tuple[int, slice]], later: "SectionSums") -> None:
        for row, columns in filled:
            self.bins[row, columns] += later.bins[row, columns]
        rows = np.array([row for row, _ in filled], np.int64)
        counts, means, m2 = np.zeros(self.rows, np.int64), np.zeros(self.rows), np.zeros(self.rows)
        counts[rows], means[rows], m2[rows] = later.measured[rows], later.mean_ns[rows], later.m2[rows]
        self._add_moments(counts, means, m2)
        shorter = rows[later.min_ns[rows] < self.min_ns[rows]]
        longer = rows[later.max_ns[rows] > self.max_ns[rows]]
        self.min_ns[shorter], self.min_step[shorter] = later.min_ns[shorter], later.min_step[shorter]
        self.max_ns[longer], self.max_step[longer] = later.max_ns[longer], later.max_step[longer]

    def _add_moments(self, counts: Ints, means: Floats, m2: Floats) -> None:
        # Pairwise update of mean and variance (Chan, Golub, LeVeque 1979).
        together = np.maximum(self.measured + counts, 1)
        delta = means - self.mean_ns
        self.m2 += m2 + np.where(counts > 0, delta**2 * self.measured * counts / together, 0.0)
        self.mean_ns += np.where(counts > 0, delta * counts / together, 0.0)
        self.measured += counts

    def add(self, later: "SectionSums") -> None:
        """Add the sums of a later stretch of time with the same ids."""
        self.grow(later.rows)
        for name in ADDED:
            getattr(self, name)[: later.rows] += getattr(later, name)
        filled = later.filled_bins()
        if filled:  # the table of bins is large, and most sections have no spans in a short stretch
            self._add_distributions(filled, later)
        for edge, total in later.parents.items():
            self.parents[edge] = self.parents.get(edge, 0) + total
