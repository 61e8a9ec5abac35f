"""Two traces of the same training side by side: time per step before and after, and the noise band."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.base.errors import TraceError
from training_profiler.base.sections import CLOCK_MARK
from training_profiler.base.units import counted
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, STEP_NAME, Bools, Columns, Ints, Numbers, numbered
from training_profiler.trace_analysis.events import PARTS, TracedEvents
from training_profiler.trace_analysis.host_activity import step_of_each
from training_profiler.trace_analysis.launches import Nesting, nesting_of
from training_profiler.trace_analysis.trace import Trace

Key = tuple[str, str]  # a name, and the shapes of inputs or ""


@dataclass(frozen=True, slots=True)
class PerStep:
    """Means per step of one operator or kernel."""

    count: float  # runs of a kernel, pieces of work that an operator launched, or its calls on the host
    mean_ns: float
    squared_error: float | None  # of the mean, ns^2; None with fewer than two steps


PerStepOf = Mapping[Key, PerStep]


def step_work(events: TracedEvents) -> dict[str, PerStepOf]:
    """Return the work per step by table; of the whole recording if no steps are marked.

    Device work belongs to the step that launched it. Tables by shape are empty without recorded shapes.
    """
    columns, nesting, launches = events.columns, events.nesting, events.launches
    step, steps = step_of_each(events), len(events.scope.parts)
    kernels = np.flatnonzero(columns.is_of("kernel"))
    kinds, kind = numbered([known_names.kind_of(name) for name in columns.names])
    names = [(name, "") for name in columns.names]
    works = np.flatnonzero(launches.operator != NONE)
    operator = launches.operator[works]
    on_host = np.flatnonzero(columns.is_of("cpu_op"))
    shapes, pair = columns.named_and_shaped
    has_shapes = any(columns.shapes.texts)

    def by(rows: Ints, group: Ints, labels: Sequence[Key], values_ns: Ints) -> PerStepOf:
        is_within = step[rows] != NONE
        return _means_by_group(step[rows[is_within]], steps, group[is_within], labels, values_ns[rows[is_within]])

    return {
        "kernel_kinds": by(kernels, kind[columns.name[kernels]], [(name, "") for name in kinds], columns.length_ns),
        "kernels": by(kernels, columns.name[kernels], names, columns.length_ns),
        "operators": by(works, columns.name[operator], names, columns.length_ns),
        "operators_by_shape": by(works, pair[operator], shapes, columns.length_ns) if has_shapes else {},
        "host_operators": by(on_host, columns.name[on_host], names, nesting.self_ns),
        "host_operators_by_shape": by(on_host, pair[on_host], shapes, nesting.self_ns) if has_shapes else {},
    }


def _means_by_group(step: Ints, steps: int, group: Ints, labels: Sequence[Key], values_ns: Ints) -> PerStepOf:
    """Return the means of each group that has rows; ``step`` and ``group`` are those of each row."""
    keys, group = numbered([labels[of] for of in group.tolist()])  # names that were cut can be the same
    ns, runs = np.zeros((2, len(keys), steps), np.int64)
    np.add.at(ns, (group, step), values_ns)
    np.add.at(runs, (group, step), 1)
    mean_ns, has_runs = ns.sum(axis=1) / steps, runs > 0
    errors: list[float | None] = [None] * len(keys)
    if steps > 1:
        # Steps without the group are zeros: each adds the square of the mean.
        squares = np.cumsum(np.where(has_runs, np.square(ns - mean_ns[:, None]), 0), axis=1)[:, -1]
        errors = ((squares + (~has_runs).sum(axis=1) * (mean_ns * mean_ns)) / (steps - 1) / steps).tolist()
    return dict(zip(keys, map(PerStep, (runs.sum(axis=1) / steps).tolist(), mean_ns.tolist(), errors), strict=True))


CallPath = tuple[str, ...]  # names, the outermost first
_TRANSPARENT: Final = (STEP_NAME, CLOCK_MARK)  # each has a number of its own in its name


def call_tree(events: TracedEvents) -> Mapping[CallPath, Sequence[PerStep]]:
    """Return the branches of the tree, each after the one around it: the calls with one path, per step.

    Of each, that is the self time on the host (with the calls of the runtime), that with all paths that begin with it,
    and both on the device, for the work that they launched. That belongs to the step that launched it.
    A step is not a part of a path. Operators of the backward pass run on a thread of their own and begin a path there.
    """
    columns, operator = events.columns, events.launches.operator
    nesting = nesting_of(columns, columns.is_of("cpu_op", "user_annotation"))
    paths, parent, branch = _paths(columns, nesting)
    step, steps = step_of_each(events), len(events.scope.parts)
    calls = np.flatnonzero((branch != NONE) & (step != NONE))
    works = np.flatnonzero((operator != NONE) & (step != NONE))
    works = works[branch[operator[works]] != NONE]
    host, device = np.zeros((2, len(paths), steps), np.int64)
    np.add.at(host, (branch[calls], step[calls]), nesting.self_ns[calls])
    np.add.at(device, (branch[operator[works]], step[works]), columns.length_ns[works])
    named = calls[~_is_transparent(columns)[calls]]
    count = np.bincount(branch[named], minlength=len(paths)) / steps
    columns_of = [_means(count, own) for own in (host, _total(host, parent), device, _total(device, parent))]
    return {path: parts for path, *parts in zip(paths, *columns_of, strict=True)}


def _is_transparent(columns: Columns) -> Bools:
    return columns.named(lambda name: name.startswith(_TRANSPARENT))


def _paths(columns: Columns, nesting: Nesting) -> tuple[list[CallPath], list[int], Ints]:
    """Return the paths, the index of the path around each, and the index of that of each event; -1 for none."""
    names, name = numbered(columns.names)  # names that were cut can be the same
    is_transparent = _is_transparent(columns)
    found = Numbers()  # (path around, name)
    branch = np.full(len(columns.begin_ns), NONE, np.int64)
    for row, around in zip(nesting.order.tolist(), nesting.parent[nesting.order].tolist(), strict=True):
        above = NONE if around == NONE else int(branch[around])
        branch[row] = above if is_transparent[row] else found[above, int(name[columns.name[row]])]
    paths: list[CallPath] = []
    for above, own in found:
        paths.append((*(paths[above] if above != NONE else ()), names[own]))
    return paths, [above for above, _ in found], branch


def _total(own: Ints, parent: list[int]) -> Ints:
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


SAME_AT_LEAST: Final = 0.5  # of the operators' calls per step; below it, these are two different programs
BAND: Final = 2.0  # standard errors of the difference of means; exceeded by chance in under 5 % of cases
BAND_OF_MANY: Final = 3.0  # in tables of many rows; exceeded by chance by fewer than one row in 300
STEP: Final = "step"
RECORDING: Final = "recording"
_ABSENT: Final = PerStep(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class TraceDifference:
    """A category, an operator, its calls with the same input shapes, a kernel, or a kind of kernels; ns per step."""

    name: str
    before_ns: float
    after_ns: float
    band_ns: float | None  # a difference within it may be chance; None if a side has one step
    shapes: str = ""  # unless the row is of one input shape
    counts: tuple[float, float] = (1, 1)  # per step, before and after; 0 on the side without it

    @property
    def change_ns(self) -> float:
        """After minus before."""
        return self.after_ns - self.before_ns

    @property
    def is_noise(self) -> bool | None:
        """Whether the difference may be chance; None if that is unknown."""
        return None if self.band_ns is None else abs(self.change_ns) <= self.band_ns


# The times of a branch: its own, and with all branches within it.
TIMES: Final = ("host_self", "host_total", "device_self", "device_total")


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """All categories and all work, and utilization of the device in steps before and after, 0 to 1."""

    before: Trace
    after: Trace
    unit: str  # what times are of: a step, one run of an annotation, or the recording
    differences: tuple[TraceDifference, ...]
    work: Mapping[str, tuple[TraceDifference, ...]]  # by table; the largest beyond the noise first
    call_tree: Mapping[CallPath, Mapping[str, TraceDifference]]  # by ``TIMES``; each branch after the one around it
    alike: float  # the share of the operators' calls per step that both have, 0 to 1

    @property
    def has_gpu(self) -> bool:
        """Whether both traces have device work, so that times of devices are compared."""
        return self.before.has_gpu and self.after.has_gpu

    @property
    def utilization(self) -> tuple[float | None, float | None]:
        """Of the device within steps."""
        return self.before.utilization_in_steps, self.after.utilization_in_steps


def compare(before: Trace, after: Trace) -> TraceComparison:
    """Return the differences per step.

    Raises:
        TraceError: the two cannot be compared; the message says why.
    """
    unit = _unit(before, after)
    each = _Each(before, after, unit)
    sides = list(zip((before, after), each.times, strict=True))
    alike = _alike(*(_calls(trace, times) for trace, times in sides))
    if alike < SAME_AT_LEAST:
        what = "recordings are not of the same work" if unit == RECORDING else "steps are not of the same program"
        names = f"{before.path.name}, {after.path.name}"
        raise TraceError(f"the {what}: only {alike:.0%} of the calls of operators are in both ({names})")
    parts = {unit: "wall_ns"}
    if before.has_gpu and after.has_gpu:
        parts |= {part.removesuffix("_ns").replace("_", " "): part for part in PARTS}
    rows = [
        _difference(name, *([getattr(step, part) / times for step in trace.scope.parts] for trace, times in sides))
        for name, part in parts.items()
    ]
    if before.waiting.data_names or after.waiting.data_names:
        waits = ([ns / times for ns in trace.waiting.data_ns] for trace, times in sides)
        rows.append(_difference("DataLoader (host)", *waits))
    return TraceComparison(
        before, after, unit, tuple(rows), _work(before, after, each), _tree(before, after, each), alike
    )


def _unit(before: Trace, after: Trace) -> str:
    """Return what both traces can be divided into; they cannot be compared if only one has marked steps."""
    if before.steps and after.steps:
        return STEP
    if before.steps or after.steps:
        marked, without = (before, after) if before.steps else (after, before)
        raise TraceError(
            f"{without.path} has no marked step, and {marked.path} has {counted(len(marked.steps), 'step')}: "
            "call profiler.step() after each in both"
        )
    return before.scope.recurs if before.scope.recurs and before.scope.recurs == after.scope.recurs else RECORDING


def _difference(name: str, before: Sequence[float], after: Sequence[float]) -> TraceDifference:
    old, new = np.array(before, np.float64), np.array(after, np.float64)
    band = None
    if len(old) > 1 and len(new) > 1:
        band = _band(BAND, old.var(ddof=1) / len(old), new.var(ddof=1) / len(new))
    return TraceDifference(name, float(old.mean()), float(new.mean()), band)


def _band(errors: float, before: float, after: float) -> float:
    """Return so many standard errors of a difference of means (Welch 1947), from the squared errors of both."""
    return errors * float(np.sqrt(before + after))


def _work(before: Trace, after: Trace, each: "_Each") -> dict[str, tuple[TraceDifference, ...]]:
    old, new = step_work(before), step_work(after)
    has_gpu = before.has_gpu and after.has_gpu
    shown = [name for name in old if (name != "host_operators_by_shape" if has_gpu else name.startswith("host"))]
    return {
        name: _differences(old[name], new[name], each)
        for name in shown
        if not name.endswith("by_shape") or (old[name] and new[name])
    }


class _Each:
    """By what times of a window are divided on either side, and whether they have a noise band."""

    def __init__(self, before: Trace, after: Trace, unit: str) -> None:
        self.times = [1 if unit in (STEP, RECORDING) else trace.scope.repetitions for trace in (before, after)]
        self._has_band = min(len(before.steps), len(after.steps)) > 1

    def difference(self, name: str, old: PerStep, new: PerStep, shapes: str = "") -> TraceDifference:
        band = _band(BAND_OF_MANY, old.squared_error or 0.0, new.squared_error or 0.0) if self._has_band else None
        before, after = self.times
        counts = old.count / before, new.count / after
        return TraceDifference(name, old.mean_ns / before, new.mean_ns / after, band, shapes, counts)


def _differences(before: PerStepOf, after: PerStepOf, each: _Each) -> tuple[TraceDifference, ...]:
    keys = dict.fromkeys((*before, *after))
    rows = [each.difference(key[0], before.get(key, _ABSENT), after.get(key, _ABSENT), key[1]) for key in keys]
    return tuple(sorted(rows, key=lambda row: (row.is_noise is True, -abs(row.change_ns), row.name, row.shapes)))


def _tree(before: Trace, after: Trace, each: _Each) -> dict[CallPath, dict[str, TraceDifference]]:
    trees = call_tree(before), call_tree(after)
    found = {}
    for path in sorted(trees[0].keys() | trees[1].keys()):
        parts = zip(TIMES, *(tree.get(path, (_ABSENT,) * len(TIMES)) for tree in trees), strict=True)
        found[path] = {part: each.difference(path[-1], old, new) for part, old, new in parts}
    return found


def _calls(trace: Trace, times: int) -> Counter[str]:
    parts = len(trace.scope.parts) * times
    return Counter({row.name: row.calls / parts for row in trace.operators if row.name.startswith("aten::")})


def _alike(before: Counter[str], after: Counter[str]) -> float:
    either = (before | after).total()
    return (before & after).total() / either if either else 1.0
