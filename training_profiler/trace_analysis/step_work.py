"""The time per step of each operator, input shape and kernel, and how exactly its mean is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Columns, Ints, ranked
from training_profiler.trace_analysis.load.numbers import numbered
from training_profiler.trace_analysis.nesting import Nesting
from training_profiler.trace_analysis.scope import Scope
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


class EventSteps(NamedTuple):
    """The steps that events belong to."""

    step: Ints  # of each event, its index; -1 for none
    steps: int  # how many there are


def step_work(columns: Columns, nesting: Nesting, launches: Launches, event_steps: EventSteps) -> StepWork:
    """Return the work per step; of the whole recording if no steps are marked."""
    times = _Times(event_steps)
    kernels = np.flatnonzero(columns.is_of("kernel"))
    length_ns = columns.end_ns - columns.begin_ns
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


def steps_of(columns: Columns, launches: Launches, scope: Scope) -> EventSteps:
    """Return the step of each event, of device work that of its launch.

    Without marked steps all is one: the call that launched the first work precedes it.
    """
    if not scope.is_steps:
        return EventSteps(np.zeros(len(columns.begin_ns), np.int64), len(scope.parts))
    by = np.where(launches.call != NONE, launches.call, launches.operator)
    at_ns = np.where(by != NONE, columns.begin_ns[by], columns.begin_ns)
    begins, ends = ([getattr(part, key) for part in scope.parts] for key in ("begin_ns", "end_ns"))
    return EventSteps(step_at(begins, ends, at_ns), len(scope.parts))


class _Times:
    """Adds up times by step and group."""

    def __init__(self, event_steps: EventSteps) -> None:
        self._step, self._steps = event_steps

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
