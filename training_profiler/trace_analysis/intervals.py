"""Arithmetic of intervals: unions, lengths, intersections; whole nanoseconds throughout."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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
