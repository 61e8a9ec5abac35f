"""The nesting of host events: steps, sections, operators and runtime calls."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.load.columns import CATEGORY_IDS, NONE, Bools, Columns, Ints

# If a trace rounds begin and duration to whole us, an inner event may end up to 2 us after the outer one.
ROUNDING_NS: Final = 2000
# Open events that are looked through for the one around a new event; profilers write two or three that overlap.
MOST_OVERLAPPING: Final = 500
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
    parents, depths, is_outermost = _walked(columns, rows)
    inside = np.array(parents, np.int64)
    has_parent = inside >= 0
    parent[rows[has_parent]] = rows[inside[has_parent]]
    lengths = np.minimum(columns.end_ns[rows], columns.end_ns[parent[rows]]) - columns.begin_ns[rows]
    np.subtract.at(self_ns, parent[rows[has_parent]], lengths[has_parent])
    outermost = np.ones(len(parent), np.bool_)
    outermost[rows] = is_outermost
    depth = np.array(depths, np.int64)
    levels = np.split(rows[np.argsort(depth, kind="stable")], np.cumsum(np.bincount(depth))[:-1]) if len(rows) else []
    return Nesting(parent, np.maximum(0, self_ns), outermost, tuple(levels))


def _walked(columns: Columns, rows: Ints) -> tuple[list[int], list[int], list[bool]]:
    """Return for each of ``rows``, in their order, the place of its parent, its depth and whether it is outermost."""
    # An annotation may have the name of an operator: the operator within it is still its outermost call.
    kinds = 2 * columns.name + columns.is_of("user_annotation")
    begins, ends, threads, names = (
        array[rows].tolist() for array in (columns.begin_ns, columns.end_ns, columns.thread, kinds)
    )
    parents, depths, is_outermost = [NONE] * len(rows), [0] * len(rows), [True] * len(rows)
    open_events: list[tuple[int, int, int]] = []  # place, end, name
    counts = [0] * (2 * len(columns.names))  # number of open events by name
    thread, overlaps = None, False  # whether open events overlap without nesting
    for i, begin in enumerate(begins):
        if threads[i] != thread:
            thread = threads[i]
            for _, _, open_name in open_events:
                counts[open_name] -= 1
            open_events.clear()
        while open_events and open_events[-1][1] <= begin:
            counts[open_events.pop()[2]] -= 1
        end, name = ends[i], names[i]
        place = len(open_events) - 1
        least = max(-1, place - MOST_OVERLAPPING)
        while place > least and (open_events[place][1] < end - ROUNDING_NS or open_events[place][1] <= begin):
            place -= 1  # it ends well before the new event
        if place == least:
            place = NONE
        if place >= 0:
            parents[i], above_ns, _ = open_events[place]
            if above_ns < end:
                end = above_ns
            depths[i] = depths[parents[i]] + 1
        overlaps = (overlaps and bool(open_events)) or place < len(open_events) - 1
        if counts[name]:
            is_outermost[i] = overlaps and name not in _above(open_events, parents, place)
        counts[name] += 1
        open_events.append((i, end, name))
    return parents, depths, is_outermost


def _above(open_events: list[tuple[int, int, int]], parents: list[int], place: int) -> set[int]:
    """Return the names of the open event at ``place`` and of its ancestors, without overlapping siblings."""
    names = set()
    wanted = open_events[place][0] if place >= 0 else NONE
    for at in range(place, max(-1, place - MOST_OVERLAPPING), -1):
        i, _, name = open_events[at]
        if i == wanted:
            names.add(name)
            wanted = parents[i]
    return names


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
