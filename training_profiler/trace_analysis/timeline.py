"""Sets of intervals of time, and timelines: the annotation of the training loop that is open at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from training_profiler.trace_analysis.columns import NONE, Bools, Columns, Ints, packed


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order, none touching the next; begin inclusive, end exclusive."""

    begin_ns: Ints
    end_ns: Ints

    @property
    def total_ns(self) -> int:
        """The total length."""
        return int((self.end_ns - self.begin_ns).sum())


NOTHING = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(begin_ns: Ints, end_ns: Ints) -> Intervals:
    """Return the union of intervals, which may overlap and come in any order.

    An empty interval is kept if nothing covers it: work too short to be measured still divides the gap around it.
    """
    if not len(begin_ns):
        return NOTHING
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, end_ns = begin_ns[order], np.maximum.accumulate(end_ns[order])
    is_first = np.empty(len(begin_ns), np.bool_)
    is_first[0] = True
    np.greater(begin_ns[1:], end_ns[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    return Intervals(begin_ns[firsts], end_ns[np.append(firsts[1:], len(begin_ns)) - 1])


def span_of(columns: Columns, which: Bools | Ints) -> Intervals:
    """Return when any of these events was open: events that overlap, on one thread or several, count once."""
    rows = np.flatnonzero(which) if which.dtype == np.bool_ else which
    return union(columns.begin_ns[rows], columns.end_ns[rows])


def bounds_of(parts: Sequence[Any]) -> tuple[Ints, Ints]:
    """Return the begins and the ends of steps, gaps or other parts of the time."""
    begins, ends = np.array([(part.begin_ns, part.end_ns) for part in parts], np.int64).reshape(-1, 2).T
    return begins, ends


def together(a: Intervals, b: Intervals) -> Intervals:
    """Return the union of both."""
    return union(np.concatenate([a.begin_ns, b.begin_ns]), np.concatenate([a.end_ns, b.end_ns]))


def covered_before(intervals: Intervals, at_ns: Ints) -> Ints:
    """Return how much of the time before each of ``at_ns`` the intervals cover."""
    if not len(intervals.begin_ns):
        return np.zeros(len(at_ns), np.int64)
    lengths = intervals.end_ns - intervals.begin_ns
    before = np.concatenate([[0], np.cumsum(lengths)])
    index = np.searchsorted(intervals.begin_ns, at_ns, side="right")  # the number of intervals that have begun
    last = np.maximum(index - 1, 0)
    into = np.clip(at_ns - intervals.begin_ns[last], 0, lengths[last])
    return np.where(index > 0, before[last] + into, 0)


def covered(intervals: Intervals, begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return how much of each window from ``begin_ns`` to ``end_ns`` the intervals cover; windows may overlap."""
    return covered_before(intervals, end_ns) - covered_before(intervals, begin_ns)


def overlap(a: Intervals, b: Intervals) -> int:
    """Return the length of the intersection."""
    return int(covered(b, a.begin_ns, a.end_ns).sum())


def gaps(intervals: Intervals) -> Intervals:
    """Return the time between each interval and the next."""
    return Intervals(intervals.end_ns[:-1], intervals.begin_ns[1:])


_NO_END: Final = 2**63
_OF_THE_LOOP: Final = ("Optimizer.step#", "enumerate(DataLoader)")


@dataclass(frozen=True, slots=True)
class Timeline:
    """From each ``begin_ns`` to the next, ``row`` is the innermost open event; -1 for none."""

    begin_ns: Ints
    row: Ints

    def spent(self) -> tuple[Ints, Ints]:
        """Return the rows that are open, one after another, and for how long each is the innermost."""
        is_open = self.row[:-1] != NONE  # the last is the end
        return self.row[:-1][is_open], np.diff(self.begin_ns)[is_open]

    def at(self, at_ns: Ints) -> Ints:
        """Return the row that is open at each time; -1 for none."""
        if not len(self.begin_ns):
            return np.full(len(at_ns), NONE, np.int64)
        place = np.searchsorted(self.begin_ns, at_ns, side="right") - 1
        return np.where(place >= 0, self.row[np.maximum(place, 0)], NONE)


def main_thread(columns: Columns) -> int:
    """Return the thread that runs the training loop; -1 if there is none.

    Marked steps are on that thread. Without marks, updates and fetches of batches are; without those it is the thread
    with most operators, which may be that of the backward pass.
    """
    for which in (
        columns.is_step(),
        columns.named(lambda name: name.startswith(_OF_THE_LOOP), columns.is_of("user_annotation")),
        columns.is_of("cpu_op", "user_annotation"),
    ):
        if which.any():
            return int(np.bincount(columns.thread.compress(which)).argmax())
    return NONE


def timeline_of(columns: Columns, which: Bools) -> Timeline:
    """Return the timeline of the events of ``which``. If several are open, the newest counts."""
    rows = np.flatnonzero(which)
    if not len(rows):
        return Timeline(rows, rows)
    rows = rows[np.lexsort((-columns.end_ns[rows], columns.begin_ns[rows]))]
    return _newest(rows.tolist(), columns.begin_ns[rows].tolist(), columns.end_ns[rows].tolist())


def _newest(rows: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> Timeline:
    at: list[int] = []
    row: list[int] = []
    # The stack of open events begins with none of them, which has no end.
    open_rows, open_ends = [NONE], [_NO_END]
    for place, begin, end in (*zip(rows, begins, ends, strict=True), (NONE, _NO_END - 1, _NO_END)):
        while open_ends[-1] <= begin:
            ended = open_ends[-1]  # the newest closes, and with it all that have ended by then
            while open_ends[-1] <= ended:
                open_rows.pop()
                open_ends.pop()
            at.append(ended)
            row.append(open_rows[-1])
        open_rows.append(place)
        open_ends.append(end)
        at.append(begin)
        row.append(place)
    return Timeline(packed(*at[:-1]), packed(*row[:-1]))


def step_at(parts: Sequence[Any], at_ns: Ints) -> Ints:
    """Return the index of the step that each time is in; -1 for none. Steps are in order of their begin."""
    begins, ends = bounds_of(parts)
    if not len(begins):
        return np.full(len(at_ns), NONE, np.int64)
    place = np.searchsorted(begins, at_ns, side="right") - 1
    return np.where((place >= 0) & (at_ns < ends[np.maximum(place, 0)]), place, NONE)
