"""Counts the FLOPs of one early step: forward passes with gradient and backward passes, by torch's own formulas.

While they are counted every operation of torch passes through Python, so it is done in one step alone; and not at all
where something takes part that this might disturb.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from training_profiler.instrumentation.flops.eligibility import is_profiled, mode_stack, why_not_counted
from training_profiler.instrumentation.flops.operations import Operations, counting_mode
from training_profiler.instrumentation.loop_detection.modules import is_bare
from training_profiler.recording.step_flops import StepFlops

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation
    from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector

FIRST_STEP: Final = 1  # so many steps are complete when the one begins of which FLOPs are counted, at the earliest
COUNTED_BY: Final = 12  # and so many when it is given up
# The backward pass takes twice the forward pass, with a recomputation three times. Where it takes more, much of the
# forward pass was not in any module, and was not seen.
MOST_BACKWARD: Final = 4
TRIES: Final = 3


class Flops:
    """Decides which step it is, and hands the result over in ``counted``."""

    def __init__(self, watch: "Instrumentation") -> None:
        self.counted: StepFlops | None = None
        self.why_not: str | None = None
        self.slow_steps = 0  # so many first steps hold those that took longer, for they were counted or tried
        self._watch = watch
        self._counting: Counting | None = None
        self._tries = 0

    def step_ended(self, steps: int) -> None:
        """Note that so many steps are complete; called on the training thread."""
        if self.counted is not None or self.why_not is not None or steps < FIRST_STEP:
            return
        counting, self._counting = self._counting, None
        detector = self._watch.detector
        try:
            if counting is not None:
                counting.end()
                if counting.was_on:
                    self._tries += 1
                    self.slow_steps = steps
                self.counted, self.why_not = counting.result(is_last=self._tries >= TRIES)
            if self.counted is None and self.why_not is None and detector is not None and steps < COUNTED_BY - 1:
                self._counting = Counting(detector, sys.modules["torch"])
                self._counting.begin()
        except Exception as error:  # counting is not worth a training, nor its seams
            self.why_not = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Leave off counting."""
        counting, self._counting = self._counting, None
        if counting is not None:
            counting.end()

    def note(self) -> str | None:
        """Return why FLOPs are not known, where that is not for lack of steps."""
        return f"FLOPs were not counted: {self.why_not}" if self.why_not else None


class Counting:
    """One step: what tells ``detector`` of calls and backward passes tells this first.

    For that its methods are shadowed, so that otherwise nothing has to ask whether FLOPs are counted. The usual call is
    never one of those, and takes the longer way.
    """

    def __init__(self, detector: "LoopDetector", torch: Any) -> None:
        self._detector = detector
        self._torch = torch
        self._mode: Any = None
        self._counts = Operations(torch)
        self._open: list[object] = []  # calls and backward passes around what is counted, the outermost first
        self._why_not: str | None = None
        self._is_incomplete = False
        self._train_modes: set[bool] = set()  # of the modules called

    def begin(self) -> None:
        """Count from here."""
        detector, opens, closes = self._detector, self._opens, self._closes
        call_begins, call_ends = detector.call_begins, detector.call_ends
        backward_begins, backward_ends = detector.backward_begins, detector.backward_ends

        def counted_call_begins(module: Any, inputs: Any, may_explore: bool, caller: Any) -> Any:
            call = call_begins(module, inputs, may_explore, caller)
            # Of what may be a trainer that holds the model, the calls inside count.
            if call.has_grad and not call.is_explored:
                if not is_bare(module):
                    self._train_modes.add(module.training)
                opens(call, lambda: why_not_counted(self._torch, module))
            return call

        def counted_call_ends(call: Any, module: Any) -> None:
            closes(call)
            call_ends(call, module)

        def counted_backward_begins() -> None:
            backward_begins()
            if not self._counts.forward:
                self._is_incomplete = True  # its forward pass was before this step began
            else:
                self._counts.is_backward = True
                opens(backward_ends, lambda: why_not_counted(self._torch))

        def counted_backward_ends() -> None:
            closes(backward_ends)
            self._counts.is_backward = False
            backward_ends()

        vars(detector).update(
            fast_path_call_begins=lambda module, caller: None,
            call_begins=counted_call_begins,
            call_ends=counted_call_ends,
            backward_begins=counted_backward_begins,
            backward_ends=counted_backward_ends,
        )

    def end(self) -> None:
        """Leave everything as it was before."""
        for name in ("fast_path_call_begins", "call_begins", "call_ends", "backward_begins", "backward_ends"):
            vars(self._detector).pop(name, None)
        if self._open:
            self._is_incomplete = True
            self._open.clear()
            self._leave()

    @property
    def was_on(self) -> bool:
        """Whether anything passed through Python."""
        return self._mode is not None

    def result(self, is_last: bool) -> tuple[StepFlops | None, str | None]:
        """Return what was counted, or why that will not do; neither where another step may.

        Where a model is called in eval mode besides, that may be an evaluation between two steps, unless there is one
        in every step up to the last that is tried.
        """
        counts = self._counts
        why_not = self._why_not or counts.why_not
        if why_not is not None:
            return None, why_not
        if self._is_incomplete or not counts.forward or not counts.backward:
            return None, "no step could be counted as a whole" if is_last else None
        if len(self._train_modes) > 1 and not is_last:
            return None, None
        if counts.backward > MOST_BACKWARD * counts.forward:
            return None, "much of the forward pass is not in the call of a module"
        return StepFlops(counts.forward + counts.backward, *counts.where()), None

    def _opens(self, what: object, why_not: Callable[[], str | None]) -> None:
        if self._open or self._is_incomplete or self._why_not is not None:
            return
        try:
            if is_profiled(self._torch):
                self._is_incomplete = True
                return
            self._why_not = why_not()
            if self._why_not is None:
                if self._mode is None:
                    self._mode = counting_mode(self._counts)
                self._mode.__enter__()
                self._open.append(what)
        except Exception as error:
            self._why_not = f"{type(error).__name__}: {error}"

    def _closes(self, what: object) -> None:
        if self._open and self._open[-1] is what:
            self._open.pop()
            self._leave()

    def _leave(self) -> None:
        stack = mode_stack()
        if stack and stack[-1] is self._mode:
            self._mode.__exit__(None, None, None)
        else:  # the program has put another mode on top, and left it there
            self._why_not = "another dispatch mode is at work"
            self._counts.is_over = True
