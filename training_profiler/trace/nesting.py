"""Which host event lies within which: operators, the calls of the runtime they make, sections, steps."""

from dataclasses import dataclass

import numpy as np

from training_profiler.trace.columns import NONE, Bools, Columns, Ints


@dataclass(frozen=True, slots=True)
class Nesting:
    """For each event of the trace: the host event it lies directly within, -1 for none, and its own time."""

    parent: Ints
    self_ns: Ints
    depth: Ints  # how many it lies within


def nesting_of(columns: Columns, which: Bools) -> Nesting:
    """Return how the events of ``which`` nest, thread by thread.

    Traces with whole microseconds have children that end one after their parent: what counts is where they begin.
    """
    parent = np.full(len(columns.begin_ns), NONE, np.int64)
    self_ns = np.where(which, columns.end_ns - columns.begin_ns, 0)
    rows = np.flatnonzero(which)
    # An event that begins with another lies within the longer one.
    order = np.lexsort((-columns.end_ns[rows], columns.begin_ns[rows], columns.thread[rows]))
    rows = rows[order]
    begins, ends, threads = (array[rows].tolist() for array in (columns.begin_ns, columns.end_ns, columns.thread))
    parents = [NONE] * len(rows)
    covered = [0] * len(rows)  # by children
    depths = [0] * len(rows)
    stack: list[int] = []
    thread = None
    for i, begin in enumerate(begins):
        if threads[i] != thread:
            thread = threads[i]
            stack.clear()
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            above = stack[-1]
            parents[i] = above
            covered[above] += min(ends[i], ends[above]) - begin
        depths[i] = len(stack)
        stack.append(i)
    inside = np.array(parents, np.int64)
    has_parent = inside >= 0
    parent[rows[has_parent]] = rows[inside[has_parent]]
    self_ns[rows] = np.maximum(0, self_ns[rows] - np.array(covered, np.int64))
    depth = np.zeros(len(parent), np.int64)
    depth[rows] = depths
    return Nesting(parent, self_ns, depth)


def with_children(nesting: Nesting, own: Ints) -> Ints:
    """Return ``own`` of each event together with that of all events within it."""
    total = own.copy()
    for depth in range(int(nesting.depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((nesting.depth == depth) & (nesting.parent >= 0))
        np.add.at(total, nesting.parent[rows], total[rows])
    return total


def outermost(columns: Columns, nesting: Nesting) -> Bools:
    """Return which events lie in none of the same name: only these count for the total of a name."""
    names, parents = columns.name.tolist(), nesting.parent.tolist()
    is_outermost = np.ones(len(names), np.bool_)
    for i, parent in enumerate(parents):
        while parent >= 0:
            if names[parent] == names[i]:
                is_outermost[i] = False
                break
            parent = parents[parent]
    return is_outermost


def nearest(nesting: Nesting, which: Bools) -> Ints:
    """Return for each event the innermost of ``which`` that it is or lies within; -1 for none."""
    found = np.full(len(nesting.parent), NONE, np.int64)
    parents, wanted = nesting.parent.tolist(), which.tolist()
    known: list[int | None] = [None] * len(parents)
    for i in range(len(parents)):
        path = []
        at = i
        while at >= 0 and known[at] is None and not wanted[at]:
            path.append(at)
            at = parents[at]
        answer = NONE if at < 0 else at if wanted[at] else known[at]
        for one in path:
            known[one] = answer
        known[i] = answer
        found[i] = answer if answer is not None else NONE
    return found
