"""The nesting of host events: steps, sections, operators and runtime calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from training_profiler.trace_analysis.load.columns import CATEGORY_IDS, NONE, Bools, Columns, Ints, distinct, order_of

# If a trace rounds begin and duration to whole us, an inner event may end up to 2 us after the outer one.
ROUNDING_NS: Final = 2000
# Open events that are looked through for the one around a new event; profilers write two or three that overlap.
MOST_OVERLAPPING: Final = 500
_NO_END: Final = 2**63
# Of two events with the same begin and end, the later category in this order lies within the other.
_OUTER_FIRST: Final = ("user_annotation", "python_function", "cpu_op", "cuda_runtime")


@dataclass(frozen=True, slots=True)
class Nesting:
    """The parent of each event of the trace (-1 for none), its self time and its depth."""

    parent: Ints
    self_ns: Ints
    is_outermost: Bools  # not within a call of the same name; only such events count for the total of a name
    levels: tuple[Ints, ...]  # rows by depth, the outermost first


def nesting_of(columns: Columns, which: Bools) -> Nesting:
    """Return how the events of ``which`` nest, thread by thread.

    An event that begins within another and ends later (by more than rounding) is its sibling: annotations can overlap.
    """
    parent = np.full(len(columns.begin_ns), NONE, np.int64)
    self_ns = np.where(which, columns.end_ns - columns.begin_ns, 0)
    rows = _in_order(columns, np.flatnonzero(which))
    inside, depth = _walked(columns, rows)
    has_parent = np.flatnonzero(inside >= 0)
    parent[rows[has_parent]] = rows[inside[has_parent]]
    lengths = np.minimum(columns.end_ns[rows], columns.end_ns[parent[rows]]) - columns.begin_ns[rows]
    np.subtract.at(self_ns, parent[rows[has_parent]], lengths[has_parent])
    levels = _by_depth(depth)
    outermost = np.ones(len(parent), np.bool_)
    # An annotation may have the name of an operator: the operator within it is still its outermost call.
    name = 2 * columns.name[rows] + columns.is_of("user_annotation")[rows]
    outermost[rows] = _is_outermost(name, inside, levels)
    return Nesting(parent, np.maximum(0, self_ns), outermost, tuple(rows[level] for level in levels))


def _in_order(columns: Columns, rows: Ints) -> Ints:
    """Return rows thread by thread, in order of their begin; an event comes before those that it may have within."""
    inner = np.zeros(max(CATEGORY_IDS.values()) + 1, np.int64)
    inner[[CATEGORY_IDS[category] for category in _OUTER_FIRST]] = range(len(_OUTER_FIRST))
    rows = rows[order_of(columns.thread[rows], len(columns.threads))]  # all are in order of their begin
    begins, threads = columns.begin_ns[rows], columns.thread[rows]
    is_same = (begins[1:] == begins[:-1]) & (threads[1:] == threads[:-1])
    tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
    which = rows[tied]
    keys = (inner[columns.category[which]], -columns.end_ns[which], columns.begin_ns[which], columns.thread[which])
    rows[tied] = which[np.lexsort(keys)]
    return rows


def _walked(columns: Columns, rows: Ints) -> tuple[Ints, Ints]:
    """Return for each of ``rows``, in their order, the place of its parent among them, and its depth."""
    begins, ends, threads = (array[rows] for array in (columns.begin_ns, columns.end_ns, columns.thread))
    parents, depths = np.full(len(rows), NONE, np.int64), np.zeros(len(rows), np.int64)
    bounds = [0, *(np.flatnonzero(np.diff(threads)) + 1).tolist(), len(rows)]
    for first, after in pairwise(bounds):
        depth = _open_at_begin(begins[first:after], ends[first:after])
        parent = _parents(depth)
        parents[first:after] = np.where(parent == NONE, NONE, parent + first)
        depths[first:after] = depth
    ends_late = np.flatnonzero((parents != NONE) & (ends > ends[parents]))
    if len(ends_late):
        outermost = np.append(np.flatnonzero(depths == 0), len(rows))
        for group in distinct(np.searchsorted(outermost, ends_late, side="right")).tolist():
            _walk(begins, ends, parents, depths, range(*outermost[group - 1 : group + 1].tolist()))
    return parents, depths


def _open_at_begin(begins: Ints, ends: Ints) -> Ints:
    """Return how many earlier events are open when each begins."""
    empty = np.append(0, np.cumsum(begins == ends))
    not_yet = empty[np.searchsorted(begins, begins, side="right")] - empty[:-1]  # of those that end at this time
    ended: Ints = np.searchsorted(np.sort(ends, kind="stable"), begins, side="right") - not_yet
    return np.arange(len(begins)) - ended


def _parents(depth: Ints) -> Ints:
    """Return the newest earlier event that is one less deep: the parent, where no event ends after its parent."""
    parent = np.full(len(depth), NONE, np.int64)
    for outer, inner in pairwise(_by_depth(depth)):
        parent[inner] = outer[np.searchsorted(outer, inner) - 1]
    return parent


def _by_depth(depth: Ints) -> list[Ints]:
    return np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []


def _walk(begins: Ints, ends: Ints, parents: Ints, depths: Ints, places: range) -> None:
    """Write parents and depths of events of which some end after the event that they begin in."""
    # The stack of open events begins with one without an end: events outside all others are in it.
    open_places, open_ends, open_depths = [NONE], [_NO_END], [NONE]
    of_group = slice(places.start, places.stop)
    found, deep = [], []
    for i, begin, end in zip(places, begins[of_group].tolist(), ends[of_group].tolist(), strict=True):
        while open_ends[-1] <= begin:
            open_ends.pop()
            open_places.pop()
            open_depths.pop()
        around = -1 if open_ends[-1] >= end else _around(open_ends, begin, end)
        end = min(end, open_ends[around])
        found.append(open_places[around])
        deep.append(open_depths[around] + 1)
        open_places.append(i)
        open_ends.append(end)
        open_depths.append(deep[-1])
    parents[of_group], depths[of_group] = found, deep


def _around(open_ends: Sequence[int], begin: int, end: int) -> int:
    """Return the newest open event that does not end well before the new one; 0 for none."""
    newest = len(open_ends) - 1
    for at in range(newest, max(0, newest - MOST_OVERLAPPING), -1):
        if open_ends[at] >= end - ROUNDING_NS and open_ends[at] > begin:
            return at
    return 0


def _is_outermost(name: Ints, parent: Ints, levels: Sequence[Ints]) -> Bools:
    """Return which events are not within one of the same name. All within an event directly follow it."""
    last = np.arange(len(name))  # of the events within each, or itself
    for places in reversed(levels[1:]):
        np.maximum.at(last, parent[places], last[places])
    by_name = np.argsort(name, kind="stable")
    # Names are a range of numbers each, so the largest number so far is one of the same name.
    range_of = name[by_name] * len(name)
    reaches = np.maximum.accumulate(range_of + last[by_name])
    is_outermost = np.ones(len(name), np.bool_)
    is_outermost[by_name[1:]] = reaches[:-1] < (range_of + by_name)[1:]
    return is_outermost


def is_outermost_of_group(nesting: Nesting, rows: Ints, group: Ints) -> Bools:
    """Return which of ``rows`` are not within another of their group; a group has events of one name."""
    group_of = np.full(len(nesting.parent), NONE, np.int64)
    group_of[rows] = group
    inner = np.flatnonzero(~nesting.is_outermost[rows])
    is_within = np.zeros(len(inner), np.bool_)
    around = nesting.parent[rows[inner]]
    while (around != NONE).any():
        is_within |= (around != NONE) & (group_of[around] == group[inner])
        around = np.where(around == NONE, NONE, nesting.parent[around])
    is_outermost = np.ones(len(rows), np.bool_)
    is_outermost[inner] = ~is_within
    return is_outermost


def with_children(nesting: Nesting, own: Ints) -> Ints:
    """Return the sum of ``own`` over each event and all events within it."""
    total = own.copy()
    for rows in reversed(nesting.levels[1:]):
        np.add.at(total, nesting.parent[rows], total[rows])
    return total


def nearest(nesting: Nesting, which: Bools) -> Ints:
    """Return the innermost event of ``which`` around each event, or the event itself if it is one; -1 for none."""
    innermost = np.where(which, np.arange(len(which)), NONE)
    for rows in nesting.levels[1:]:
        inherits = rows.compress(innermost[rows] == NONE)
        innermost[inherits] = innermost[nesting.parent[inherits]]
    return innermost
