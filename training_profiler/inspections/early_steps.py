"""Looks in some early steps for what a program does twice, or keeps; in few of the later ones, for what grows."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final

from training_profiler.inspections.frozen_forward import FrozenForward
from training_profiler.inspections.growth import GrowthWatch
from training_profiler.inspections.inspection import (
    Counts,
    Following,
    Inspection,
    SeenCall,
    UserProgram,
    classes_under_way,
    is_watched,
)
from training_profiler.inspections.kept_graphs import GraphMarks
from training_profiler.inspections.loop_length import LoopLength
from training_profiler.inspections.padding import Padding
from training_profiler.inspections.recurrent_steps import RecurrentSteps
from training_profiler.inspections.repeated_forward import RepeatedForward, RepeatedWeights, SlicedBatches
from training_profiler.inspections.same_again import SameAgain
from training_profiler.inspections.unused import GradientUse, GraphUse
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.modules import is_bare
from training_profiler.model.program import ProgramFacts

STEPS: Final = 24  # that are looked at; more where several optimizers take turns
INPUTS: Final = 5  # where torch.autograd.backward takes the tensors that alone get a gradient
MOST_CALLS: Final = 2_000  # of a program whose updates are not seen
MOST_NS: Final = 300_000_000  # for comparing them, which takes milliseconds a call where models have many modules


class EarlySteps:
    """Runs the inspections for a few steps, once FLOPs have been counted."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        program = UserProgram(context)
        self._repeats = RepeatedForward(program)
        self._graphs = GraphMarks(context.calls, classes_under_way)
        self._growth = GrowthWatch(program, lambda: context.detector, self._look_no_more)
        self._length = LoopLength(lambda: context.detector and context.detector.phases.passes.latest)
        self._gradients = GradientUse(program)
        self._frozen = FrozenForward(program)
        self._padding = Padding(program)
        self._weights = RepeatedWeights(program)
        self._again = SameAgain(context)  # afterwards: others do not look where a mode is on
        self._inspections: dict[str, Inspection] = {  # by the name of their facts
            "repeats": self._repeats,
            "frozen": self._frozen,
            "slices": SlicedBatches(program),
            "unused_gradients": self._gradients,
            "unused_graphs": GraphUse(program),
            "recurrent": RecurrentSteps(program),
            "padding": self._padding,
            "weights": self._weights,
        }
        self._open: Any = None  # the outermost call under way
        self._followed: list[Following] = []  # inspections of it
        self._restore: Callable[[], None] | None = None
        self._is_done = False
        self._begun_at = self._steps = self._calls = 0
        self._spent_ns = 0  # on looking at calls and backward passes
        self._pass_began_ns = 0  # the backward pass under way

    @property
    def looked_ns(self) -> int:
        """How long the training has been looked at so far."""
        return self._spent_ns + self._again.spent_ns

    @property
    def named_steps(self) -> int:
        """Number of the run's first steps up to the last one that naming operations slowed down; 0 for none."""
        return self._again.named_steps and self._begun_at + self._steps + self._again.named_steps

    def begin(self, steps: int) -> None:
        """Look at the steps from now on, once in a run; ``steps`` are complete."""
        detector = self._context.detector
        if self._restore is not None or detector is None:
            return
        self._begun_at = steps
        self._context.watch_backward(self)
        methods = self._calls_of(detector) | self._updates_of(detector) | self._fetches_of(detector)
        self._restore = detector.shadow(**methods)

    def _calls_of(self, detector: LoopDetector) -> dict[str, Callable[..., Any]]:
        torch, call_begins, call_ends = sys.modules["torch"], detector.call_begins, detector.call_ends
        began_ns = 0

        def seen_call_begins(module: Any, inputs: Any, may_explore: bool, caller: Any, function: int = 0) -> Any:
            nonlocal began_ns
            self._calls += 1
            if self._open is None and self._calls > MOST_CALLS:
                self._end()
            if function or self._is_done or self._open is not None or self._spent_ns > MOST_NS:
                return call_begins(module, inputs, may_explore, caller, function)
            with self._looking():  # before the call's span
                counts = Counts(detector.backwards, detector.updates, self._steps)
                has_grad, bare = torch.is_grad_enabled(), _attempt(is_bare, module) is not False
                seen = SeenCall(module, inputs, has_grad, caller, counts, bare, is_watched())
                if not seen.is_watched:
                    _attempt(self._context.trained_samples.call_begins, module, inputs, has_grad)
                followed = [each.follow(seen) for each in self._inspections.values()]
                self._followed = [each for each in followed if _goes_on(each)]
            call = call_begins(module, inputs, may_explore, caller, function)
            if call.is_explored:
                self._follow_no_more()
                return call
            self._followed = [each for each in self._followed if _goes_on(each)]
            self._open, began_ns = call, perf_counter_ns()
            return call

        def seen_call_ends(call: Any, module: Any) -> None:
            call_ends(call, module)  # first: it reads the clock
            spent_ns = perf_counter_ns() - began_ns
            if self._open is not call:
                return
            self._open = None
            with self._looking():
                for each in self._followed:
                    _attempt(each.send, spent_ns)
                self._followed.clear()

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
                _attempt(self._gradients.update_ends, optimizer, self._steps)
                # Before a trainer clears the gradients, which show whether they are used.
                if self._spent_ns > MOST_NS or (self._graphs.is_over and self._steps > STEPS):
                    self._end()
                    _attempt(self._again.begin, detector)

        def seen_backward_ends() -> None:
            backward_ends()
            began_ns, ended_ns = self._pass_began_ns, perf_counter_ns()
            with self._looking():
                _attempt(self._repeats.backward_ends)
                self._frozen.backward_ends()
                self._weights.backward_ends(ended_ns - began_ns)
                self._gradients.backward_ends(began_ns, ended_ns)

        return {"update_ends": seen_update_ends, "backward_ends": seen_backward_ends}

    def _fetches_of(self, detector: LoopDetector) -> dict[str, Callable[..., Any]]:
        fetch_begins, fetch_ends = detector.fetch_begins, detector.fetch_ends

        def seen_fetch_begins(iterator: Any, is_first: bool) -> Any:
            with self._looking():
                _attempt(self._frozen.fetch_begins, iterator, is_first)
            return fetch_begins(iterator, is_first)

        def seen_fetch_ends(loader_pass: Any, batch: Any = None) -> None:
            fetch_ends(loader_pass)
            with self._looking():
                _attempt(self._frozen.fetch_ends)
                _attempt(self._padding.fetched, loader_pass.iterator(), batch)
                if not is_watched():
                    _attempt(self._context.trained_samples.fetched, loader_pass.iterator(), batch)

        return {"fetch_begins": seen_fetch_begins, "fetch_ends": seen_fetch_ends}

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, trains: bool) -> None:
        """Handle the begin of a backward pass, as a ``BackwardWatch``."""
        self._growth.backward_begins(args, kwargs, frame, trains)
        with self._looking():
            is_seen = trains and kwargs.get("inputs") is None and len(args) <= INPUTS
            _attempt(self._repeats.backward_begins, is_seen)
            if trains:
                _attempt(self._graphs.backward_begins, args, kwargs, frame)
                if (detector := self._context.detector) is not None:
                    _attempt(self._length.backward_begins, frame, detector.updates, self._steps)
        self._pass_began_ns = perf_counter_ns()

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        begin_ns = thread_time_ns()  # on a busy machine, other programs would use up the time that it may take
        yield
        self._spent_ns += thread_time_ns() - begin_ns

    def stop(self) -> None:
        """Restore the detector for good."""
        self._end()
        self._length.stop()
        self._again.stop()

    def _end(self) -> None:
        if self._restore is not None and not self._is_done:
            self._is_done, self._open = True, None
            self._follow_no_more()
            self._restore()
            self._context.watch_backward(self._growth)
            for each in self._inspections.values():
                each.stop()
            if self._padding.facts(self._steps) is not None and self._context.detector is not None:
                self._context.detector.input_sizes.show_to(self._padding.look)

    def poll(self) -> None:
        """Look again, after the early steps, where that is due."""
        if self._is_done and self._growth.is_due():
            self._context.watch_backward(self._growth)

    def _look_no_more(self) -> None:
        if self._is_done:
            self._context.watch_backward(None)

    def _follow_no_more(self) -> None:
        for each in self._followed:
            _attempt(each.close)
        self._followed.clear()

    def add_to(self, facts: ProgramFacts) -> ProgramFacts:
        """Return the facts with what was found so far."""
        found = {name: each.facts(self._steps) for name, each in self._inspections.items()}
        return facts._replace(
            graphs=self._graphs.facts(),
            expected_steps=self._length.expected_steps,
            grown=self._growth.facts(),
            constants=self._again.lines,
            same_fetches=self._frozen.same_fetches,
            **found,
        )


def _goes_on(call: Following) -> bool:
    """Return whether an inspection wants to see more of a call; not where it fails."""
    try:
        next(call)
    except Exception:  # such as StopIteration
        return False
    return True


def _attempt(work: Callable[..., Any], *args: Any) -> Any:
    """Return what ``work`` returns; None where it fails, as with modules or tensors that have methods of their own."""
    try:
        return work(*args)
    except Exception:
        return None
