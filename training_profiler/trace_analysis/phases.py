"""Assigns device work to the parts of a training step, by the operator or annotation that launched it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.intervals import union
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.nesting import Nesting, nearest
from training_profiler.trace_analysis.scope import Scope

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
PHASES: Final = (FORWARD, BACKWARD, OPTIMIZER)
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

    times_ns: Mapping[str, int] | None  # by phase, within the scope, of several devices the sum; None if unknown
    optimizer_kernels: int  # launched by optimizers, within the scope
    multi_tensor_kernels: int  # of these, those that update many tensors at once


def phases_of(
    columns: Columns, nesting: Nesting, launches: Launches, communicates: Bools, in_scope: Bools, scope: Scope
) -> Phases:
    """Return the device time of each phase within the scope; ``in_scope`` says which events begin in it.

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
        {name: _device_ns(columns, rows[phase == i], scope) for i, name in enumerate(PHASES)}
        if (phase == PHASES.index(BACKWARD)).any()
        else None,
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


def _device_ns(columns: Columns, rows: Ints, scope: Scope) -> int:
    devices = columns.device[rows]
    return sum(
        scope.within(union(columns.begin_ns[of], columns.end_ns[of]))
        for of in (rows[devices == device] for device in np.unique(devices))
    )
