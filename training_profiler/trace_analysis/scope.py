"""What the shares of a trace are shares of: its marked steps, or the whole recording if no steps are marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.base.units import NS_PER_MS, counted
from training_profiler.tables.sections import OPTIMIZER_STEP
from training_profiler.trace_analysis.device_activity import Device, StepParts, parts_of, utilization
from training_profiler.trace_analysis.host_activity import WAITS_FOR_BATCH
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.timeline import Intervals, covered, main_thread, step_at, union

OPTIMIZER_MARK: Final = "Optimizer.step#"
LEAST_RUNS: Final = 3  # of an annotation that is taken for one repetition of the loop


@dataclass(frozen=True, slots=True)
class Repetition:
    """An annotation of the training thread that recurs, as the loop does; it divides a trace without steps."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Scope:
    """The windows that rules look at, each with its parts on the device."""

    parts: tuple[StepParts, ...]
    is_steps: bool
    repetition: Repetition | None  # only looked for without steps

    @property
    def wall_ns(self) -> int:
        """The total length of the windows."""
        return sum(part.wall_ns for part in self.parts)

    @property
    def end_ns(self) -> int:
        """The end of the last window."""
        return max(part.end_ns for part in self.parts)

    @property
    def utilization(self) -> float | None:
        """The share of the windows in which a device was busy; None if they have no length."""
        return utilization(self.parts)

    @property
    def repetitions(self) -> int:
        """How many steps or other repetitions of the loop the windows contain; 0 if unknown."""
        return len(self.parts) if self.is_steps else self.repetition.count if self.repetition else 0

    @property
    def time(self) -> str:
        """What shares are of, in words."""
        return "step time" if self.is_steps else "the recording"

    @property
    def extent(self) -> str:
        """The windows in words: "6 steps"."""
        return counted(len(self.parts), "step") if self.is_steps else f"{self.wall_ns / NS_PER_MS:.1f} ms recorded"

    @property
    def windows(self) -> Intervals:
        """The time of all windows, each moment once."""
        begins, ends = (np.array([getattr(part, key) for part in self.parts], np.int64) for key in _ENDS)
        return union(begins, ends)

    def within(self, intervals: Intervals) -> int:
        """Return the length of the intervals within the windows."""
        return int(covered(intervals, self.windows.begin_ns, self.windows.end_ns).sum())


_ENDS: Final = ("begin_ns", "end_ns")


def scope_of(columns: Columns, device: Device, steps: Sequence[StepParts], begin_ns: int, end_ns: int) -> Scope:
    """Return the marked steps, or the recording from ``begin_ns`` to ``end_ns`` if no step is marked."""
    if steps:
        return Scope(tuple(steps), True, None)
    whole = parts_of(device, [""], np.array([begin_ns], np.int64), np.array([end_ns], np.int64))
    return Scope(tuple(whole), False, _repetition(columns))


def _repetition(columns: Columns) -> Repetition | None:
    """Return the annotation that recurs with the loop: updates first, then batches, then whatever takes longest."""
    which = columns.is_of("user_annotation") & (columns.thread == main_thread(columns))
    rows = np.flatnonzero(which)
    counts = np.bincount(columns.name[rows], minlength=len(columns.names))
    lengths = np.zeros(len(columns.names), np.int64)
    np.add.at(lengths, columns.name[rows], (columns.end_ns - columns.begin_ns)[rows])
    often = [i for i in distinct(columns.name[rows]).tolist() if counts[i] >= LEAST_RUNS]
    if not often:
        return None

    def rank(i: int) -> tuple[int, int]:
        name = columns.names[i]
        is_update = name.startswith(OPTIMIZER_MARK) or name == OPTIMIZER_STEP
        return 2 if is_update else 1 if WAITS_FOR_BATCH.search(name) else 0, int(lengths[i])

    best = max(often, key=rank)
    return Repetition(columns.names[best], int(counts[best]))


def step_of(steps: Sequence[StepParts], at_ns: Ints) -> Ints:
    """Return the index of the step that each time is in; -1 for none."""
    return step_at([step.begin_ns for step in steps], [step.end_ns for step in steps], at_ns)


def is_in_steps(steps: Sequence[StepParts], at_ns: Ints) -> Bools:
    """Return which times are in steps. Without steps, all are: the call that launched the first work precedes it."""
    return step_of(steps, at_ns) != NONE if steps else np.ones(len(at_ns), np.bool_)
