"""Attributes garbage collections to training steps."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from training_profiler.aggregation.step_totals import VARIES_AT_LEAST
from training_profiler.base.units import NS_PER_S
from training_profiler.model.interval import GarbageRecord
from training_profiler.model.machine import ASKED, FULL, YOUNG, CollectionStats, GarbageStats
from training_profiler.sampling.garbage_watch import Collection
from training_profiler.statistics.arrays import Ints, sums_by

KINDS: Final = (*YOUNG, FULL, ASKED)
MOST_WAITING: Final = 65_536  # collections, in case the clock stands still
# Columns. The longest is of those within steps, and its step is counted from 1.
COUNT, TOTAL_NS, STEP_COUNT, STEP_NS, STEPS, LONGEST_NS, LONGEST_STEP = range(7)
SUMMED: Final = slice(COUNT, LONGEST_NS)


class GarbageSums:
    """Sums over collections; rows are ``KINDS``. The sums of consecutive stretches add up."""

    def __init__(self) -> None:
        self.table = np.zeros((len(KINDS), LONGEST_STEP + 1), np.int64)
        self.steps = 0  # in which all collections are known
        # Of those after the first ten: their number, and the sums of s, x, s*s, s*x of step seconds s with x in them.
        self.coupling = np.zeros(5)

    def add(self, later: "GarbageSums") -> None:
        """Add the sums of another stretch."""
        self.table[:, SUMMED] += later.table[:, SUMMED]
        for row, longest in zip(self.table, later.table[:, LONGEST_NS:].tolist(), strict=True):
            row[LONGEST_NS:] = max(row[LONGEST_NS:].tolist(), longest)
        self.steps += later.steps
        self.coupling += later.coupling

    def add_steps(self, collected_ns: Ints, step_ns: Ints) -> None:
        """Add steps to the correlation: time in collections, and of the whole step."""
        step_s, collected_s = step_ns / NS_PER_S, collected_ns / NS_PER_S
        sums = (len(step_s), step_s.sum(), collected_s.sum(), step_s @ step_s, step_s @ collected_s)
        self.coupling += np.array(sums, np.float64)

    def add_in_steps(self, count: int, steps: Ints, kinds: Ints, ns: Ints) -> None:
        """Add so many complete steps, and the collections in them; ``steps`` are their numbers, counted from 0."""
        self.steps += count
        self.table[:, STEP_COUNT] += np.bincount(kinds, minlength=len(KINDS))
        self.table[:, STEP_NS] += sums_by(kinds, ns, len(KINDS))
        for kind in set(kinds.tolist()):  # the first call of np.unique would import numpy.ma
            of_kind = kinds == kind
            self.table[kind, STEPS] += len(set(steps[of_kind].tolist()))
            at = int(ns[of_kind].argmax())
            longest = [int(ns[of_kind][at]), int(steps[of_kind][at]) + 1]
            self.table[kind, LONGEST_NS:] = max(self.table[kind, LONGEST_NS:].tolist(), longest)

    def record(self) -> GarbageRecord | None:
        """Return the sums as a journal has them; None of no step and no collection."""
        count, *products = self.coupling.tolist()
        rows, coupling = cast(Any, self.table.tolist()), cast(Any, (int(count), *products))
        return GarbageRecord(self.steps, rows, coupling) if self.steps or self.table.any() else None

    @staticmethod
    def of(record: GarbageRecord) -> "GarbageSums":
        """Return the sums of a journal."""
        sums = GarbageSums()
        sums.steps = record.steps
        sums.table[:], sums.coupling[:] = record.rows, record.coupling
        return sums

    def stats(self) -> GarbageStats | None:
        """Return the stats; None where there was no collection."""
        rows = zip(KINDS, self.table.tolist(), strict=True)
        by_kind = {
            kind: CollectionStats(
                count, ns / NS_PER_S, in_steps, step_ns / NS_PER_S, steps, most_ns / NS_PER_S, longest
            )
            for kind, (count, ns, in_steps, step_ns, steps, most_ns, longest) in rows
            if count or in_steps
        }
        _, step_s, collected_s, _, _ = self.coupling.tolist()
        if not by_kind:
            return None
        return GarbageStats(self.steps, by_kind, collected_s / step_s if step_s else 0.0, self._explained())

    def _explained(self) -> float:
        """Return the part of the variance of step time: cov(step, collections) / var(step); see ``Coupling``."""
        count, *sums = self.coupling.tolist()
        if count < 2:
            return 0.0
        step_s, collected_s, squares, products = (value / count for value in sums)
        variance = squares - step_s**2
        if variance <= VARIES_AT_LEAST * step_s**2:
            return 0.0
        return min(1.0, max(0.0, (products - step_s * collected_s) / variance))


class GarbageAttribution:
    """Keeps collections until the events of their time arrive, and those of a step until it ends."""

    def __init__(self) -> None:
        self._waiting: list[Collection] = []
        self._unfinished = np.empty((0, 2), np.int64)  # kind and ns
        self._is_complete = False

    def add(self, collections: Sequence[Collection], is_complete: bool) -> None:
        """Keep collections, in time order, until their events arrive; ``is_complete`` if these are all of them."""
        self._is_complete = is_complete
        self._waiting += collections[: MOST_WAITING - len(self._waiting)]

    def discard_unfinished(self) -> None:
        """Forget the step in progress: it turned out not to be one."""
        self._unfinished = self._unfinished[:0]

    def attribute(
        self, sums: GarbageSums, rows_of: Callable[[Ints], Ints], complete: int, first_step: int, until_ns: int
    ) -> Ints | None:
        """Add the collections before ``until_ns`` to the sums.

        Return their time in each complete step, in ns; None if not all are known.

        Args:
            sums: the sums to add to.
            rows_of: returns the row of the step at each time; -1 for no step, ``complete`` for the unfinished step.
            complete: number of steps that have ended since the last call.
            first_step: number of the first of them, counted from 0.
            until_ns: the end of the events that have arrived.
        """
        if not self._waiting and not len(self._unfinished):  # as in most batches
            if not self._is_complete:
                return None
            sums.add_in_steps(complete, *np.empty((3, 0), np.int64))
            return np.zeros(complete, np.int64)
        waiting = np.array(self._waiting, np.int64).reshape(-1, 4)
        due = int(np.searchsorted(waiting[:, 0], until_ns))
        del self._waiting[:due]
        begins_ns, ends_ns, generations, is_asked = waiting[:due].T
        arrived = np.stack((np.where(is_asked, KINDS.index(ASKED), generations), ends_ns - begins_ns), axis=1)
        sums.table[:, COUNT] += np.bincount(arrived[:, 0], minlength=len(KINDS))
        sums.table[:, TOTAL_NS] += sums_by(arrived[:, 0], arrived[:, 1], len(KINDS))
        if not self._is_complete:
            self.discard_unfinished()
            return None
        rows = np.concatenate((np.zeros(len(self._unfinished), np.int64), rows_of(begins_ns)))
        known = np.concatenate((self._unfinished, arrived))
        self._unfinished = known[rows == complete]
        has_ended = (rows >= 0) & (rows < complete)
        rows, (kinds, ns) = rows[has_ended], known[has_ended].T
        sums.add_in_steps(complete, first_step + rows, kinds, ns)
        return sums_by(rows, ns, complete)
