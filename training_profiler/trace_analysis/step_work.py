"""The time per step of operators, input shapes, kernels and branches of the call tree, each with its noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.tables.sections import CLOCK_MARK
from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.events import TracedEvents
from training_profiler.trace_analysis.launches import Nesting, nesting_of
from training_profiler.trace_analysis.load.columns import (
    NONE,
    STEP_NAME,
    Bools,
    Columns,
    Ints,
    Numbers,
    numbered,
    ranked,
)
from training_profiler.trace_analysis.phases import launched_at
from training_profiler.trace_analysis.timeline import step_at

Key = tuple[str, str]  # a name, and the shapes of inputs or ""


@dataclass(frozen=True, slots=True)
class PerStep:
    """Means per step of one operator or kernel."""

    count: float  # runs of a kernel, pieces of work that an operator launched, or its calls on the host
    mean_ns: float
    squared_error: float | None  # of the mean, ns^2; None with fewer than two steps


PerStepOf = Mapping[Key, PerStep]


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a trace by several keys. Device work belongs to the step that launched it."""

    kinds: PerStepOf  # kernels by kind
    kernels: PerStepOf
    operators: PerStepOf  # device time of what they launched themselves
    shapes: PerStepOf  # the same by input shapes; empty without recorded shapes
    host_operators: PerStepOf  # self time on the host
    host_shapes: PerStepOf


def step_work(events: TracedEvents) -> StepWork:
    """Return the work per step; of the whole recording if no steps are marked."""
    columns, nesting, launches = events.columns, events.nesting, events.launches
    times = _Times(_step_of_each(events), len(events.scope.parts))
    kernels = np.flatnonzero(columns.is_of("kernel"))
    length_ns = columns.length_ns
    kinds, kind = numbered([kernel_names.kind_of(name) for name in columns.names])
    names = [(name, "") for name in columns.names]
    works = np.flatnonzero(launches.operator != NONE)
    operator = launches.operator[works]
    on_host = np.flatnonzero(columns.is_of("cpu_op"))
    pairs, pair = numbered((columns.name * (len(columns.shape_texts) + 1) + columns.shapes + 1).tolist())
    texts = ("", *columns.shape_texts)
    with_shapes = [(columns.names[key // len(texts)], texts[key % len(texts)]) for key in pairs]
    has_shapes = any(columns.shape_texts)
    return StepWork(
        kinds=times.by(kernels, kind[columns.name[kernels]], [(name, "") for name in kinds], length_ns),
        kernels=times.by(kernels, columns.name[kernels], names, length_ns),
        operators=times.by(works, columns.name[operator], names, length_ns),
        shapes=times.by(works, pair[operator], with_shapes, length_ns) if has_shapes else {},
        host_operators=times.by(on_host, columns.name[on_host], names, nesting.self_ns),
        host_shapes=times.by(on_host, pair[on_host], with_shapes, nesting.self_ns) if has_shapes else {},
    )


def _step_of_each(events: TracedEvents) -> Ints:
    """Return the step of each event, of device work that of its launch; -1 for none.

    Without marked steps all is one: the call that launched the first work precedes it.
    """
    if not events.steps:
        return np.zeros(len(events.columns.begin_ns), np.int64)
    return step_at(events.steps, launched_at(events, np.arange(len(events.columns.begin_ns))))


class _Times:
    """Adds up times by step and group."""

    def __init__(self, step: Ints, steps: int) -> None:
        self._step, self._steps = step, steps

    def by(self, rows: Ints, group: Ints, labels: Sequence[Key], values_ns: Ints) -> PerStepOf:
        """Return the means of each group that has ``rows``."""
        is_within = self._step[rows] != NONE
        rows, group = rows[is_within], group[is_within]
        if not len(rows):
            return {}
        keys, number = numbered(labels)  # names that were cut can be the same
        group = number[group]
        cells, cell = ranked(group * self._steps + self._step[rows])
        in_step_ns = np.bincount(cell, values_ns[rows])
        of, which = ranked(cells // self._steps)
        counts = np.bincount(which, np.bincount(cell)) / self._steps
        mean_ns = np.bincount(which, in_step_ns) / self._steps
        errors: list[float | None] = [None] * len(of)
        if self._steps > 1:
            # Steps without the group are zeros: each adds the square of the mean.
            missing = self._steps - np.bincount(which)
            squares = np.bincount(which, (in_step_ns - mean_ns[which]) ** 2) + missing * mean_ns**2
            errors = (squares / (self._steps - 1) / self._steps).tolist()
        return {
            keys[label]: PerStep(*numbers)
            for label, *numbers in zip(of.tolist(), counts.tolist(), mean_ns.tolist(), errors, strict=True)
        }


Path = tuple[str, ...]  # names, the outermost first
_TRANSPARENT: Final = (STEP_NAME, CLOCK_MARK)  # each has a number of its own in its name


@dataclass(frozen=True, slots=True)
class Branch:
    """All calls with one path; per step. A total is the self time with that of all paths that begin with this one."""

    host_self: PerStep  # with the calls of the runtime
    host_total: PerStep
    device_self: PerStep  # of the work that they launched themselves
    device_total: PerStep


def call_tree(events: TracedEvents) -> Mapping[Path, Branch]:
    """Return the branches of the tree, each after the one around it; device work belongs to the step that launched it.

    A step is not a part of a path. Operators of the backward pass run on a thread of their own and begin a path there.
    """
    columns, operator = events.columns, events.launches.operator
    nesting = nesting_of(columns, columns.is_of("cpu_op", "user_annotation"))
    paths, parent, branch = _paths(columns, nesting)
    step, steps = _step_of_each(events), len(events.scope.parts)
    calls = np.flatnonzero((branch != NONE) & (step != NONE))
    works = np.flatnonzero((operator != NONE) & (step != NONE))
    works = works[branch[operator[works]] != NONE]
    host, device = np.zeros((2, len(paths), steps), np.int64)
    np.add.at(host, (branch[calls], step[calls]), nesting.self_ns[calls])
    np.add.at(device, (branch[operator[works]], step[works]), columns.length_ns[works])
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
