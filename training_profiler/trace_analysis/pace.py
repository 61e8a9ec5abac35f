"""How the device gets through the steps that the host launches ahead of it."""

from typing import Final

import numpy as np

from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Columns, Ints
from training_profiler.trace_analysis.scope import Scope
from training_profiler.trace_analysis.timeline import step_at

LEAST_STEPS: Final = 3


def launched_at(columns: Columns, launches: Launches, rows: Ints) -> Ints:
    """Return when each of these works was launched; for an unknown launch when it began."""
    by = np.where(launches.call != NONE, launches.call, launches.operator)[rows]
    at_ns: Ints = np.where(by != NONE, columns.begin_ns[by], columns.begin_ns[rows])
    return at_ns


def free_since(columns: Columns, launches: Launches, scope: Scope) -> int:
    """Return when the device had done what was launched before the scope; at the latest the begin of its first work."""
    begin_ns = scope.parts[0].begin_ns
    works = np.flatnonzero(columns.is_gpu())
    is_earlier = launched_at(columns, launches, works) < begin_ns
    first_ns = int(columns.begin_ns[works[~is_earlier]].min(initial=np.iinfo(np.int64).max))
    return max(begin_ns, min(first_ns, int(columns.end_ns[works[is_earlier]].max(initial=begin_ns))))


def pace_variation(columns: Columns, launches: Launches, scope: Scope) -> float | None:
    """Return the coefficient of variation of the times that the device needs for the steps, one after another.

    None if the host was not ahead of the device at the end of each step that is shorter than the mean, and below three
    steps. The first steps of a window are short because they only fill the queue of launches; later ones wait for room.
    """
    steps = scope.parts
    if not scope.is_steps or len(steps) < LEAST_STEPS:
        return None
    begins, ends = (np.array([getattr(step, key) for step in steps], np.int64) for key in ("begin_ns", "end_ns"))
    works = np.flatnonzero(columns.is_gpu())
    step = step_at(begins, ends, launched_at(columns, launches, works))
    done_ns = np.full(len(steps), NONE, np.int64)
    np.maximum.at(done_ns, step[step != NONE], columns.end_ns[works[step != NONE]])
    is_short = ends - begins < (ends - begins).mean()
    if (done_ns == NONE).any() or (done_ns[is_short] <= ends[is_short]).any():
        return None
    needed_ns = np.diff(np.maximum.accumulate(done_ns), prepend=free_since(columns, launches, scope)).astype(np.float64)
    return float(needed_ns.std(ddof=1) / needed_ns.mean()) if needed_ns.mean() else None
