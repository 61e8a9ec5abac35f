"""What the training thread does, told by the seams as it happens: sections go to the tape, steps to the session."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.instrument.call import Call
from training_profiler.instrument.codes import Codes, uncounted
from training_profiler.instrument.evaluation import Evaluation
from training_profiler.instrument.methods import MethodFrames
from training_profiler.instrument.passes import Pass
from training_profiler.instrument.rounds import Rounds
from training_profiler.instrument.tape import Tape
from training_profiler.instrument.trainable import Trainable, is_bare
from training_profiler.instrument.update import Update

MOST_USUAL: Final = 1000
DRIVER_DEPTH: Final = 3  # how deep a trainer that is a module may hold the model it trains


class Inference:
    """Tells sections and steps from fetches, calls, backward passes and updates of the training thread."""

    def __init__(
        self,
        tape: Tape,
        codes: Codes,
        module_class: type,
        is_grad_enabled: Callable[[], bool],
        end_step: Callable[[int], None],
    ) -> None:
        self.tape = tape
        self.codes = codes
        self.evaluation = Evaluation(tape, codes)
        self.update = Update(tape, codes.optimizer)
        self.backwards = 0
        self.updates = 0
        self.has_steps_by_hand = False
        self.loop_begin_ns: int | None = None
        self._loop_from_ns: int | None = None  # the same as far as is known, while calls are looked into
        self._is_grad_enabled = is_grad_enabled
        self._rounds = Rounds(end_step)
        tape.step_end_ns = lambda: self._rounds.pending_ns
        self._trainable = Trainable()
        self._methods = MethodFrames(module_class)
        self.calls: list[Call] = []  # under way, the outermost first
        self._is_in_backward = False
        self._bare_code = uncounted(codes.forward)
        self._usual: dict[int, Call] = {}  # by id of the module
        self._proven: set[type] = set()  # classes of which a call came to its end without training anything
        self._seen_in_frame: set[int] = set()
        self._frame: tuple[int, int] | None = None  # the method whose calls are one forward pass

    @property
    def has_trained(self) -> bool:
        """Whether gradients were computed or parameters updated."""
        return self.backwards > 0 or self.updates > 0

    # Calls of modules

    def call_begins(self, module: Any, inputs: tuple[Any, ...], may_explore: bool) -> Call:
        """Note an outermost call of a module; its caller is three frames up."""
        frame = sys._getframe(3)
        if self.update.open_code:
            self.update.closure_begins()
        call = self._usual.get(id(module))
        # What the same plain function calls step after step needs no further thought.
        if (
            call is not None
            and call.caller is frame.f_code
            and call.kind is type(module)
            and not self.evaluation.is_unsettled
            and self._is_grad_enabled()
        ):
            self._frame = self._frame if call.is_bare else None
            self._call_again(call)
        elif self._is_grad_enabled():
            is_input_trained = any(getattr(one, "requires_grad", False) for one in inputs)
            call = self._grad_call_begins(module, may_explore, frame, is_input_trained)
        else:
            call = self._call_without_grad_begins(module)
        self.calls.append(call)
        return call

    def _call_again(self, call: Call) -> None:
        events, code = self.tape.events, self.codes.forward
        if call.is_bare and events and events[-1] == -code:
            del events[-2:]
            call.begin_ns, call.code = 0, code
        else:
            call.begin_ns = now_ns = self.tape.clock()
            call.code = self._bare_code if call.is_bare else code
            events.extend((now_ns, call.code))

    def _call_without_grad_begins(self, module: Any) -> Call:
        now_ns = self.tape.clock()
        code = self.evaluation.call_begins(self._trainable.was_trained(module), now_ns)
        if is_bare(module):
            if self.tape.ends_with(-code):
                self.tape.take_back()
                return Call(type(module), 0, code, has_grad=False)
            code = uncounted(code)
        self.tape.events.extend((now_ns, code))
        return Call(type(module), now_ns, code, has_grad=False)

    def _grad_call_begins(self, module: Any, may_explore: bool, frame: FrameType, is_input_trained: bool) -> Call:
        tape, code, kind = self.tape, self.codes.forward, type(module)
        is_trainable = self._trainable.is_trainable(module)
        if is_input_trained and not is_trainable and not self._trainable.is_any and not is_bare(module):
            is_trainable = True  # what is trained is not a module: an image, say, by a frozen network
        goes_on = is_trainable and self._is_same_forward(module, frame)
        if (goes_on or not is_trainable) and tape.ends_with(-code):
            tape.take_back()
            call = Call(kind, 0, code)
            self._may_come_again(call, module, frame, is_trainable)
            return call
        is_explored = may_explore and kind not in self._proven and len(self.calls) < DRIVER_DEPTH
        if is_trainable and module.training and self.evaluation.is_unsettled and not is_explored:
            self._training_goes_on(tape.clock())
        if goes_on or not is_trainable:
            code = uncounted(code)
        call = Call(kind, tape.note(code), code, is_explored)
        call.around = (self._frame, self._seen_in_frame)
        if not is_explored:
            self._may_come_again(call, module, frame, is_trainable)
        return call

    def _may_come_again(self, call: Call, module: Any, frame: FrameType, is_trainable: bool) -> None:
        """Remember a call from a plain function, of a module in train mode or of a loss, for when it comes again."""
        call.is_bare = not module._modules and not module._parameters
        if call.is_bare or (is_trainable and self._frame is None and module.training):
            if len(self._usual) >= MOST_USUAL:
                self._usual.clear()
            call.caller = frame.f_code
            self._usual[id(module)] = call

    def call_ends(self, call: Call, module: Any) -> None:
        """Note that an outermost call has ended, or raised."""
        calls = self.calls
        if calls and calls[-1] is call:
            calls.pop()
        elif call in calls:
            del calls[calls.index(call) :]
        if call.is_driver:
            call.is_driver = False
            return
        if call.is_explored:
            self._proven.add(call.kind)
            self._forget_inner(call)
            self._frame, self._seen_in_frame = call.around
            if call.code == self.codes.forward and module.training and self.evaluation.is_unsettled:
                self._training_goes_on(call.begin_ns)
            if self._loop_from_ns is not None:
                self._loop_begins(call.begin_ns)
        now_ns = self.tape.clock()
        self.tape.events.extend((now_ns, -call.code))
        if not call.has_grad:
            self.evaluation.call_ends(now_ns)
        elif not module.training:
            self.evaluation.cautious_call_ends(now_ns)

    def _forget_inner(self, call: Call) -> None:
        """Remove what was noted inside of a call that turned out to be a forward pass: the next is not looked into."""
        own = (self.codes.forward, self.codes.no_grad, self.codes.data_transfer)
        codes = {*own, *map(uncounted, own)}
        self.tape.remove_since(call.begin_ns, call.code, codes | {-code for code in codes})

    def trains_within(self) -> None:
        """Note that inside of the calls under way something happens that only a training loop does.

        So they are no forward passes: the outermost is the trainer, and what it calls are.
        """
        calls = self.calls
        for call in calls:
            call.is_driver = True
            if call.begin_ns:
                self.tape.remove(call.begin_ns, call.code)
            else:  # it had extended a span
                self.tape.note(-call.code)
        calls.clear()
        if self._loop_from_ns is not None:
            self._loop_begins(self._loop_from_ns)

    def _is_same_forward(self, module: Any, frame: FrameType) -> bool:
        """Return whether the call belongs to the same forward pass as the one before.

        So it does where one method of a module calls several others, each once: a policy that is never called itself.
        """
        caller = self._methods.outermost(frame)
        if caller is None:
            self._frame = None
            return False
        if caller == self._frame and id(module) not in self._seen_in_frame:
            self._seen_in_frame.add(id(module))
            return True
        self._frame = caller
        self._seen_in_frame = {id(module)}
        return False

    # Fetches

    def fetch_begins(self, iterator: Any, is_first: bool) -> Pass:
        """Note that a batch is about to be fetched from ``iterator``."""
        one = self.evaluation.passes.of(iterator, is_first)
        now_ns = self.tape.clock()
        self._frame = None
        self.evaluation.fetch_begins(one, self._is_grad_enabled(), now_ns)
        self.tape.events.extend((now_ns, self.codes.data_loading))
        if not one.fetches:
            self.tape.events.extend((now_ns, self.codes.first_fetch))
        return one

    def fetch_ends(self, one: Pass) -> None:
        """Note that the batch is there, or that fetching it raised."""
        now_ns = self.tape.clock()
        if not one.fetches:
            self.tape.events.extend((now_ns, -self.codes.first_fetch))
        self.tape.events.extend((now_ns, -self.codes.data_loading))
        self.evaluation.fetch_ends(one, now_ns)
        if self.tape.is_too_long():
            self.tape.hold(now_ns)

    def fetch_fails(self, one: Pass, is_over: bool) -> None:
        """Note that there was no batch: the loader is empty (``is_over``), or fetching raised."""
        for code in (self.codes.first_fetch, self.codes.data_loading)[bool(one.fetches) :]:
            self.tape.cancel(code)
        if is_over:
            self.evaluation.pass_ends(one, self.tape.clock())

    # Gradients and updates

    def backward_begins(self) -> None:
        """Note that gradients begin to be computed."""
        self.backwards += 1
        self._frame = None
        now_ns = self.tape.clock()
        if self.update.open_code and not self._is_in_backward:
            self.update.closure_begins()
        self._is_in_backward = True
        if self.evaluation.is_unsettled:
            self._training_goes_on(now_ns)
        self.tape.note(self.codes.backward)

    def backward_ends(self) -> None:
        """Note that they are computed, or that it raised."""
        self._is_in_backward = False
        now_ns = self.tape.note(-self.codes.backward)
        if self.update.is_in_closure:
            self.update.closure_ends()
        if self.tape.is_too_long():  # nothing ever updates
            self.tape.hold(now_ns)

    def update_begins(self) -> None:
        """Note that an optimizer begins to update."""
        self._frame = None
        if self.evaluation.is_unsettled:
            self._training_goes_on(self.tape.clock())
        self.update.begins()

    def update_ends(self, optimizer: Any, has_updated: bool = True) -> None:
        """Note that it has, or that it found that it should not."""
        now_ns = self.update.ends()
        if not has_updated:
            return
        self.updates += 1
        self.evaluation.update_ends()
        if not self.has_steps_by_hand:
            self._rounds.updated(optimizer, now_ns)

    def steps_come_by_hand(self) -> None:
        """Leave the ends of steps to ``profile_step``."""
        if not self.has_steps_by_hand:
            self.has_steps_by_hand = True
            self._rounds.forget()

    def epoch_changes(self) -> None:
        """Decide what is open, for an epoch begins or ends by hand."""
        self.evaluation.ends()
        self._rounds.end_waiting()

    def finish(self) -> None:
        """Decide what is open: the training has ended."""
        self.evaluation.ends()
        if not self.has_steps_by_hand:
            self._rounds.finish()
        self.tape.hold(self.tape.clock())

    def _training_goes_on(self, now_ns: int) -> None:
        begin_ns = self.evaluation.training_goes_on(now_ns)
        if self.loop_begin_ns is None:
            self._loop_begins(begin_ns)

    def _loop_begins(self, begin_ns: int) -> None:
        """Note that the loop begins at ``begin_ns``, or with the outermost call under way if that is a forward pass."""
        self._loop_from_ns = begin_ns if self._loop_from_ns is None else min(begin_ns, self._loop_from_ns)
        if not self.calls:
            self.loop_begin_ns = self.tape.begin_loop(self._loop_from_ns)
            self._loop_from_ns = None
