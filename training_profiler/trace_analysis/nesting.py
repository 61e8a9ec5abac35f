"""Which host event lies within which: operators, the calls of the runtime they make, sections, steps."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.load.columns import CATEGORY_IDS, NONE, Bools, Columns, Ints

# Where a trace rounds begin and duration to whole us, what lies within may end up to two later.
ROUNDING_NS: Final = 2000
# Which of two events of the same begin and end lies within the other.
_OUTER_FIRST: Final = ("user_annotation", "python_function", "cpu_op", "cuda_runtime")


@dataclass(frozen=True, slots=True)
class Nesting:
    """For each event of the trace: the host event it lies directly within, -1 for none, and its own time."""

    parent: Ints
    self_ns: Ints
    is_outermost: Bools  # lies in none of the same name: only these count for the total of a name
    levels: tuple[Ints, ...]  # rows that lie within none, then those within one, ...


def nesting_of(columns: Columns, which: Bools) -> Nesting:
    """Return how the events of ``which`` nest, thread by thread.

    What begins within another and ends later (by more than rounding) lies beside it: two annotations can overlap.
    """
    parent = np.full(len(columns.begin_ns), NONE, np.int64)
    self_ns = np.where(which, columns.end_ns - columns.begin_ns, 0)
    rows = np.flatnonzero(which)
    inner = np.zeros(max(CATEGORY_IDS.values()) + 1, np.int64)
    inner[[CATEGORY_IDS[category] for category in _OUTER_FIRST]] = range(len(_OUTER_FIRST))
    # An event that begins with another lies within the longer one.
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
    """Return for each of ``rows``, in their order: the place of its parent, its depth, is it outermost."""
    begins, ends, threads, names = (
        array[rows].tolist() for array in (columns.begin_ns, columns.end_ns, columns.thread, columns.name)
    )
    parents, depths, is_outermost = [NONE] * len(rows), [0] * len(rows), [True] * len(rows)
    under_way: list[tuple[int, int, int]] = []  # place, end, name
    counts = [0] * len(columns.names)  # how many of each name are under way
    thread, overlaps = None, False  # whether something under way lies beside another
    for i, begin in enumerate(begins):
        if threads[i] != thread:
            thread = threads[i]
            for _, _, open_name in under_way:
                counts[open_name] -= 1
            under_way.clear()
        while under_way and under_way[-1][1] <= begin:
            counts[under_way.pop()[2]] -= 1
        end, name = ends[i], names[i]
        place = len(under_way) - 1
        while place >= 0 and (under_way[place][1] < end - ROUNDING_NS or under_way[place][1] <= begin):
            place -= 1  # it ends well before this one
        if place >= 0:
            parents[i], above_ns, _ = under_way[place]
            if above_ns < end:
                end = above_ns
            depths[i] = depths[parents[i]] + 1
        overlaps = (overlaps and bool(under_way)) or place < len(under_way) - 1
        if counts[name]:
            is_outermost[i] = overlaps and name not in _above(under_way, parents, place)
        counts[name] += 1
        under_way.append((i, end, name))
    return parents, depths, is_outermost


def _above(under_way: list[tuple[int, int, int]], parents: list[int], place: int) -> set[int]:
    """Return the names of what is under way at ``place`` and of all that it lies within; not of what it overlaps."""
    found = set()
    wanted = under_way[place][0] if place >= 0 else NONE
    for i, _, name in reversed(under_way[: place + 1]):
        if i == wanted:
            found.add(name)
            wanted = parents[i]
    return found


def with_children(nesting: Nesting, own: Ints) -> Ints:
    """Return ``own`` of each event together with that of all events within it."""
    total = own.copy()
    for rows in reversed(nesting.levels[1:]):
        np.add.at(total, nesting.parent[rows], total[rows])
    return total


def nearest(nesting: Nesting, which: Bools) -> Ints:
    """Return for each event the innermost of ``which`` that it is or lies within; -1 for none."""
    found = np.where(which, np.arange(len(which)), NONE)
    for rows in nesting.levels[1:]:
        inherits = rows[found[rows] == NONE]
        found[inherits] = found[nesting.parent[inherits]]
    return found
