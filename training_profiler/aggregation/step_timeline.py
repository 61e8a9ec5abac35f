"""The training thread's time axis, cut into steps and the time outside them."""

from typing import NamedTuple

import numpy as np

from training_profiler.aggregation.span_matching import Events
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END, LOOP_BEGIN, STEP_END
from training_profiler.statistics.arrays import Ints

OUTSIDE = -1


def are_step_ends(marks: Events) -> bool:
    """Return whether all marks are ends of steps, as in most batches, of which each may have thousands."""
    return bool((marks.codes == STEP_END).all())


class Cuts(NamedTuple):
    """Consecutive pieces of time: piece i ends at ``ends_ns[i]`` and belongs to step ``steps[i]``."""

    ends_ns: Ints
    steps: Ints  # number of the step, counted from 0; OUTSIDE for none
    not_steps: list[int]  # pieces at whose end the open step turns out not to be one


class StepTimeline:
    """Assigns each moment to a training step, or to the time outside steps.

    A step lasts from the end of the previous step to its own end. The first begins with its epoch, or without epochs
    with the first section, so that building the model is not part of it; a mark that the loop begins may come again,
    because the model was called while it was built. Time after the last step of an epoch is outside steps.
    """

    def __init__(self) -> None:
        self.steps = 0  # complete steps
        self._is_inside = False
        self.has_begun = False
        self.begun_ns: int | None = None  # when the first step began
        self._may_begin_later = False  # it began with a section, which may not be part of it

    def cut(self, marks: Events, first_section_ns: int | None, until_ns: int) -> Cuts:
        """Return the pieces up to ``until_ns``.

        Args:
            marks: in time order; their codes are their kinds.
            first_section_ns: begin of the training thread's first section in this stretch.
            until_ns: end of the last piece.
        """
        if self._is_inside and are_step_ends(marks):
            return self._cut_steps(np.append(marks.times_ns, until_ns))
        ends_ns: list[int] = []
        steps: list[int] = []
        not_steps: list[int] = []

        def end_piece(end_ns: int) -> None:
            ends_ns.append(end_ns)
            steps.append(self.steps if self._is_inside else OUTSIDE)

        kinds: list[int | None] = [*marks.codes.tolist(), None]
        for kind, mark_ns in zip(kinds, [*marks.times_ns.tolist(), until_ns], strict=True):
            if not self.has_begun and first_section_ns is not None and first_section_ns <= mark_ns:
                end_piece(first_section_ns)
                self._is_inside = self.has_begun = True
                self.begun_ns = first_section_ns
                self._may_begin_later = True
            if kind == STEP_END:
                self._is_inside = self.has_begun = True
            end_piece(mark_ns)
            if kind == LOOP_BEGIN and self._may_begin_later:
                not_steps.append(len(ends_ns) - 1)
                self.begun_ns = mark_ns
            self._may_begin_later = kind in (None, LOOP_BEGIN) and (self._may_begin_later or kind == LOOP_BEGIN)
            if self.begun_ns is None and kind in (LOOP_BEGIN, EPOCH_BEGIN):
                self.begun_ns = mark_ns
            if kind == LOOP_BEGIN:
                self._is_inside = self.has_begun = True
            elif kind == STEP_END:
                self.steps += 1
            elif kind in (EPOCH_BEGIN, EPOCH_END):
                if self._is_inside:
                    not_steps.append(len(ends_ns) - 1)
                self._is_inside = kind == EPOCH_BEGIN
                self.has_begun = True
        return Cuts(np.array(ends_ns, np.int64), np.array(steps, np.int64), not_steps)

    def _cut_steps(self, ends_ns: Ints) -> Cuts:
        """Return the pieces in the usual case, when one step follows another."""
        steps = np.arange(self.steps, self.steps + len(ends_ns), dtype=np.int64)
        self.steps += len(ends_ns) - 1
        return Cuts(ends_ns, steps, [])
