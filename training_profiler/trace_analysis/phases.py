"""Assigns device work to the parts of a training step, by the operator or annotation that launched it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.nesting import Nesting, nearest

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
# The marks of torch (older versions use the name of the autograd function), the names of our sections and common names
# of annotations.
_MARKS: Final[Mapping[str, re.Pattern[str]]] = {
    BACKWARD: re.compile(
        r"^autograd::engine::evaluate_function|^(torch::autograd::)?\w*Backward\d*$|^torch::autograd::AccumulateGrad"
        r"|^backward_pass$|^(##\s*)?backward\b"
    ),
    OPTIMIZER: re.compile(r"^Optimizer\.(step|zero_grad)#|^optimizer_step$|^(##\s*)?optimizer\b"),
    FORWARD: re.compile(r"^forward_pass$|^(##\s*)?forward\b"),
}


@dataclass(frozen=True, slots=True)
class Phases:
    """Device time and kernels of the parts of a step."""

    times_ns: Mapping[str, int] | None  # by phase, within steps; None if the trace has no backward pass
    optimizer_kernels: int  # launched by optimizers, within steps
    multi_tensor_kernels: int  # of these, those that update many tensors at once


def phases_of(columns: Columns, nesting: Nesting, launches: Launches, communicates: Bools, step_of: Ints) -> Phases:
    """Return the device time of each phase within steps; ``step_of`` is the step of each event, -1 for none.

    If the trace marks the forward pass, the mark counts. Otherwise forward is all work that was launched in steps and
    belongs to neither of the other phases.
    """
    rows = np.flatnonzero(columns.is_of("kernel") & ~communicates)
    by = np.where(launches.call != NONE, launches.call, launches.operator)[rows]
    in_step = (by != NONE) & (step_of[by] != NONE)
    rows, by = rows[in_step], by[in_step]
    duration = (columns.end_ns - columns.begin_ns)[rows]
    section = launches.section
    within = {}
    for phase, marks in _MARKS.items():
        is_marked = columns.named(marks.search, columns.is_of("cpu_op", "user_annotation"))
        around = nearest(nesting, is_marked)
        within[phase] = (around[by] != NONE) | ((section[by] != NONE) & (around[section[by]] != NONE))
    is_backward = within[BACKWARD]
    is_optimizer = within[OPTIMIZER] & ~is_backward
    rest = ~is_backward & ~is_optimizer
    is_forward = within[FORWARD] & rest if (within[FORWARD] & rest).any() else rest
    parts = ((FORWARD, is_forward), (BACKWARD, is_backward), (OPTIMIZER, is_optimizer))
    return Phases(
        {phase: int(duration[which].sum()) for phase, which in parts} if is_backward.any() else None,
        int(is_optimizer.sum()),
        int(columns.named(kernel_names.MULTI_TENSOR.search, columns.is_of("kernel"))[rows[is_optimizer]].sum()),
    )
