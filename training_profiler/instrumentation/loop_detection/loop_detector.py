"""Infers sections and steps from the calls on the training thread, which the patches report as they happen."""

from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.inferred_updates import InferredUpdates
from training_profiler.instrumentation.loop_detection.input_sizes import InputSizes
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, Phase
from training_profiler.instrumentation.loop_detection.loop_begin import EarlyCalls
from training_profiler.instrumentation.loop_detection.modules import MethodFrames, TrainableModules, is_bare
from training_profiler.instrumentation.loop_detection.no_grad_calls import NoGradCalls
from training_profiler.instrumentation.loop_detection.optimizer_update import OptimizerUpdate
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall, inputs_of
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING, PendingEvents
from training_profiler.instrumentation.loop_detection.phase_detector import PhaseDetector
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes
from training_profiler.instrumentation.loop_detection.step_detector import StepDetector
from training_profiler.recording.event_codes import time_only

MAX_FAST_PATH_CALLS: Final = 1000
TRAINER_DEPTH: Final = 3  # depth at which a trainer module may hold the model it trains


class ModuleCalls(NoGradCalls):
    """Infers forward passes from outermost module calls, and finds the begin of the training loop."""

    def __init__(
        self, pending: PendingEvents, codes: SectionCodes, module_class: type, is_grad_enabled: Callable[[], bool]
    ) -> None:
        self.pending = pending
        self.codes = codes
        self._trainable = TrainableModules()
        self.phases = PhaseDetector(pending, codes, self._trainable.was_trained)
        self.update = OptimizerUpdate(pending, codes.optimizer)
        self._events, self._host_clock = pending.events, pending.host_clock
        self._forward_code, self._bare_code = codes.forward, time_only(codes.forward)
        self._fetch_code, self._backward_code, self._update_code = codes.data_loading, codes.backward, codes.optimizer
        self._transfer_code = codes.data_transfer
        self.calls, self._fast_path, self.frame, self.is_shadowed = [], {}, None, False
        self.loop_begin_ns: int | None = None
        self._loop_from_ns: int | None = None  # the same, as known while calls are explored
        self._is_grad_enabled = is_grad_enabled
        self._confirmed: set[type] = set()  # classes of explored modules that were no trainers
        self._methods = MethodFrames(module_class)
        self._called_in_frame = set()
        self._seen_in_training: set[int] = set()  # ids of trainable modules called in train mode
        self._function = 0  # the autograd function of the last call that one made
        self.input_sizes = InputSizes()

    def fast_path_call_begins(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> ModuleCall | None:
        """Record an outermost call that the same function makes in every step; return None for any other call.

        Two calls of nearly every step come through here, so this sets the cost of a step.
        """
        call = self._fast_path.get(id(module))
        if (
            call is None
            or call.caller is not caller.f_code
            or self.update.open_code
            or (self.phases.is_unresolved and (call.is_bare or call.is_in_method or not module.training))
            or call.kind is not type(module)
            or not self._is_grad_enabled()
        ):
            return None
        if self.phases.is_unresolved:
            self.training_call_begins(module)
        events, code = self._events, self._forward_code
        call.is_plain = True
        is_part = call.is_bare
        if call.is_in_method:
            is_part = self._is_same_forward(module, caller)
        elif not is_part:
            self.frame = None
        if not is_part:
            if self.input_sizes.is_due:
                self.input_sizes.add(inputs_of(args, kwargs), self.updates + 1)
            self.forward_begins()
            call.begin_ns, call.code = events[-2], code
        elif events and events[-1] == -code:  # a loss right after the model
            del events[-2:]
            call.begin_ns, call.code = 0, code
        else:
            if self.input_sizes.is_due and not call.is_bare:
                self.input_sizes.add(inputs_of(args, kwargs), self.updates + 1)
            call.is_plain = False
            call.code = self._bare_code
            call.begin_ns = self.pending.record(call.code)
        self.calls.append(call)
        return call

    def call_begins(
        self, module: Any, inputs: tuple[Any, ...], may_explore: bool, caller: FrameType, function: int = 0
    ) -> ModuleCall:
        """Record any other outermost call of a module; ``function`` as in ``TrainingThread``."""
        if self.update.open_code:
            self.update.closure_begins()
        if function:
            call = self._call_in_function_begins(module, caller, function)
        elif self._is_grad_enabled():
            call = self._grad_call_begins(module, may_explore, caller, inputs)
        else:
            self.input_sizes.rows.add_evaluation(module, inputs, self.phases.passes.latest)
            call = self._call_without_grad_begins(module, caller)
        self.calls.append(call)
        return call

    def _call_in_function_begins(self, module: Any, caller: FrameType, function: int) -> ModuleCall:
        """Record a call by the forward of an autograd function, which computes the gradients itself.

        Torch disables gradients there. All calls of one execution, such as the steps of an ODE solver, are one forward
        pass.
        """
        has_grad, is_continued, now_ns = function > 0, function == self._function, self.pending.clock()
        self._function, self.frame, code = function, None, self.codes.forward
        if not has_grad:
            code = self.phases.no_grad_call_begins(module, caller, now_ns)
        elif self._trainable.is_trainable(module) and module.training and self.phases.is_unresolved:
            self._training_event_begins(self.pending.host_clock())
        if is_continued and self.pending.ends_with(-code):
            self.pending.remove_last()
            return ModuleCall(type(module), 0, code, has_grad=has_grad)
        code = time_only(code) if is_continued else code
        self.pending.events.extend((now_ns, code))
        return ModuleCall(type(module), now_ns, code, has_grad=has_grad)

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
        if (is_continued or not is_trainable) and pending.ends_with(-code):
            pending.remove_last()
            call = ModuleCall(kind, 0, code)
            self._remember_for_fast_path(call, module, frame, is_trainable)
            return call
        is_explored = may_explore and kind not in self._confirmed and len(self.calls) < TRAINER_DEPTH
        if is_trainable and module.training:
            self._seen_in_training.add(id(module))
            if self.phases.is_unresolved and not is_explored:
                self.training_call_begins(module)
        if is_continued or not is_trainable:
            code = time_only(code)
        if is_trainable and self.input_sizes.is_due:
            self.input_sizes.add(inputs, self.updates + 1)
        call = ModuleCall(kind, pending.record(code), code, is_explored)
        call.around = (self.frame, self._called_in_frame)
        if not is_explored:
            self._remember_for_fast_path(call, module, frame, is_trainable)
        return call

    def _remember_for_fast_path(self, call: ModuleCall, module: Any, frame: FrameType, is_trainable: bool) -> None:
        """Remember a call for the fast path, if the module is in train mode or a loss."""
        call.is_bare = not module._modules and not module._parameters
        if call.is_bare or (is_trainable and module.training):
            if len(self._fast_path) >= MAX_FAST_PATH_CALLS:
                self._fast_path.clear()
            call.is_in_method = not call.is_bare and self.frame is not None
            call.caller = frame.f_code
            self._fast_path[id(module)] = call

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
            self._remove_inner(call)
            self.frame, self._called_in_frame = call.around
            if call.code == self.codes.forward and module.training and self.phases.is_unresolved:
                self._training_event_begins(call.begin_ns, id(module))
            if self._loop_from_ns is not None:
                self._loop_begins(call.begin_ns)
        now_ns = self.pending.clock()
        self.pending.events.extend((now_ns, -call.code))
        if not call.has_grad:
            self.phases.no_grad_call_ends(now_ns)
        elif not module.training:
            begin_ns = call.begin_ns if call.code == self.codes.forward else 0
            known = id(module) if id(module) in self._seen_in_training else 0
            self.phases.eval_mode_call_ends(begin_ns, now_ns, known)

    def _remove_inner(self, call: ModuleCall) -> None:
        """Remove the events inside a call that turned out to be a forward pass."""
        own = (self.codes.forward, self.codes.no_grad, self.codes.data_transfer)
        codes = {*own, *map(time_only, own)}
        self.pending.remove_since(call.begin_ns, call.code, codes | {-code for code in codes})

    def training_call_begins(self, module: Any) -> None:
        """Decide what was before a forward pass with gradients of ``module``, which is in train mode."""
        self._training_event_begins(self.pending.host_clock(), id(module))

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
        calls.clear()
        if self._loop_from_ns is not None:
            self._loop_begins(self._loop_from_ns)

    def _training_event_begins(self, now_ns: int, module: int = 0) -> None:
        begin_ns = self.phases.training_event_begins(now_ns, module)
        if self.loop_begin_ns is None:
            self._loop_begins(begin_ns)

    def _loop_begins(self, begin_ns: int) -> None:
        """Set the begin of the loop to ``begin_ns``, or to the call under way if that is a forward pass."""
        self._loop_from_ns = begin_ns if self._loop_from_ns is None else min(begin_ns, self._loop_from_ns)
        if not self.calls:
            self.loop_begin_ns = self.pending.begin_loop(self._loop_from_ns)
            self._loop_from_ns = None


_TRAINING: Final = Phase.TRAINING  # a member of an enum takes long to find
LONG_END_NS: Final = 200_000  # a longer fetch that finds the loader empty is recorded


class LoopDetector(ModuleCalls):
    """Infers sections and steps from the fetches, calls, backward passes and updates of the training thread."""

    def __init__(
        self,
        pending: PendingEvents,
        codes: SectionCodes,
        module_class: type,
        is_grad_enabled: Callable[[], bool],
        end_step: Callable[[int], None],
    ) -> None:
        super().__init__(pending, codes, module_class, is_grad_enabled)
        self.backwards = 0
        self.updates = 0
        self.has_manual_steps = False
        self.early, self.inferred = EarlyCalls(), None
        self.inferred_updates = 0
        self._unmarked_ns: int | None = None  # before the end of a backward pass after which the step may have ended
        self._end_step = end_step
        self._step_detector = StepDetector(end_step)
        self._buffer = pending.thread_buffer()
        self._passes = self.phases.passes
        self._end_code = time_only(codes.data_loading)
        pending.step_end_ns = lambda: self._unmarked_ns or self._step_detector.pending_ns
        self._make_writers()
        pending.on_clock_change = self._make_writers

    def _make_writers(self) -> None:
        """Create the writers of every step's events, again for each new clock."""
        pending, codes = self.pending, self.codes
        self.forward_begins, self.forward_ends = pending.writer(codes.forward), pending.writer(-codes.forward)
        self.update.make_writers()
        self._fetch_begins, self._fetch_ends = pending.writer(codes.data_loading), pending.writer(-codes.data_loading)
        self._backward_begins, self._backward_ends = pending.writer(codes.backward), pending.writer(-codes.backward)

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self.backwards > 0 or self.updates > 0

    @property
    def primary_optimizer(self) -> int:
        """The id of the optimizer whose updates are steps; 0 if it is not known, or if the program marks its steps."""
        return self._step_detector.primary

    # Fetches

    def fast_path_fetch_begins(self, iterator: Any) -> LoaderPass | None:
        """Record the begin of a fetch if it surely is for the training under way; return None otherwise."""
        phases = self.phases
        loader_pass = self._passes.latest
        if (
            phases.is_unresolved
            or loader_pass is None
            or loader_pass.kind is not _TRAINING
            or loader_pass.iterator() is not iterator
        ):
            return None
        self.frame = None
        self._fetch_begins()
        if loader_pass.loader_id != self._buffer.loader_id:
            self._buffer.record_loader(loader_pass.loader_id, self.pending.events[-2])
        if loader_pass.cycle != phases.cycle:
            loader_pass.cycle, loader_pass.cycle_begin_ns = phases.cycle, self.pending.events[-2]
        return loader_pass

    def fetch_begins(self, iterator: Any, is_first: bool) -> LoaderPass:
        """Record the begin of any other fetch from ``iterator``."""
        before = self.phases.passes.latest
        if before is not None and (is_first or before.iterator() is not iterator):
            self._reconsider(before)
        loader_pass = self.phases.passes.of(iterator, is_first)
        if not loader_pass.fetches:
            loader_pass.trained_before = self.backwards + self.updates
        now_ns = self.pending.clock()
        self.frame = None
        self.phases.fetch_begins(loader_pass, self._is_grad_enabled(), now_ns)
        self._buffer.record_loader(loader_pass.loader_id, now_ns)
        self.pending.events.extend((now_ns, self.codes.data_loading))
        if not loader_pass.fetches:
            self.pending.events.extend((now_ns, self.codes.first_fetch))
        return loader_pass

    def _reconsider(self, loader_pass: LoaderPass, *, is_end: bool = False) -> None:
        """Take a pass for an evaluation after all if it is over and its batches never reached a backward pass.

        A pass under way at the end of the run is over if its loader never fed the training before.
        """
        is_over = loader_pass.has_ended or (loader_pass.fetches > 1 and loader_pass.iterator() is None)
        is_over |= is_end and loader_pass.trained_before > 0 and loader_pass.is_first_training_of_loader
        has_trained = self.backwards + self.updates > loader_pass.trained_before
        if is_over and loader_pass.kind is Phase.TRAINING and not has_trained:
            self.phases.reconsider(loader_pass)

    def fetch_ends(self, loader_pass: LoaderPass) -> None:
        """Record the end of a fetch that returned a batch."""
        if loader_pass.fetches and loader_pass.kind is _TRAINING:
            self._fetch_ends()
            loader_pass.fetches += 1
        else:
            now_ns = self.pending.clock()
            if not loader_pass.fetches:
                self.pending.events.extend((now_ns, -self.codes.first_fetch))
            self.pending.events.extend((now_ns, -self.codes.data_loading))
            self.phases.fetch_ends(loader_pass, now_ns)
        if len(self._buffer.events) > MAX_PENDING:
            self.pending.release(self.pending.events[-2])

    def fetch_fails(self, loader_pass: LoaderPass, is_over: bool) -> None:
        """Record the end of a fetch without a batch: the loader is empty (``is_over``), or fetching raised."""
        if is_over and loader_pass.fetches and self._was_long():
            self.pending.events[-1] = self._end_code  # shutting down workers is data loading, but not a fetch
            self.pending.record(-self._end_code)
        else:
            for code in (self.codes.first_fetch, self.codes.data_loading)[bool(loader_pass.fetches) :]:
                self.pending.discard_span(code)
        if is_over:
            loader_pass.has_ended = True
            self.phases.pass_ends(loader_pass, self.pending.clock())  # an evaluation may end there

    def _was_long(self) -> bool:
        """Return whether the fetch that found the loader empty took long enough to be recorded."""
        pending = self.pending
        return pending.ends_with(self.codes.data_loading) and pending.host_clock() - pending.events[-2] > LONG_END_NS

    # Gradients and updates

    def backward_begins(self) -> None:
        """Record the begin of a backward pass."""
        self.backwards += 1
        self.frame = None
        if self.update.open_code:
            self.update.closure_begins()
        # A gradient that a call without gradients computes, as of an energy for its forces, trains nothing.
        if self.phases.is_unresolved and all(call.has_grad for call in self.calls):
            self._training_event_begins(self.pending.host_clock())
        if self.early.made_ns:
            self.loop_begin_ns = self.early.begin_again(self.pending, self.codes) or self.loop_begin_ns
        self._backward_begins()

    def use_inferred_updates(self, inferred: InferredUpdates | None) -> None:
        """Look for updates of the program's own before each backward pass from now on; None: no longer."""
        self.inferred, self._unmarked_ns = inferred, None

    def look_for_update(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
        """End the step before this backward pass if parameters have changed since the last one."""
        if self.inferred is not None and self.inferred.backward_begins(args, kwargs, trains):
            self._end_inferred_step()

    def _end_inferred_step(self) -> None:
        """End a step whose update was not seen: at the first event that may belong to the next one."""
        codes = self.codes
        begins = {codes.data_loading, codes.forward, time_only(codes.forward), codes.no_grad, time_only(codes.no_grad)}
        begins |= {codes.rollout, codes.validation, codes.checkpoint, time_only(codes.optimizer)}
        at_ns = self.pending.first_after(-codes.backward, begins)
        self._unmarked_ns = None
        if at_ns:
            self.inferred_updates += 1
            self.phases.cycle += 1
            if not self.has_manual_steps:
                self._end_step(at_ns)

    def backward_ends(self) -> None:
        """Record the end of a backward pass, also if it raised."""
        self._backward_ends()
        if self.inferred is not None:
            self.inferred.backward_ends()
            # Only the next backward pass shows an update. The end of this one is kept, too: the search ends there.
            self._unmarked_ns = self.pending.events[-2] - 1
        if self.update.is_in_closure:
            self.update.closure_ends()
        if len(self._buffer.events) > MAX_PENDING:  # no optimizer ever updates
            self.pending.release(self.pending.events[-2])

    def update_begins(self) -> None:
        """Record the begin of an optimizer update."""
        self.frame = None
        if self.phases.is_unresolved:
            self._training_event_begins(self.pending.host_clock())
        self.update.open_code = self.codes.optimizer
        self.update.span_begins()

    def transfer_begins(self) -> None:
        """Record that tensors begin to move to a device."""
        self.pending.record(self._transfer_code)

    def transfer_ends(self) -> None:
        """Record the end of that."""
        self.pending.record(-self._transfer_code)

    def loss_begins(self) -> None:
        """Record that an update under way begins to compute the loss, before the forward pass shows it."""
        if self.update.open_code:
            self.update.closure_begins()

    def update_ends(self, optimizer: Any, has_updated: bool = True) -> None:
        """Record the end of an optimizer update, or of one that was skipped."""
        if self.update.open_code == self.codes.optimizer:
            self.update.open_code = 0
            self.update.span_ends()
            now_ns = self.pending.events[-2]
        else:  # its closure computed the loss
            now_ns = self.update.end()
        if has_updated:
            self.update_is_recorded(optimizer, now_ns)

    def update_is_recorded(self, optimizer: Any, now_ns: int) -> None:
        """Count an update that ended at ``now_ns``, and end its step."""
        self.updates += 1
        if self.updates >= self.input_sizes.next_update:
            self.input_sizes.update_ends(self.updates, now_ns)
            if not self.updates & (self.updates - 1):
                self._fast_path.clear()  # learned again ever more seldom: a module may have got parameters
        self.phases.cycle += 1  # what follows is between steps or in the next one
        if not self.has_manual_steps:
            steps = self._step_detector
            if steps.is_alone and steps.primary == id(optimizer):  # as in nearly all trainings
                self._end_step(now_ns)
            else:
                steps.updated(optimizer, now_ns)

    def drop_update(self) -> None:
        """Forget the update under way: it has changed nothing."""
        self.update.drop()

    def use_manual_steps(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        if not self.has_manual_steps:
            self.has_manual_steps = True
            self._step_detector.discard_pending()

    def resolve_pending(self) -> None:
        """Resolve everything undecided, before a manual epoch begins or ends."""
        self.phases.end_evaluation()
        self._step_detector.end_pending()

    def close(self) -> None:
        """Resolve everything undecided at the end of the training."""
        if self.phases.passes.latest is not None:
            self._reconsider(self.phases.passes.latest, is_end=True)
        self.phases.end_evaluation()
        if self.inferred is not None and self.inferred.ends_with_update():
            self._end_inferred_step()
        self.use_inferred_updates(None)
        if not self.has_manual_steps:
            self._step_detector.close()
        self.pending.release(self.pending.host_clock())
        # A reference to a class of the program keeps its globals alive, and a file among them might not be flushed.
        for references in (self._fast_path, self._confirmed, self.calls):
            references.clear()
