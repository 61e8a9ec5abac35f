"""Looks in some early steps for what a program does twice, or keeps; later steps cost nothing."""

import contextlib
import sys
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.kept_graphs import GraphMarks
from training_profiler.instrumentation.repeated_forward import Counts, RepeatedForward
from training_profiler.instrumentation.shadow import Shadow
from training_profiler.instrumentation.sliced_batches import SlicedBatches
from training_profiler.instrumentation.unused_gradients import GradientUse
from training_profiler.snapshot.program import ProgramFacts

STEPS: Final = 24  # that are looked at; more where several optimizers take turns
INPUTS: Final = 5  # where torch.autograd.backward takes the tensors that alone get a gradient
MOST_CALLS: Final = 2_000  # of a program whose updates are not seen
MOST_NS: Final = 300_000_000  # for comparing them, which takes milliseconds a call where models have many modules


class EarlySteps:
    """Shadows methods of the loop detector, after the step whose FLOPs are counted has ended."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._repeats = RepeatedForward(context.calls.place)
        self._slices = SlicedBatches(context.calls.place)
        self._graphs = GraphMarks(context.calls)
        self._gradients = GradientUse(context.optimizers, context.calls.place)
        self._shadow: Shadow | None = None
        self._is_done = False
        self._steps = self._calls = 0
        self._spent_ns = 0  # on looking at calls and backward passes

    def begin(self) -> None:
        """Look at the steps from now on, once in a run."""
        detector = self._context.detector
        if self._shadow is not None or detector is None:
            return
        torch = sys.modules["torch"]
        self._context.watch_backward(self)
        call_begins, call_ends, update_ends = detector.call_begins, detector.call_ends, detector.update_ends
        backward_ends = detector.backward_ends

        def seen_call_begins(module: Any, inputs: Any, may_explore: bool, caller: Any, function: int = 0) -> Any:
            self._calls += 1
            if self._calls > MOST_CALLS or self._spent_ns > MOST_NS:
                self.stop()
            if function or self._is_done:
                return call_begins(module, inputs, may_explore, caller, function)
            with self._looking():  # before the call's span
                counts = Counts(detector.backwards, detector.updates, self._steps)
                has_grad = torch.is_grad_enabled()
                self._repeats.begins(module, inputs, has_grad, caller, counts)
                if has_grad:
                    self._slices.begins(module, inputs, caller, self._steps)
                    self._gradients.begins(module, inputs, caller)
            call = call_begins(module, inputs, may_explore, caller, function)
            self._slices.begun(call)
            self._gradients.begun(call)
            self._repeats.begun(call)  # last: it reads the clock
            return call

        def seen_call_ends(call: Any, module: Any) -> None:
            call_ends(call, module)  # first: it reads the clock
            with self._looking():
                self._gradients.ends(call)
                self._repeats.ends(call, module)

        def seen_update_ends(optimizer: Any, has_updated: bool = True) -> None:
            update_ends(optimizer, has_updated)
            if has_updated:
                self._steps += id(optimizer) == (detector.primary_optimizer or id(optimizer))
                self._graphs.update_ends(optimizer)
                self._gradients.update_ends(optimizer, self._steps)
                if self._graphs.is_over and self._steps > STEPS:
                    self.stop()

        def seen_backward_ends() -> None:
            backward_ends()
            with self._looking():
                self._repeats.backward_ends()

        self._shadow = Shadow(
            detector,
            call_begins=seen_call_begins,
            call_ends=seen_call_ends,
            update_ends=seen_update_ends,
            backward_ends=seen_backward_ends,
        )

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, trains: bool) -> None:
        """Handle the begin of a backward pass, as a ``BackwardWatch``."""
        with self._looking():
            self._repeats.backward_begins(trains and kwargs.get("inputs") is None and len(args) <= INPUTS)
            if trains:
                self._graphs.backward_begins(args, kwargs, frame)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        begin_ns = perf_counter_ns()
        yield
        self._spent_ns += perf_counter_ns() - begin_ns

    def stop(self) -> None:
        """Restore the detector."""
        if self._shadow is not None and not self._is_done:
            self._is_done = True
            self._shadow.end()
            self._context.watch_backward(None)
            self._repeats.stop()
            self._gradients.stop()

    def add_to(self, facts: ProgramFacts) -> ProgramFacts:
        """Return the facts with what was found so far."""
        steps = self._steps
        return facts._replace(
            repeats=self._repeats.facts(steps),
            graphs=self._graphs.facts(),
            slices=self._slices.facts(steps),
            unused_gradients=self._gradients.facts(),
        )
