"""The nesting of host events: steps, sections, operators and runtime calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from training_profiler.trace_analysis.load.columns import CATEGORY_IDS, NONE, Bools, Columns, Ints

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
    rows = np.flatnonzero(which)
    inner = np.zeros(max(CATEGORY_IDS.values()) + 1, np.int64)
    inner[[CATEGORY_IDS[category] for category in _OUTER_FIRST]] = range(len(_OUTER_FIRST))
    # Of two events with the same begin, the longer one is the outer one.
    rows = rows[
        np.lexsort((inner[columns.category[rows]], -columns.end_ns[rows], columns.begin_ns[rows], columns.thread[rows]))
    ]
    inside, depth = _walked(columns, rows)
    has_parent = inside >= 0
    parent[rows[has_parent]] = rows[inside[has_parent]]
    lengths = np.minimum(columns.end_ns[rows], columns.end_ns[parent[rows]]) - columns.begin_ns[rows]
    np.subtract.at(self_ns, parent[rows[has_parent]], lengths[has_parent])
    places = np.argsort(depth, kind="stable")
    levels = np.split(places, np.cumsum(np.bincount(depth))[:-1]) if len(rows) else []
    outermost = np.ones(len(parent), np.bool_)
    # An annotation may have the name of an operator: the operator within it is still its outermost call.
    outermost[rows] = _is_outermost((2 * columns.name + columns.is_of("user_annotation"))[rows], inside, levels)
    return Nesting(parent, np.maximum(0, self_ns), outermost, tuple(rows[level] for level in levels))


def _walked(columns: Columns, rows: Ints) -> tuple[Ints, Ints]:
    """Return for each of ``rows``, in their order, the place of its parent among them, and its depth."""
    begins, ends, threads = (array[rows] for array in (columns.begin_ns, columns.end_ns, columns.thread))
    parents, depths = [NONE] * len(rows), [0] * len(rows)
    bounds = [0, *(np.flatnonzero(np.diff(threads)) + 1).tolist(), len(rows)]
    for first, after in pairwise(bounds):
        # The stack of open events begins with one without an end: events outside all others are in it.
        open_places, open_ends = [NONE], [_NO_END]
        times = zip(begins[first:after].tolist(), ends[first:after].tolist(), strict=True)
        for i, (begin, end) in enumerate(times, first):
            while open_ends[-1] <= begin:
                open_ends.pop()
                open_places.pop()
            if open_ends[-1] >= end:
                place = open_places[-1]
            else:
                around = _around(open_ends, begin, end)
                place = open_places[around]
                end = min(end, open_ends[around])
            if place >= 0:
                parents[i] = place
                depths[i] = depths[place] + 1
            open_places.append(i)
            open_ends.append(end)
    return np.array(parents, np.int64), np.array(depths, np.int64)


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
        inherits = rows[innermost[rows] == NONE]
        innermost[inherits] = innermost[nesting.parent[inherits]]
    return innermost
