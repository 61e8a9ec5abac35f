"""Assigns device work to the parts of a training step, by the operator or annotation that launched it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.intervals import covered, together, union
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.nesting import Nesting, nearest
from training_profiler.trace_analysis.pace import free_since
from training_profiler.trace_analysis.scope import Scope

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
class Phases:
    """Device time and kernels of the parts of a step."""

    times_ns: Mapping[str, int] | None  # by phase, of what the scope launched, of devices the sum; None if unknown
    passes_ns: int  # forward and backward together; what runs at the same time counts once
    wall_ns: int  # that one device had for what the scope launched
    optimizer_kernels: int  # launched by optimizers, within the scope
    multi_tensor_kernels: int  # of these, those that update many tensors at once


def phases_of(
    columns: Columns, nesting: Nesting, launches: Launches, communicates: Bools, in_scope: Bools, scope: Scope
) -> Phases:
    """Return the device time of each phase of what the scope launched; ``in_scope`` says which events begin in it.

    The device may do part of that after the scope, and at its begin what was launched before.

    If the trace marks the forward pass, the mark counts. Otherwise forward is all work that was launched in the scope
    and belongs to neither of the other phases. Without a backward pass there are no phases. Kernels that run at the
    same time on a device count once.
    """
    rows = np.flatnonzero(columns.is_of("kernel") & ~communicates)
    by = np.where(launches.call != NONE, launches.call, launches.operator)[rows]
    is_launched = (by != NONE) & in_scope[by]
    rows, by = rows[is_launched], by[is_launched]
    phase = phase_of(columns, nesting, launches, by)
    is_optimizer = phase == PHASES.index(OPTIMIZER)
    return Phases(
        {name: _device_ns(columns, rows[phase == i]) for i, name in enumerate(PHASES)}
        if (phase == PHASES.index(BACKWARD)).any()
        else None,
        _device_ns(columns, rows[np.isin(phase, [PHASES.index(FORWARD), PHASES.index(BACKWARD)])]),
        _wall_ns(columns, launches, in_scope, scope),
        int(is_optimizer.sum()),
        int(columns.named(kernel_names.MULTI_TENSOR.search, columns.is_of("kernel"))[rows[is_optimizer]].sum()),
    )


def phase_of(columns: Columns, nesting: Nesting, launches: Launches, rows: Ints) -> Ints:
    """Return the phase of host events as an index into ``PHASES``; -1 for none.

    If one of them is within a marked forward pass, only those are. Otherwise forward is the rest.
    """
    section = launches.section[rows]
    within = {}
    for phase, marks in MARKS.items():
        is_marked = columns.named(marks.search, columns.is_of("cpu_op", "user_annotation"))
        around = nearest(nesting, is_marked)
        within[phase] = (around[rows] != NONE) | ((section != NONE) & (around[section] != NONE))
    rest = ~within[BACKWARD] & ~within[OPTIMIZER]
    is_forward = within[FORWARD] & rest if (within[FORWARD] & rest).any() else rest
    phases = [PHASES.index(name) for name in (BACKWARD, OPTIMIZER, FORWARD)]
    found: Ints = np.select([within[BACKWARD], within[OPTIMIZER], is_forward], phases, NONE)
    return found


def _wall_ns(columns: Columns, launches: Launches, in_scope: Bools, scope: Scope) -> int:
    """Return the length of the scope, without the time for earlier work and with that for its own after its end."""
    works = np.flatnonzero(columns.is_gpu() & (launches.call != NONE))
    works = works[in_scope[launches.call[works]]]
    if not scope.is_steps or not len(works):
        return scope.wall_ns
    extent = together(scope.windows, union(columns.begin_ns[works], columns.end_ns[works]))
    begin_ns = np.array([free_since(columns, launches, scope)], np.int64)
    return int(covered(extent, begin_ns, extent.end_ns[-1:]).sum())


def _device_ns(columns: Columns, rows: Ints) -> int:
    devices = columns.device[rows]
    return sum(
        union(columns.begin_ns[of], columns.end_ns[of]).total_ns
        for of in (rows[devices == device] for device in distinct(devices))
    )
