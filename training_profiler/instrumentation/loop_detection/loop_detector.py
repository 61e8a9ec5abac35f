"""What the training thread does, told by the seams as it happens: sections go to the tape, steps to the session."""

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.modules import MethodFrames, Trainable, is_bare
from training_profiler.instrumentation.loop_detection.pending_events import MOST_HELD, PendingEvents
from training_profiler.instrumentation.loop_detection.phase_detector import LoaderPass, Phase, PhaseDetector
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes, time_only
from training_profiler.instrumentation.loop_detection.step_detector import StepDetector

MAX_FAST_PATH_CALLS: Final = 1000
TRAINER_DEPTH: Final = 3  # how deep a trainer that is a module may hold the model it trains


class ModuleCall:
    """An outermost module call under way."""

    __slots__ = (
        "around",
        "begin_ns",
        "caller",
        "code",
        "has_grad",
        "is_bare",
        "is_explored",
        "is_plain",
        "is_trainer",
        "kind",
    )

    def __init__(self, kind: type, begin_ns: int, code: int, is_explored: bool = False, has_grad: bool = True) -> None:
        self.kind = kind
        self.begin_ns = begin_ns  # of its span; 0 where it extends the one before
        self.code = code  # of its span
        self.is_explored = is_explored  # what it calls is looked at, for it may be a trainer that holds the model
        self.has_grad = has_grad
        self.is_bare = False
        self.is_trainer = False
        self.is_plain = False  # nothing but the end of its span is to be noted when it ends
        self.around: tuple[tuple[int, int] | None, set[int]] = (None, set())  # the method it is called from
        self.caller: CodeType | None = None  # code of a plain function that calls it again and again


class ModuleCalls:
    """Tells forward passes from outermost calls of modules, and when the training loop begins."""

    def __init__(
        self, pending: PendingEvents, codes: SectionCodes, module_class: type, is_grad_enabled: Callable[[], bool]
    ) -> None:
        self.pending = pending
        self.codes = codes
        self._trainable = Trainable()
        self.phases = PhaseDetector(pending, codes, self._trainable.was_trained)
        self.update = OptimizerUpdate(pending, codes.optimizer)
        self.calls: list[ModuleCall] = []  # under way, the outermost first
        self.loop_begin_ns: int | None = None
        self._loop_from_ns: int | None = None  # the same as far as is known, while calls are looked into
        self._is_grad_enabled = is_grad_enabled
        self.forward_begins: Callable[[], None]
        self.forward_ends: Callable[[], None]
        self._bare_code = time_only(codes.forward)
        self._fast_path: dict[int, ModuleCall] = {}  # those that come again and again, by id of the module
        self._confirmed: set[type] = set()  # classes of which a call came to its end without training anything
        self._methods = MethodFrames(module_class)
        self._seen_in_frame: set[int] = set()
        self.frame: tuple[int, int] | None = None  # the method whose calls are one forward pass

    def fast_path_call_begins(self, module: Any, caller: CodeType) -> ModuleCall | None:
        """Note an outermost call if it is one that the same plain function makes step after step; None if it is not.

        That needs no further thought, and here is what two calls of nearly every step cost.
        """
        call = self._fast_path.get(id(module))
        if (
            call is None
            or call.caller is not caller
            or call.kind is not type(module)
            or self.phases.is_unresolved
            or self.update.open_code
            or not self._is_grad_enabled()
        ):
            return None
        events, code = self.pending.events, self.codes.forward
        call.is_plain = True
        if not call.is_bare:
            self.frame = None
            self.forward_begins()
            call.begin_ns = events[-2]
        elif events and events[-1] == -code:  # a loss right after the model
            del events[-2:]
            call.begin_ns, call.code = 0, code
        else:
            call.is_plain = False
            call.code = self._bare_code
            call.begin_ns = self.pending.note(call.code)
        self.calls.append(call)
        return call

    def call_begins(self, module: Any, inputs: tuple[Any, ...], may_explore: bool, caller: FrameType) -> ModuleCall:
        """Note any other outermost call of a module."""
        if self.update.open_code:
            self.update.closure_begins()
        if self._is_grad_enabled():
            is_input_trained = any(getattr(one, "requires_grad", False) for one in inputs)
            call = self._grad_call_begins(module, may_explore, caller, is_input_trained)
        else:
            call = self._call_without_grad_begins(module, caller)
        self.calls.append(call)
        return call

    def _call_without_grad_begins(self, module: Any, caller: FrameType) -> ModuleCall:
        now_ns = self.pending.clock()
        code = self.phases.call_begins(id(module), now_ns)
        if is_bare(module) or self._is_same_forward(module, caller):
            if self.pending.ends_with(-code):
                self.pending.take_back()
                return ModuleCall(type(module), 0, code, has_grad=False)
            code = time_only(code)
        self.pending.events.extend((now_ns, code))
        return ModuleCall(type(module), now_ns, code, has_grad=False)

    def _grad_call_begins(self, module: Any, may_explore: bool, frame: FrameType, is_input_trained: bool) -> ModuleCall:
        pending, code, kind = self.pending, self.codes.forward, type(module)
        is_trainable = self._trainable.is_trainable(module)
        if is_input_trained and not is_trainable and not self._trainable.is_any and not is_bare(module):
            is_trainable = True  # what is trained is not a module: an image, say, by a frozen network
        goes_on = is_trainable and self._is_same_forward(module, frame)
        if (goes_on or not is_trainable) and pending.ends_with(-code):
            pending.take_back()
            call = ModuleCall(kind, 0, code)
            self._may_come_again(call, module, frame, is_trainable)
            return call
        is_explored = may_explore and kind not in self._confirmed and len(self.calls) < TRAINER_DEPTH
        if is_trainable and module.training and self.phases.is_unresolved and not is_explored:
            self._training_goes_on(pending.host_clock())
        if goes_on or not is_trainable:
            code = time_only(code)
        call = ModuleCall(kind, pending.note(code), code, is_explored)
        call.around = (self.frame, self._seen_in_frame)
        if not is_explored:
            self._may_come_again(call, module, frame, is_trainable)
        return call

    def _may_come_again(self, call: ModuleCall, module: Any, frame: FrameType, is_trainable: bool) -> None:
        """Remember a call from a plain function, of a module in train mode or of a loss, for when it comes again."""
        call.is_bare = not module._modules and not module._parameters
        if call.is_bare or (is_trainable and self.frame is None and module.training):
            if len(self._fast_path) >= MAX_FAST_PATH_CALLS:
                self._fast_path.clear()
            call.caller = frame.f_code
            self._fast_path[id(module)] = call

    def call_ends(self, call: ModuleCall, module: Any) -> None:
        """Note that an outermost call has ended, or raised."""
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
            self._forget_inner(call)
            self.frame, self._seen_in_frame = call.around
            if call.code == self.codes.forward and module.training and self.phases.is_unresolved:
                self._training_goes_on(call.begin_ns)
            if self._loop_from_ns is not None:
                self._loop_begins(call.begin_ns)
        now_ns = self.pending.clock()
        self.pending.events.extend((now_ns, -call.code))
        if not call.has_grad:
            self.phases.call_ends(now_ns)
        elif not module.training:
            self.phases.cautious_call_ends(now_ns)

    def _forget_inner(self, call: ModuleCall) -> None:
        """Remove what was noted inside of a call that turned out to be a forward pass: the next is not looked into."""
        own = (self.codes.forward, self.codes.no_grad, self.codes.data_transfer)
        codes = {*own, *map(time_only, own)}
        self.pending.remove_since(call.begin_ns, call.code, codes | {-code for code in codes})

    def trains_within(self) -> None:
        """Note that inside of the calls under way something happens that only a training loop does.

        So they are no forward passes: the outermost is the trainer, and what it calls are.
        """
        calls = self.calls
        for call in calls:
            call.is_trainer, call.is_plain = True, False
            if call.begin_ns:
                self.pending.remove(call.begin_ns, call.code)
            else:  # it had extended a span
                self.pending.note(-call.code)
        calls.clear()
        if self._loop_from_ns is not None:
            self._loop_begins(self._loop_from_ns)

    def _is_same_forward(self, module: Any, frame: FrameType) -> bool:
        """Return whether the call belongs to the same forward pass as the one before.

        So it does where one method of a module calls several others, each once: a policy that is never called itself.
        """
        caller = self._methods.outermost(frame)
        if caller is None:
            self.frame = None
            return False
        if caller == self.frame and id(module) not in self._seen_in_frame:
            self._seen_in_frame.add(id(module))
            return True
        self.frame = caller
        self._seen_in_frame = {id(module)}
        return False

    def _training_goes_on(self, now_ns: int) -> None:
        begin_ns = self.phases.training_goes_on(now_ns)
        if self.loop_begin_ns is None:
            self._loop_begins(begin_ns)

    def _loop_begins(self, begin_ns: int) -> None:
        """Note that the loop begins at ``begin_ns``, or with the outermost call under way if that is a forward pass."""
        self._loop_from_ns = begin_ns if self._loop_from_ns is None else min(begin_ns, self._loop_from_ns)
        if not self.calls:
            self.loop_begin_ns = self.pending.begin_loop(self._loop_from_ns)
            self._loop_from_ns = None


class OptimizerUpdate:
    """An optimizer's update under way; where it computes the loss itself, that time is not its own."""

    __slots__ = (
        "_clearing_begins",
        "_clearing_ends",
        "_code",
        "_pending",
        "_pieces_code",
        "had_closure",
        "is_in_closure",
        "open_code",
        "span_begins",
        "span_ends",
    )

    def __init__(self, pending: PendingEvents, code: int) -> None:
        self.open_code = 0  # of the span that is open; 0 for none, or while the loss is computed
        self.is_in_closure = False
        self._pending = pending
        self._code = code
        self._pieces_code = time_only(code)
        self.had_closure = False
        self.make_writers()

    def make_writers(self) -> None:
        """Make what writes the events of every update; anew where another clock tells their times."""
        code, writer = self._code, self._pending.writer
        self.span_begins, self.span_ends = writer(code), writer(-code)
        code = self._pieces_code
        self._clearing_begins, self._clearing_ends = writer(code), writer(-code)

    def clearing_begins(self) -> Callable[[], None]:
        """Note that gradients begin to be cleared; return what notes that they are."""
        events = self._pending.events
        if events and events[-1] == -self._code:  # right after the update, and one span with it
            del events[-2:]
            return self.span_ends
        self._clearing_begins()
        return self._clearing_ends

    def closure_begins(self) -> None:
        """Note that the loss begins to be computed."""
        if self.open_code == self._code:
            self.open_code = self._pieces_code
            self._pending.recode_last(self._code, self._pieces_code)
        self._leave()
        self.is_in_closure = self.had_closure = True

    def closure_ends(self) -> None:
        """Note that the gradients are there, and the update goes on."""
        self.is_in_closure = False
        self.open_code = self._pieces_code
        self._pending.note(self.open_code)

    def ends(self) -> int:
        """Note that the update has ended, or raised some time ago; return the time in ns."""
        self.is_in_closure = False
        if self.had_closure:
            self.had_closure = False
            if self.open_code:
                self._pending.recode_last(self.open_code, self._code)
            else:
                self._pending.note(self._code)
            self.open_code = self._code
        return self._leave()

    def _leave(self) -> int:
        now_ns = self._pending.clock()
        if self.open_code:
            self._pending.events.extend((now_ns, -self.open_code))
            self.open_code = 0
        return now_ns


LONG_END_NS: Final = 200_000  # of the fetch that finds a loader empty


class LoopDetector(ModuleCalls):
    """Tells sections and steps from fetches, calls, backward passes and updates of the training thread."""

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
        self.has_steps_by_hand = False
        self._end_step = end_step
        self._step_detector = StepDetector(end_step)
        self._buffer = pending.thread_buffer()
        self._end_code = time_only(codes.data_loading)
        pending.step_end_ns = lambda: self._step_detector.pending_ns
        self._make_writers()
        pending.on_clock = self._make_writers

    def _make_writers(self) -> None:
        """Make what writes the events of every step; anew where another clock tells their times."""
        pending, codes = self.pending, self.codes
        self.forward_begins, self.forward_ends = pending.writer(codes.forward), pending.writer(-codes.forward)
        self.update.make_writers()
        self._fetch_begins, self._fetch_ends = pending.writer(codes.data_loading), pending.writer(-codes.data_loading)
        self._backward_begins, self._backward_ends = pending.writer(codes.backward), pending.writer(-codes.backward)

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self.backwards > 0 or self.updates > 0

    # Fetches

    def fast_path_fetch_begins(self, iterator: Any) -> LoaderPass | None:
        """Note that the next batch is about to be fetched for the training that goes on; None if that is not sure."""
        one, phases = self.phases.passes.latest, self.phases
        if phases.is_unresolved or one is None or one.kind is not Phase.TRAINING or one.iterator() is not iterator:
            return None
        self.frame = None
        self._fetch_begins()
        if one.loader != self._buffer.loader:
            self._buffer.comes_from(one.loader, self.pending.events[-2])
        if one.cycle != phases.cycle:
            one.cycle, one.cycle_begin_ns = phases.cycle, self.pending.events[-2]
        return one

    def fetch_begins(self, iterator: Any, is_first: bool) -> LoaderPass:
        """Note that a batch is about to be fetched from ``iterator``."""
        one = self.phases.passes.of(iterator, is_first)
        now_ns = self.pending.clock()
        self.frame = None
        self.phases.fetch_begins(one, self._is_grad_enabled(), now_ns)
        self._buffer.comes_from(one.loader, now_ns)
        self.pending.events.extend((now_ns, self.codes.data_loading))
        if not one.fetches:
            self.pending.events.extend((now_ns, self.codes.first_fetch))
        return one

    def fetch_ends(self, one: LoaderPass) -> None:
        """Note that the batch is there, or that fetching it raised."""
        if one.fetches and one.kind is Phase.TRAINING:
            self._fetch_ends()
            one.fetches += 1
            one.end_ns = self.pending.events[-2]
        else:
            now_ns = self.pending.clock()
            if not one.fetches:
                self.pending.events.extend((now_ns, -self.codes.first_fetch))
            self.pending.events.extend((now_ns, -self.codes.data_loading))
            self.phases.fetch_ends(one, now_ns)
        if self.pending.is_too_long():
            self.pending.hold(self.pending.events[-2])

    def fetch_fails(self, one: LoaderPass, is_over: bool) -> None:
        """Note that there was no batch: the loader is empty (``is_over``), or fetching raised."""
        if is_over and one.fetches and self._was_long():
            self.pending.events[-1] = self._end_code  # workers end there: time of the loader's, and no batch
            self.pending.note(-self._end_code)
        else:
            for code in (self.codes.first_fetch, self.codes.data_loading)[bool(one.fetches) :]:
                self.pending.cancel(code)
        if is_over:
            one.has_ended = True
            self.phases.pass_ends(one, self.pending.clock())  # an evaluation may end there

    def _was_long(self) -> bool:
        """Return whether the fetch that found nothing took long enough to be worth its time in the report."""
        pending = self.pending
        return pending.ends_with(self.codes.data_loading) and pending.host_clock() - pending.events[-2] > LONG_END_NS

    # Gradients and updates

    def backward_begins(self) -> None:
        """Note that gradients begin to be computed."""
        self.backwards += 1
        self.frame = None
        if self.update.open_code:
            self.update.closure_begins()
        if self.phases.is_unresolved:
            self._training_goes_on(self.pending.host_clock())
        self._backward_begins()

    def backward_ends(self) -> None:
        """Note that they are computed, or that it raised."""
        self._backward_ends()
        if self.update.is_in_closure:
            self.update.closure_ends()
        if len(self.pending.events) > MOST_HELD:  # nothing ever updates
            self.pending.hold(self.pending.events[-2])

    def update_begins(self) -> None:
        """Note that an optimizer begins to update."""
        self.frame = None
        if self.phases.is_unresolved:
            self._training_goes_on(self.pending.host_clock())
        self.update.open_code = self.codes.optimizer
        self.update.span_begins()

    def update_ends(self, optimizer: Any, has_updated: bool = True) -> None:
        """Note that it has, or that it found that it should not."""
        if self.update.open_code == self.codes.optimizer:
            self.update.open_code = 0
            self.update.span_ends()
            now_ns = self.pending.events[-2]
        else:  # it computed the loss itself
            now_ns = self.update.ends()
        if not has_updated:
            return
        self.updates += 1
        self.phases.cycle += 1  # what follows is between steps, or in the next
        if not self.has_steps_by_hand:
            if self._step_detector.is_alone and self._step_detector.lead == id(optimizer):  # as in nearly all trainings
                self._end_step(now_ns)
            else:
                self._step_detector.updated(optimizer, now_ns)

    def steps_come_by_hand(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        if not self.has_steps_by_hand:
            self.has_steps_by_hand = True
            self._step_detector.forget()

    def epoch_changes(self) -> None:
        """Decide what is open, for an epoch begins or ends by hand."""
        self.phases.ends()
        self._step_detector.end_waiting()

    def finish(self) -> None:
        """Decide what is open: the training has ended."""
        self.phases.ends()
        if not self.has_steps_by_hand:
            self._step_detector.finish()
        self.pending.hold(self.pending.host_clock())
        # What is held of the program's classes keeps all its globals alive: a file among them would not be written.
        for held in (self._fast_path, self._confirmed, self.calls):
            held.clear()
