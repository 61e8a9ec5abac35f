"""Counts the FLOPs of one early step: forward passes with gradients and backward passes, by torch's own formulas.

Counting sends every operation of torch through Python, so only one step is counted. It is skipped if the step uses
something that counting might break.
"""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.inspections.flop_operations import Operations, counting_mode
from training_profiler.inspections.inspection import is_profiled, mode_stack, why_not_counted
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.modules import is_bare
from training_profiler.model.interval import StepFlops

FIRST_STEP: Final = 1  # complete steps before the first that may be counted
COUNTED_BY: Final = 12  # complete steps after which counting ends
TRIES: Final = 3
NOT_WHOLE: Final = "no step could be counted as a whole"
NOT_SHOWN: Final = "an update that the program makes itself shows only in the next backward pass"
REPLAYED: Final = "steps are replays of a CUDA graph, whose operations are not seen"
TOO_COSTLY: Final = "a step starts so many short operations that counting would take longer than they do"


class Flops:
    """Chooses the step and keeps the result in ``counted``."""

    def __init__(self, context: PatchContext) -> None:
        self.counted: StepFlops | None = None
        self.facts: dict[str, Any] = {}  # of the program, shown by the counted step
        self.why_not: str | None = None
        self.slow_steps = 0  # the first steps up to the last one that counting slowed down
        self._context = context
        self._counting: Counting | None = None
        self._tries = 0

    def step_ended(self, steps: int) -> None:
        """Handle the end of a step; ``steps`` are complete. Called on the training thread."""
        if self.is_over or steps < FIRST_STEP:
            return
        counting, self._counting = self._counting, None
        detector = self._context.detector
        try:
            if counting is not None:
                if counting.end():
                    self._tries += 1
                    self.slow_steps = steps
                self.counted, self.why_not = counting.result(is_last=self._tries >= TRIES)
                if self.why_not == TOO_COSTLY:
                    self.facts = {"uncounted": counting.counts.operators}
                elif self.counted is not None:
                    self.facts = counting.counts.facts(counting.forward_ns)
            if self.is_over or detector is None:
                return
            if steps >= COUNTED_BY - 1:
                is_replayed = self._context.captures.has_replayed_updates
                self.why_not = REPLAYED if is_replayed else NOT_SHOWN if detector.inferred is not None else NOT_WHOLE
            else:
                self._counting = Counting(detector, sys.modules["torch"], self._context.calls.place)
                self._counting.begin()
        except Exception as error:  # a failure here must cost neither the training nor the patches
            self.why_not = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Stop counting."""
        counting, self._counting = self._counting, None
        if counting is not None:
            counting.end()

    @property
    def is_over(self) -> bool:
        """Whether a step was counted, or none can be."""
        return self.counted is not None or self.why_not is not None

    def note(self) -> str | None:
        """Return why no FLOPs were counted; None if they were, or if there were too few steps."""
        return f"FLOPs were not counted: {self.why_not}" if self.why_not else None


class Counting:
    """Counts during one step, by shadowing methods of ``detector``.

    So no call has to ask whether FLOPs are being counted. The fast path is switched off meanwhile.
    """

    def __init__(self, detector: LoopDetector, torch: Any, place_of: Callable[[FrameType | None], str]) -> None:
        self._detector = detector
        self._restore: Callable[[], None] | None = None
        self._torch = torch
        self._mode: Any = None
        self.counts = Operations(torch, place_of)
        self.forward_ns = self._begun_ns = 0  # time in counted forward passes; when the latest call began
        self._open: list[object] = []  # counted calls and backward passes under way, outermost first
        self._why_not: str | None = None
        self._is_incomplete = False
        self._train_modes: set[bool] = set()  # of the modules called

    def begin(self) -> None:
        """Start counting."""
        detector, opens, closes = self._detector, self._opens, self._closes
        call_begins, call_ends = detector.call_begins, detector.call_ends
        backward_begins, backward_ends = detector.backward_begins, detector.backward_ends

        def counted_call_begins(module: Any, inputs: Any, may_explore: bool, caller: Any, function: int = 0) -> Any:
            call = call_begins(module, inputs, may_explore, caller, function)
            # An explored call may be a trainer module; then the calls inside it count.
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
            if not self.counts.flops[0]:
                self._is_incomplete = True  # its forward pass was in the step before
            else:
                self.counts.is_backward = True
                opens(backward_ends, lambda: why_not_counted(self._torch))

        def counted_backward_ends() -> None:
            closes(backward_ends)
            self.counts.is_backward = False
            backward_ends()

        self._restore = detector.shadow(
            call_begins=counted_call_begins,
            call_ends=counted_call_ends,
            backward_begins=counted_backward_begins,
            backward_ends=counted_backward_ends,
        )

    def end(self) -> bool:
        """Restore the detector; return whether any operation went through Python."""
        if self._restore is not None:
            self._restore()
        if self._open:
            self._is_incomplete = True
            self._open.clear()
            self._leave()
        return self._mode is not None

    def result(self, is_last: bool) -> tuple[StepFlops | None, str | None]:
        """Return the counted FLOPs, or why they are unusable; two None to try another step.

        Calls in eval mode beside those in train mode may be an evaluation between two steps. If they occur up to the
        last try, they are taken as part of the step.
        """
        counts = self.counts
        why_not = self._why_not or counts.why_not
        if why_not is not None:
            return None, why_not
        if self._is_incomplete or not all(counts.flops):
            return None, NOT_WHOLE if is_last else None
        if len(self._train_modes) > 1 and not is_last:
            return None, None
        forward, backward = counts.flops
        if backward > 4 * forward:  # twice is usual, and three times with recomputation
            return None, "much of the forward pass runs outside module calls"
        dtype, device, attention, peak = counts.where()
        return StepFlops(forward + backward, dtype, device, attention, *counts.of_forward, peak), None

    def _opens(self, span: object, why_not: Callable[[], str | None]) -> None:
        if self._open or self._is_incomplete or self._why_not is not None:
            return
        try:
            if is_profiled(self._torch):
                self._is_incomplete = True
                return
            self._why_not = TOO_COSTLY if self.counts.are_costly else why_not()
            if self._why_not is None:
                if self._mode is None:
                    self._mode = counting_mode(self.counts)
                self._mode.__enter__()
                self._open.append(span)
                self.counts.graph.begins(self.counts.is_backward)
                self._begun_ns = time.perf_counter_ns()
        except Exception as error:
            self._why_not = f"{type(error).__name__}: {error}"

    def _closes(self, span: object) -> None:
        if self._open and self._open[-1] is span:
            self._open.pop()
            self.counts.graph.ends(self.counts.is_backward)
            if not self.counts.is_backward:
                self.forward_ns += time.perf_counter_ns() - self._begun_ns
            self._leave()

    def _leave(self) -> None:
        stack = mode_stack()
        if stack and stack[-1] is self._mode:
            self._mode.__exit__(None, None, None)
        else:  # the program entered another mode and has not left it
            self._why_not = "another dispatch mode is active"
            self.counts.is_over = True
