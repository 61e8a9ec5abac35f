"""Outermost calls without gradients, and which calls of modules are one forward pass."""

from types import FrameType
from typing import Any

from training_profiler.instrumentation.loop_detection.detector_fields import DetectorFields
from training_profiler.instrumentation.loop_detection.evaluated_rows import CALLS
from training_profiler.instrumentation.loop_detection.modules import MethodFrames, depth_of, is_bare
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING, PendingEvents
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes
from training_profiler.recording.event_codes import time_only


class NoGradCalls(DetectorFields):
    """Records calls without gradients; most of them repeat the call before, as those of a model that acts."""

    pending: PendingEvents
    codes: SectionCodes
    _events: Any
    _methods: MethodFrames

    def _call_without_grad_begins(self, module: Any, caller: FrameType) -> ModuleCall:
        now_ns = self.pending.clock()
        code = self.phases.no_grad_call_begins(module, caller, now_ns)
        has_none = is_bare(module)
        is_part = has_none or self._is_same_forward(module, caller)
        call = ModuleCall(type(module), 0, code, has_grad=False)
        self._enter(call, code, now_ns, is_part)
        if not has_none and code == self.codes.no_grad:
            self.phases.may_repeat(call, caller.f_code, 0 if self.frame is None else depth_of(self.frame, caller))
        return call

    def _enter(self, call: ModuleCall, code: int, now_ns: int, is_part: bool) -> None:
        """Record the begin of ``call``; ``is_part`` says that it may go on with the span before."""
        if is_part and self.pending.ends_with(-code):
            self.pending.remove_last()
            call.begin_ns, call.code = 0, code
        else:
            call.begin_ns, call.code = now_ns, time_only(code) if is_part else code
            self._events.extend((now_ns, call.code))

    def repeated_call_begins(self, module: Any, caller: FrameType) -> ModuleCall | None:
        """Record a call without gradients that repeats an earlier one of the same run; return None for any other."""
        if self.is_shadowed or self.calls or self.update.open_code or self.phases.is_open:
            return None
        use = self.phases.repeated_use(module, caller)
        if use is None:
            return self._call_like_before(module, caller)
        if use.call is None or self._is_grad_enabled():
            return None
        if not module.training and not (use.is_evaluated and self.input_sizes.rows.calls >= CALLS):
            return None  # the sizes of the inputs are read
        call, now_ns = use.call, self.pending.clock()
        if not use.depth:
            self.frame = None
        self._enter(call, self.codes.no_grad, now_ns, use.depth > 0 and self._is_same_forward(module, caller))
        self.phases.repeats(use)
        self.calls.append(call)
        return call

    def _call_like_before(self, module: Any, caller: FrameType) -> ModuleCall | None:
        """Record the first call of a module in a run if it is like that before an earlier step; else return None."""
        use = self.phases.use_before(module, caller)
        if use is None or use.call is None or not module.training or self._is_grad_enabled():
            return None
        call, now_ns = use.call, self.pending.clock()
        self.phases.no_grad_call_begins(module, caller, now_ns)
        if not use.depth:
            self.frame = None
        self._enter(call, self.codes.no_grad, now_ns, use.depth > 0 and self._is_same_forward(module, caller))
        self.phases.may_repeat(call, caller.f_code, use.depth)
        self.calls.append(call)
        return call

    def repeated_call_ends(self, call: ModuleCall) -> bool:
        """Record the end of such a call; return whether its end needs nothing more than that."""
        if self.is_shadowed or self.phases.is_open or not self.phases.is_latest(call):
            return False
        if len(self.pending.events) + 2 > MAX_PENDING:
            return False
        self.calls.pop()
        self.phases.no_grad_call_ends(self.pending.record(-call.code))
        return True

    def _is_same_forward(self, module: Any, frame: FrameType) -> bool:
        """Return whether the call belongs to the same forward pass as the one before.

        It does if one method of a module calls several modules, each once, e.g. in a policy that is not called itself.
        """
        caller = self._methods.outermost(frame)
        if caller is None:
            self.frame = None
            return False
        if caller == self.frame and id(module) not in self._called_in_frame:
            self._called_in_frame.add(id(module))
            return True
        self.frame = caller
        self._called_in_frame = {id(module)}
        return False
