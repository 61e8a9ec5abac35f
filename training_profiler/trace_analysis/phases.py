"""Assigns device work to the parts of a training step, and finds how evenly the device makes its steps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.events import TracedEvents
from training_profiler.trace_analysis.launches import nearest
from training_profiler.trace_analysis.load.columns import NONE, Ints, distinct
from training_profiler.trace_analysis.timeline import covered, span_of, step_at, together

LEAST_STEPS: Final = 3


def launched_at(events: TracedEvents, rows: Ints) -> Ints:
    """Return when each of these works was launched; for an unknown launch when it began."""
    begin_ns, by = events.columns.begin_ns, events.launches.by[rows]
    return np.where(by != NONE, begin_ns[by], begin_ns[rows])


def free_since(events: TracedEvents) -> int:
    """Return when the device had done what was launched before the scope; at the latest the begin of its first work."""
    columns, begin_ns = events.columns, events.scope.parts[0].begin_ns
    works = np.flatnonzero(columns.is_gpu())
    is_earlier = launched_at(events, works) < begin_ns
    first_ns = int(columns.begin_ns[works[~is_earlier]].min(initial=np.iinfo(np.int64).max))
    return max(begin_ns, min(first_ns, int(columns.end_ns[works[is_earlier]].max(initial=begin_ns))))


def pace_variation(events: TracedEvents) -> float | None:
    """Return the coefficient of variation of the times that the device needs for the steps, one after another.

    None if the host was not ahead of the device at the end of each step that is shorter than the mean, and below three
    steps. The first steps of a window are short because they only fill the queue of launches; later ones wait for room.
    """
    steps = events.steps
    if len(steps) < LEAST_STEPS:
        return None
    begins, ends = events.scope.bounds
    works = np.flatnonzero(events.columns.is_gpu())
    step = step_at(steps, launched_at(events, works))
    done_ns = np.full(len(steps), NONE, np.int64)
    np.maximum.at(done_ns, step[step != NONE], events.columns.end_ns[works[step != NONE]])
    is_short = ends - begins < (ends - begins).mean()
    if (done_ns == NONE).any() or (done_ns[is_short] <= ends[is_short]).any():
        return None
    needed_ns = np.diff(np.maximum.accumulate(done_ns), prepend=free_since(events)).astype(np.float64)
    return float(needed_ns.std(ddof=1) / needed_ns.mean()) if needed_ns.mean() else None


FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
PHASES: Final = (FORWARD, BACKWARD, OPTIMIZER)
# Times the forward pass: each product of it has two gradients, for its input and for its weight.
USUAL_BACKWARD: Final = 2
# The marks of torch (older versions use the name of the autograd function), the names of our sections and common names
# of annotations.
MARKS: Final[Mapping[str, re.Pattern[str]]] = {
    BACKWARD: re.compile(
        r"^autograd::engine::evaluate_function|^(torch::autograd::)?\w*Backward\d*$|^torch::autograd::AccumulateGrad"
        r"|^backward_pass$|^(##\s*)?backward\b|\([BW]\)$"
    ),
    OPTIMIZER: re.compile(r"^Optimizer\.(step|zero_grad)#|^optimizer_step$|^(##\s*)?optimizer\b"),
    FORWARD: re.compile(r"^forward_pass$|^(##\s*)?forward\b|\(F\)$"),
}


@dataclass(frozen=True, slots=True)
class TracedPhases:
    """Device time and kernels of the parts of a step."""

    times_ns: Mapping[str, int] | None  # by phase, of what the scope launched, of devices the sum; None if unknown
    passes_ns: int  # forward and backward together; what runs at the same time counts once
    wall_ns: int  # that one device had for what the scope launched
    optimizer_kernels: int  # launched by optimizers, within the scope
    multi_tensor_kernels: int  # of these, those that update many tensors at once


def phases_of(events: TracedEvents) -> TracedPhases:
    """Return the device time of each phase of what the scope launched.

    The device may do part of that after the scope, and at its begin what was launched before.

    If the trace marks the forward pass, the mark counts. Otherwise forward is all work that was launched in the scope
    and belongs to neither of the other phases. Without a backward pass there are no phases. Kernels that run at the
    same time on a device count once.
    """
    columns = events.columns
    rows = np.flatnonzero(columns.is_of("kernel") & ~events.communicates)
    by = events.launches.by[rows]
    is_launched = (by != NONE) & events.in_scope[by]
    rows = rows[is_launched]
    phase = phase_of(events, by[is_launched])
    of = {name: rows[phase == i] for i, name in enumerate(PHASES)}
    passes = rows[np.isin(phase, [PHASES.index(FORWARD), PHASES.index(BACKWARD)])]
    multi_tensor = columns.named(kernel_names.MULTI_TENSOR.search, columns.is_of("kernel"))
    return TracedPhases(
        {name: _device_ns(events, works) for name, works in of.items()} if len(of[BACKWARD]) else None,
        _device_ns(events, passes),
        _wall_ns(events),
        len(of[OPTIMIZER]),
        int(multi_tensor[of[OPTIMIZER]].sum()),
    )


def phase_of(events: TracedEvents, rows: Ints) -> Ints:
    """Return the phase of host events as an index into ``PHASES``; -1 for none.

    If one of them is within a marked forward pass, only those are. Otherwise forward is the rest.
    """
    columns, section = events.columns, events.launches.section[rows]
    within = {}
    for phase, marks in MARKS.items():
        around = nearest(events.nesting, columns.named(marks.search, columns.is_of("cpu_op", "user_annotation")))
        within[phase] = (around[rows] != NONE) | ((section != NONE) & (around[section] != NONE))
    rest = ~within[BACKWARD] & ~within[OPTIMIZER]
    is_forward = within[FORWARD] & rest if (within[FORWARD] & rest).any() else rest
    phases = [PHASES.index(name) for name in (BACKWARD, OPTIMIZER, FORWARD)]
    found: Ints = np.select([within[BACKWARD], within[OPTIMIZER], is_forward], phases, NONE)
    return found


def _wall_ns(events: TracedEvents) -> int:
    """Return the length of the scope, without the time for earlier work and with that for its own after its end."""
    call, scope = events.launches.call, events.scope
    works = np.flatnonzero(events.columns.is_gpu() & (call != NONE))
    works = works[events.in_scope[call[works]]]
    if not scope.is_steps or not len(works):
        return scope.wall_ns
    extent = together(scope.windows, span_of(events.columns, works))
    return int(covered(extent, np.array([free_since(events)], np.int64), extent.end_ns[-1:]).sum())


def _device_ns(events: TracedEvents, rows: Ints) -> int:
    devices = events.columns.device[rows]
    return sum(span_of(events.columns, rows[devices == device]).total_ns for device in distinct(devices))
