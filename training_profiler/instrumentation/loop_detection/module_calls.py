"""Infers forward passes from outermost calls of modules, with gradients and without."""

from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.input_sizes import InputSizes
from training_profiler.instrumentation.loop_detection.modules import MethodFrames, ModuleCall, TrainableModules, is_bare
from training_profiler.instrumentation.loop_detection.optimizer_update import OptimizerUpdate
from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents, SectionCodes, either
from training_profiler.instrumentation.loop_detection.phase_detector import PhaseDetector
from training_profiler.recording.event_codes import Fields, field, time_only

MAX_USUAL_CALLS: Final = 1000
TRAINER_DEPTH: Final = 3  # depth at which a trainer module may hold the model it trains


class ModuleCalls(Fields):
    """Infers forward passes from outermost module calls, and finds the begin of the training loop."""

    frame: tuple[int, int] | None = field(0)  # the method whose calls are one forward pass
    backwards: int = field(1)
    updates: int = field(2)
    shadows: int = field(5)  # methods in front of ours: no call is usual meanwhile
    called_in_frame: set[int] = field(7)  # ids of the modules that were called in ``frame``

    def __init__(
        self, pending: PendingEvents, codes: SectionCodes, module_class: type, is_grad_enabled: Callable[[], bool]
    ) -> None:
        self.pending, self.codes, self.is_grad_enabled = pending, codes, is_grad_enabled
        self._trainable = TrainableModules()
        self.phases = PhaseDetector(pending, codes, self._trainable.was_trained)
        self.update = OptimizerUpdate(pending, codes.optimizer)
        # Calls that C repeats, by the id of their module; those without gradients by the odd number behind it.
        self.known_calls: dict[int, ModuleCall] = {}
        self.calls: list[ModuleCall] = []  # under way, outermost first
        self.frame = None
        self.backwards = self.updates = self.inferred_updates = self.shadows = 0
        self.loop_begin_ns: int | None = None
        self._loop_from_ns: int | None = None  # the same, as known while calls are explored
        self._confirmed: set[type] = set()  # classes of explored modules that were no trainers
        self._methods = MethodFrames(module_class)
        self.called_in_frame = set()
        self._seen_in_training: set[int] = set()  # ids of trainable modules called in train mode
        self._function = 0  # the autograd function of the last call that one made
        self.input_sizes = InputSizes()

    def call_begins(
        self, module: Any, inputs: tuple[Any, ...], may_explore: bool, caller: FrameType, function: int = 0
    ) -> ModuleCall:
        """Record an outermost call of a module; ``function`` as in ``TrainingThread``."""
        if self.update.open_code:
            self.update.closure_begins()
        if function or not self.is_grad_enabled():
            call = self._no_grad_call_begins(module, inputs, caller, function)
        else:
            call = self._grad_call_begins(module, may_explore, caller, inputs)
        self.calls.append(call)
        return call

    def _grad_call_begins(
        self, module: Any, may_explore: bool, frame: FrameType, inputs: tuple[Any, ...]
    ) -> ModuleCall:
        pending, code, kind = self.pending, self.codes.forward, type(module)
        is_trainable = self._trainable.is_trainable(module)
        if not (is_trainable or self._trainable.is_any or is_bare(module)) and any(
            getattr(value, "requires_grad", False) for value in inputs
        ):
            is_trainable = True  # the input is trained, e.g. an image by a frozen network
        is_continued = is_trainable and self._is_same_forward(module, frame)
        if (is_continued or not is_trainable) and pending.remove_last(-code):
            call = ModuleCall(kind, 0, code)
            self._remember_as_usual(call, module, frame, is_trainable)
            return call
        is_explored = may_explore and kind not in self._confirmed and len(self.calls) < TRAINER_DEPTH
        if is_trainable and module.training:
            self._seen_in_training.add(id(module))
            if self.phases.is_unresolved and not is_explored:
                self._training_event_begins(pending.host_clock(), id(module))
        if is_continued or not is_trainable:
            code = time_only(code)
        if is_trainable and self.input_sizes.is_due:
            self.input_sizes.add(inputs, self.updates + self.inferred_updates + 1)
        call = ModuleCall(kind, pending.record(code), code)
        if is_explored:
            call.is_explored, call.around = True, (self.frame, self.called_in_frame)
        else:
            self._remember_as_usual(call, module, frame, is_trainable)
        return call

    def _remember_as_usual(self, call: ModuleCall, module: Any, frame: FrameType, is_trainable: bool) -> None:
        """Remember a call as one of every step, if the module is in train mode or a loss."""
        call.is_bare = not module._modules and not module._parameters
        if not call.is_bare and self.frame is not None:  # a method of a module makes it
            self.known_calls.pop(id(module), None)
        elif call.is_bare or (is_trainable and module.training):
            self._remember(call, id(module), frame, True)

    def _remember(self, call: ModuleCall, key: int, frame: FrameType, mode: bool) -> None:
        if len(self.known_calls) >= MAX_USUAL_CALLS:
            self.known_calls.clear()
        call.caller, call.mode = frame.f_code, mode
        self.known_calls[key] = call

    def call_ends(self, call: ModuleCall, module: Any) -> None:
        """Record that an outermost call has ended or raised."""
        calls = self.calls
        if calls and calls[-1] is call:
            calls.pop()
        elif call in calls:
            del calls[calls.index(call) :]
        if call.is_trainer:
            call.is_trainer = False
            return
        if call.is_explored:
            self._confirmed.add(call.kind)
            own = {*either(self.codes.forward), *either(self.codes.no_grad), *either(self.codes.data_transfer)}
            self.pending.remove_since(call.begin_ns, call.code, own | {-code for code in own})
            self.frame, self.called_in_frame = call.around
            if call.code == self.codes.forward and module.training and self.phases.is_unresolved:
                self._training_event_begins(call.begin_ns, id(module))
            if self._loop_from_ns is not None:
                self._loop_begins(call.begin_ns)
        now_ns = self.pending.record(-call.code)
        if not call.has_grad:
            self.phases.no_grad_call_ends(now_ns)
        elif not module.training:
            begin_ns = call.begin_ns if call.code == self.codes.forward else 0
            known = id(module) if id(module) in self._seen_in_training else 0
            self.phases.eval_mode_call_ends(begin_ns, now_ns, known)

    def trains_within(self) -> None:
        """Handle a training event inside the calls under way.

        These are not forward passes: the outermost module is the trainer, the modules it calls are.
        """
        calls = self.calls
        for call in calls:
            call.is_trainer, call.is_plain = True, False
            if call.begin_ns:
                self.pending.remove(call.begin_ns, call.code)
            else:  # it extends a span
                self.pending.record(-call.code)
        for module in [module for module, known in self.known_calls.items() if known in calls]:
            del self.known_calls[module]  # the same module may be called in its own call
        calls.clear()
        if self._loop_from_ns is not None:
            self._loop_begins(self._loop_from_ns)

    def _training_event_begins(self, now_ns: int, module: int = 0) -> None:
        """Decide what was before a training event; ``module`` is the id of one in train mode that is called."""
        begin_ns = self.phases.training_event_begins(now_ns, module)
        if self.loop_begin_ns is None:
            self._loop_begins(begin_ns)

    def _loop_begins(self, begin_ns: int) -> None:
        """Set the begin of the loop to ``begin_ns``, or to the call under way if that is a forward pass."""
        self._loop_from_ns = begin_ns if self._loop_from_ns is None else min(begin_ns, self._loop_from_ns)
        if not self.calls:
            self.loop_begin_ns = self.pending.begin_loop(self._loop_from_ns)
            self._loop_from_ns = None

    def _no_grad_call_begins(
        self, module: Any, inputs: tuple[Any, ...], caller: FrameType, function: int
    ) -> ModuleCall:
        """Record a call with gradients off, which the forward of an autograd function computes itself.

        All calls of one execution of it, such as the steps of an ODE solver, are one forward pass.
        """
        has_grad, code, is_read, depth = function > 0, self.codes.forward, True, -1
        if function:
            is_part, self._function, self.frame = function == self._function, function, None
        else:
            is_read = self.input_sizes.rows.add_evaluation(module, inputs, self.phases.passes.latest)
            is_part = is_bare(module)
            if not is_part:
                is_part, depth = self._is_same_forward(module, caller), self._methods.depth
        now_ns = self.pending.clock()
        if not has_grad:
            code = self.phases.no_grad_call_begins(module, caller, now_ns)
        elif self._trainable.is_trainable(module) and module.training and self.phases.is_unresolved:
            self._training_event_begins(self.pending.host_clock())
        call = ModuleCall(type(module), 0, code, has_grad)
        self._enter(call, code, now_ns, is_part)
        run = self.phases.run
        if run is not None and code == self.codes.no_grad:
            run.depth, call.use = depth, run.latest
            if 0 <= depth < len(run.key) and not is_read:
                self._remember(call, id(module) + 1, caller, module.training)
        return call

    def _enter(self, call: ModuleCall, code: int, now_ns: int, is_part: bool) -> None:
        """Record the begin of ``call``; ``is_part`` says that it may go on with the span before."""
        if is_part and self.pending.remove_last(-code):
            call.begin_ns, call.code = 0, code
        else:
            call.begin_ns, call.code = now_ns, time_only(code) if is_part else code
            self.pending.events.extend((now_ns, call.code))

    def _is_same_forward(self, module: Any, frame: FrameType) -> bool:
        """Return whether the call belongs to the same forward pass as the one before.

        It does if one method of a module calls several modules, each once, e.g. in a policy that is not called itself.
        """
        caller = self._methods.outermost(frame)
        if caller is None:
            self.frame = None
            return False
        if caller == self.frame and id(module) not in self.called_in_frame:
            self.called_in_frame.add(id(module))
            return True
        self.frame = caller
        self.called_in_frame = {id(module)}
        return False
