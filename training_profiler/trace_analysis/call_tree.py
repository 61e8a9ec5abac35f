"""The time per step of each path of calls: an operator within the operators and annotations around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.tables.sections import CLOCK_MARK
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, STEP_NAME, Bools, Columns, Ints
from training_profiler.trace_analysis.load.numbers import Numbers, numbered
from training_profiler.trace_analysis.nesting import Nesting, nesting_of
from training_profiler.trace_analysis.step_work import EventSteps, PerStep

Path = tuple[str, ...]  # names, the outermost first
_TRANSPARENT: Final = (STEP_NAME, CLOCK_MARK)  # each has a number of its own in its name


@dataclass(frozen=True, slots=True)
class Branch:
    """All calls with one path; per step. A total is the self time with that of all paths that begin with this one."""

    host_self: PerStep  # with the calls of the runtime
    host_total: PerStep
    device_self: PerStep  # of the work that they launched themselves
    device_total: PerStep


def call_tree(columns: Columns, launches: Launches, event_steps: EventSteps) -> Mapping[Path, Branch]:
    """Return the branches of the tree, each after the one around it; device work belongs to the step that launched it.

    A step is not a part of a path. Operators of the backward pass run on a thread of their own and begin a path there.
    """
    nesting = nesting_of(columns, columns.is_of("cpu_op", "user_annotation"))
    paths, parent, branch = _paths(columns, nesting)
    step, steps = event_steps
    calls = np.flatnonzero((branch != NONE) & (step != NONE))
    operator = launches.operator
    works = np.flatnonzero((operator != NONE) & (step != NONE))
    works = works[branch[operator[works]] != NONE]
    host, device = np.zeros((2, len(paths), steps), np.int64)
    np.add.at(host, (branch[calls], step[calls]), nesting.self_ns[calls])
    np.add.at(device, (branch[operator[works]], step[works]), (columns.end_ns - columns.begin_ns)[works])
    named = calls[~_is_transparent(columns)[calls]]
    count = np.bincount(branch[named], minlength=len(paths)) / steps
    columns_of = [_means(count, own) for own in (host, _total(host, parent), device, _total(device, parent))]
    return {path: Branch(*parts) for path, *parts in zip(paths, *columns_of, strict=True)}


def _is_transparent(columns: Columns) -> Bools:
    """Return which events belong to the path around them."""
    return columns.named(lambda name: name.startswith(_TRANSPARENT))


def _paths(columns: Columns, nesting: Nesting) -> tuple[list[Path], list[int], Ints]:
    """Return the paths, the index of the path around each, and the index of that of each event; -1 for none."""
    names, name = numbered(columns.names)  # names that were cut can be the same
    is_transparent = _is_transparent(columns)
    found = Numbers()  # (path around, name)
    branch = np.full(len(columns.begin_ns), NONE, np.int64)
    for depth, rows in enumerate(nesting.levels):
        around = branch[nesting.parent[rows]] if depth else np.full(len(rows), NONE, np.int64)
        keys = list(zip(around.tolist(), name[columns.name[rows]].tolist(), strict=True))
        is_skipped = is_transparent[rows]
        branch[rows] = around
        branch[rows[~is_skipped]] = found.of([key for key, skip in zip(keys, is_skipped, strict=True) if not skip])
    paths: list[Path] = []
    for above, own in found:
        paths.append((*(paths[above] if above != NONE else ()), names[own]))
    return paths, [above for above, _ in found], branch


def _total(own: Ints, parent: list[int]) -> Ints:
    """Return the sum over each branch and all within it; a branch comes after the one around it."""
    total = own.copy()
    for branch in reversed(range(len(parent))):
        if parent[branch] != NONE:
            total[parent[branch]] += total[branch]
    return total


def _means(count: "np.ndarray", ns: Ints) -> list[PerStep]:
    steps = ns.shape[1]
    errors: list[float | None] = [None] * len(ns)
    if steps > 1:
        errors = (ns.var(axis=1, ddof=1) / steps).tolist()
    return [PerStep(*row) for row in zip(count.tolist(), ns.mean(axis=1).tolist(), errors, strict=True)]
