"""Calls of modules on the training thread: which are forward passes, and which are the trainer itself."""

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.instrument.codes import Codes, uncounted
from training_profiler.instrument.evaluation import Evaluation
from training_profiler.instrument.methods import MethodFrames
from training_profiler.instrument.tape import Tape
from training_profiler.instrument.trainable import Trainable, is_bare
from training_profiler.instrument.update import Update

MOST_USUAL: Final = 1000
DRIVER_DEPTH: Final = 3  # how deep a trainer that is a module may hold the model it trains


class Call:
    """An outermost module call under way."""

    __slots__ = (
        "around",
        "begin_ns",
        "caller",
        "code",
        "has_grad",
        "is_bare",
        "is_driver",
        "is_explored",
        "is_plain",
        "kind",
    )

    def __init__(self, kind: type, begin_ns: int, code: int, is_explored: bool = False, has_grad: bool = True) -> None:
        self.kind = kind
        self.begin_ns = begin_ns  # of its span; 0 where it extends the one before
        self.code = code  # of its span
        self.is_explored = is_explored  # what it calls is looked at, for it may be a trainer that holds the model
        self.has_grad = has_grad
        self.is_bare = False
        self.is_driver = False
        self.is_plain = False  # nothing but the end of its span is to be noted when it ends
        self.around: tuple[tuple[int, int] | None, set[int]] = (None, set())  # the method it is called from
        self.caller: CodeType | None = None  # code of a plain function that calls it again and again


class Calls:
    """Tells forward passes from outermost calls of modules, and when the training loop begins."""

    def __init__(self, tape: Tape, codes: Codes, module_class: type, is_grad_enabled: Callable[[], bool]) -> None:
        self.tape = tape
        self.codes = codes
        self._trainable = Trainable()
        self.evaluation = Evaluation(tape, codes, self._trainable.was_trained)
        self.update = Update(tape, codes.optimizer)
        self.calls: list[Call] = []  # under way, the outermost first
        self.loop_begin_ns: int | None = None
        self._loop_from_ns: int | None = None  # the same as far as is known, while calls are looked into
        self._is_grad_enabled = is_grad_enabled
        self.forward_begins: Callable[[], None]
        self.forward_ends: Callable[[], None]
        self._bare_code = uncounted(codes.forward)
        self._usual: dict[int, Call] = {}  # those that come again and again, by id of the module
        self._proven: set[type] = set()  # classes of which a call came to its end without training anything
        self._methods = MethodFrames(module_class)
        self._seen_in_frame: set[int] = set()
        self.frame: tuple[int, int] | None = None  # the method whose calls are one forward pass

    def usual_call_begins(self, module: Any, caller: CodeType) -> Call | None:
        """Note an outermost call if it is one that the same plain function makes step after step; None if it is not.

        That needs no further thought, and here is what two calls of nearly every step cost.
        """
        call = self._usual.get(id(module))
        if (
            call is None
            or call.caller is not caller
            or call.kind is not type(module)
            or self.evaluation.is_unsettled
            or self.update.open_code
            or not self._is_grad_enabled()
        ):
            return None
        events, code = self.tape.events, self.codes.forward
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
            call.begin_ns = self.tape.note(call.code)
        self.calls.append(call)
        return call

    def call_begins(self, module: Any, inputs: tuple[Any, ...], may_explore: bool, caller: FrameType) -> Call:
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

    def _call_without_grad_begins(self, module: Any, caller: FrameType) -> Call:
        now_ns = self.tape.clock()
        code = self.evaluation.call_begins(id(module), now_ns)
        if is_bare(module) or self._is_same_forward(module, caller):
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
            self._training_goes_on(tape.host_clock())
        if goes_on or not is_trainable:
            code = uncounted(code)
        call = Call(kind, tape.note(code), code, is_explored)
        call.around = (self.frame, self._seen_in_frame)
        if not is_explored:
            self._may_come_again(call, module, frame, is_trainable)
        return call

    def _may_come_again(self, call: Call, module: Any, frame: FrameType, is_trainable: bool) -> None:
        """Remember a call from a plain function, of a module in train mode or of a loss, for when it comes again."""
        call.is_bare = not module._modules and not module._parameters
        if call.is_bare or (is_trainable and self.frame is None and module.training):
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
            self.frame, self._seen_in_frame = call.around
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
            call.is_driver, call.is_plain = True, False
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
            self.frame = None
            return False
        if caller == self.frame and id(module) not in self._seen_in_frame:
            self._seen_in_frame.add(id(module))
            return True
        self.frame = caller
        self._seen_in_frame = {id(module)}
        return False

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
