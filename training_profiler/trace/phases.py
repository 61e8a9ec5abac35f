"""Which part of a training step each piece of device work belongs to, by what launched it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from training_profiler.trace.columns import NONE, Bools, Columns, Ints
from training_profiler.trace.launches import Launches
from training_profiler.trace.nesting import Nesting, nearest
from training_profiler.trace.overview import StepParts, is_communication

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
# As torch marks them by itself (older versions by the name of the autograd function), as our sections are called, and
# as people like to call theirs.
_MARKS: Final[Mapping[str, re.Pattern[str]]] = {
    BACKWARD: re.compile(
        r"^autograd::engine::evaluate_function|^(torch::autograd::)?\w*Backward\d*$|^torch::autograd::AccumulateGrad"
        r"|^backward_pass$|^(##\s*)?backward\b"
    ),
    OPTIMIZER: re.compile(r"^Optimizer\.(step|zero_grad)#|^optimizer_step$|^(##\s*)?optimizer\b"),
    FORWARD: re.compile(r"^forward_pass$|^(##\s*)?forward\b"),
}


def phase_times(
    columns: Columns, nesting: Nesting, launches: Launches, steps: Sequence[StepParts]
) -> dict[str, int] | None:
    """Return the device's time within steps a phase, in ns; None where the trace does not tell of a backward pass.

    Forward is what was launched in steps and belongs to neither of the others, unless the trace marks it: then that.
    """
    rows = np.flatnonzero(columns.is_of("kernel") & ~is_communication(columns))
    call = launches.call[rows]
    rows, call = rows[call != NONE], call[call != NONE]
    in_step = _in_steps(columns.begin_ns[call], steps)
    rows, call = rows[in_step], call[in_step]
    duration = (columns.end_ns - columns.begin_ns)[rows]
    within = {phase: nearest(nesting, _marked(columns, marks))[call] != NONE for phase, marks in _MARKS.items()}
    if not within[BACKWARD].any():
        return None
    is_backward = within[BACKWARD]
    is_optimizer = within[OPTIMIZER] & ~is_backward
    rest = ~is_backward & ~is_optimizer
    is_forward = within[FORWARD] & rest if (within[FORWARD] & rest).any() else rest
    return {
        phase: int(duration[which].sum())
        for phase, which in ((FORWARD, is_forward), (BACKWARD, is_backward), (OPTIMIZER, is_optimizer))
    }


def _marked(columns: Columns, marks: re.Pattern[str]) -> Bools:
    return columns.named(marks.search) & columns.is_of("cpu_op", "user_annotation")


def _in_steps(at_ns: Ints, steps: Sequence[StepParts]) -> Bools:
    inside = np.zeros(len(at_ns), np.bool_)
    for step in steps:
        inside |= (at_ns >= step.begin_ns) & (at_ns < step.end_ns)
    return inside


def kernels_within(columns: Columns, nesting: Nesting, launches: Launches, phase: str) -> Ints:
    """Return the rows of kernels that were launched in a phase."""
    rows = np.flatnonzero(columns.is_of("kernel"))
    call = launches.call[rows]
    rows, call = rows[call != NONE], call[call != NONE]
    return rows[nearest(nesting, _marked(columns, _MARKS[phase]))[call] != NONE]
