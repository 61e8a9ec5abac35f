"""Looks in some early steps for what a program does twice, or keeps; later steps cost nothing."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Final

from training_profiler.inspections.frozen_forward import FrozenForward
from training_profiler.inspections.kept_graphs import GraphMarks
from training_profiler.inspections.recurrent_steps import RecurrentSteps
from training_profiler.inspections.repeated_forward import Counts, RepeatedForward
from training_profiler.inspections.sliced_batches import SlicedBatches
from training_profiler.inspections.unused_gradients import GradientUse
from training_profiler.inspections.unused_graphs import GraphUse
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.modules import modules_within
from training_profiler.instrumentation.patches.module_call import is_compiled
from training_profiler.instrumentation.shadow import Shadow
from training_profiler.recording.object_identity import ObjectIdentity
from training_profiler.snapshot.program import COMPILE, ProgramFacts

STEPS: Final = 24  # that are looked at; more where several optimizers take turns
INPUTS: Final = 5  # where torch.autograd.backward takes the tensors that alone get a gradient
MOST_CALLS: Final = 2_000  # of a program whose updates are not seen
MOST_MODULES: Final = 64  # of which it is remembered that they have no compiled ones
MOST_NS: Final = 300_000_000  # for comparing them, which takes milliseconds a call where models have many modules


class EarlySteps:
    """Runs the inspections for a few steps, once FLOPs have been counted."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._repeats = RepeatedForward(context.calls.place)
        self._slices = SlicedBatches(context.calls.place)
        self._graphs = GraphMarks(context.calls)
        self._gradients = GradientUse(context.optimizers, context.calls.place)
        self._frozen = FrozenForward(context.optimizers, context.calls.place, self._may_be_compiled)
        self._graph_use = GraphUse(context.calls.place, self._may_be_compiled)
        self._recurrent = RecurrentSteps(context.calls.place, self._may_be_compiled)
        self._plain: dict[int, ObjectIdentity] = {}  # modules without compiled ones in them, by their ids
        self._shadow: Shadow | None = None
        self._is_done = False
        self._steps = self._calls = 0
        self._spent_ns = 0  # on looking at calls and backward passes

    def begin(self) -> None:
        """Look at the steps from now on, once in a run."""
        detector = self._context.detector
        if self._shadow is not None or detector is None:
            return
        self._context.watch_backward(self)
        methods = self._calls_of(detector) | self._updates_of(detector) | self._fetches_of(detector)
        self._shadow = Shadow(detector, **methods)

    def _calls_of(self, detector: LoopDetector) -> dict[str, Callable[..., Any]]:
        torch, call_begins, call_ends = sys.modules["torch"], detector.call_begins, detector.call_ends

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
                self._frozen.begins(module, inputs, has_grad, caller)
                if has_grad:
                    self._slices.begins(module, inputs, caller, self._steps)
                    self._gradients.begins(module, inputs, caller)
                    self._graph_use.begins(module, caller)
                    self._recurrent.begins(module, self._steps)
            call = call_begins(module, inputs, may_explore, caller, function)
            self._slices.begun(call)
            self._gradients.begun(call)
            self._graph_use.begun(call)
            self._frozen.begun(call)
            self._recurrent.begun(call)
            self._repeats.begun(call)  # last: it reads the clock
            return call

        def seen_call_ends(call: Any, module: Any) -> None:
            call_ends(call, module)  # first: it reads the clock
            with self._looking():
                now_ns = perf_counter_ns()
                self._gradients.ends(call)
                self._graph_use.ends(call, now_ns)
                self._repeats.ends(call, module)
                self._frozen.ends(call, now_ns)
                self._recurrent.ends(call)

        return {"call_begins": seen_call_begins, "call_ends": seen_call_ends}

    def _updates_of(self, detector: LoopDetector) -> dict[str, Callable[..., Any]]:
        update_ends, backward_ends = detector.update_ends, detector.backward_ends

        def seen_update_ends(optimizer: Any, has_updated: bool = True) -> None:
            update_ends(optimizer, has_updated)
            if self._context.captures.has_replayed_updates:  # nothing of such a step is seen
                self.stop()
            elif has_updated:
                self._steps += id(optimizer) == (detector.primary_optimizer or id(optimizer))
                self._graphs.update_ends(optimizer)
                self._gradients.update_ends(optimizer, self._steps)
                if self._graphs.is_over and self._steps > STEPS:
                    self.stop()

        def seen_backward_ends() -> None:
            backward_ends()
            with self._looking():
                self._repeats.backward_ends()
                self._frozen.backward_ends()

        return {"update_ends": seen_update_ends, "backward_ends": seen_backward_ends}

    def _fetches_of(self, detector: LoopDetector) -> dict[str, Callable[..., Any]]:
        fetch_begins, fetch_ends = detector.fetch_begins, detector.fetch_ends

        def seen_fetch_begins(iterator: Any, is_first: bool) -> Any:
            with self._looking():
                self._frozen.fetch_begins(iterator, is_first)
            return fetch_begins(iterator, is_first)

        def seen_fetch_ends(loader_pass: Any) -> None:
            fetch_ends(loader_pass)
            with self._looking():
                self._frozen.fetch_ends()

        return {"fetch_begins": seen_fetch_begins, "fetch_ends": seen_fetch_ends}

    def _may_be_compiled(self, module: Any) -> bool:
        """Return whether hooks inside a call could make dynamo compile again; looks through a module once."""
        if is_compiled(module) or any(call.kind == COMPILE for call in self._context.calls.facts()):
            return True
        known = self._plain.get(id(module))
        if known is not None and known.matches(module):
            return False
        if any(map(is_compiled, modules_within(module))):
            return True
        if len(self._plain) >= MOST_MODULES:
            self._plain.clear()
        self._plain[id(module)] = ObjectIdentity(module)
        return False

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
            self._graph_use.stop()
            self._frozen.stop()
            self._recurrent.stop()

    def add_to(self, facts: ProgramFacts) -> ProgramFacts:
        """Return the facts with what was found so far."""
        steps = self._steps
        return facts._replace(
            repeats=self._repeats.facts(steps),
            graphs=self._graphs.facts(),
            slices=self._slices.facts(steps),
            unused_gradients=self._gradients.facts(),
            unused_graphs=self._graph_use.facts(steps),
            frozen=self._frozen.facts(),
            recurrent=self._recurrent.facts(),
        )
