"""Seam: the outermost call of a module.

Modules call modules, hundreds a forward pass, so all but the outermost call must cost next to nothing
(benchmarks/seams.py).
"""

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FORWARD, FREE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Watch
    from training_profiler.instrumentation.loop_detection.loop_detector import Call, Inference


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Note outermost calls of ``torch.nn.Module``."""
    patches.replace(torch.nn.Module, "__call__", lambda original: _calling(watch, torch, original))


def _calling(watch: "Watch", torch: Any, original: Any) -> Any:
    """Return what takes the place of ``Module.__call__``."""
    gate, get_ident, is_compiling = watch.gate, threading.get_ident, watch.is_compiling
    outermost, ends = _outermost(watch, torch, original)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # In this order: what dynamo sees is a constant, and not a flag to guard on.
        if not is_compiling() and not gate.busy:
            return outermost(self, args, kwargs)
        return original(self, *args, **kwargs)

    def call_as_torch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What torch's own function does, without the frame that calling it would cost each module.
        if is_compiling() or gate.busy:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        # Nearly all outermost calls are usual ones; through outermost they would cost half as much again.
        inference = gate.training
        if inference is None or get_ident() != gate.thread or self._compiled_call_impl is not None:
            return outermost(self, args, kwargs)
        try:
            call = inference.usual_call_begins(self, sys._getframe(1).f_code)
        except Exception as error:
            watch.give_up(error)
            call = None
        if call is None:
            return outermost(self, args, kwargs)
        gate.busy, calls = FORWARD, inference.calls
        try:
            return self._call_impl(*args, **kwargs)
        finally:
            if call.is_plain and self.training and gate.training is inference and calls and calls[-1] is call:
                gate.busy = FREE
                calls.pop()
                inference.forward_ends()
            else:
                ends(inference, call, self)

    return call_as_torch if is_as_known(torch, original) else __call__


def _outermost(watch: "Watch", torch: Any, original: Any) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return what calls a module that is outermost, and what notes the end of such a call."""
    gate, get_ident = watch.gate, threading.get_ident

    def outermost(module: Any, args: Any, kwargs: Any) -> Any:
        inference = gate.training
        if inference is None or get_ident() != gate.thread:
            inference = watch.ready(is_likely=torch.is_grad_enabled())
            if inference is None:
                return original(module, *args, **kwargs)
        try:
            call = inference.call_begins(module, args, not is_compiled(module), sys._getframe(2))
        except Exception as error:
            watch.give_up(error)
            return original(module, *args, **kwargs)
        gate.busy = FREE if call.is_explored else FORWARD
        try:
            return original(module, *args, **kwargs)
        finally:
            ends(inference, call, module)

    def ends(inference: "Inference", call: "Call", module: Any) -> None:
        if watch.inference is inference:  # and no other thread was found to be the training's meanwhile
            gate.busy = FREE
        try:
            inference.call_ends(call, module)
        except Exception as error:
            watch.give_up(error)

    return outermost, ends


def is_compiled(module: Any) -> bool:
    """Return whether what ``module`` calls may be compiled code, of which nothing is to be looked at."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def is_as_known(torch: Any, replaced: Any) -> bool:
    """Return whether ``Module.__call__`` is the function of torch that does nothing but choose one of two others."""
    code = getattr(replaced, "__code__", None)
    names = ("_compiled_call_impl", "_call_impl")
    return (
        replaced is getattr(torch.nn.Module, "_wrapped_call_impl", None) and code is not None and code.co_names == names
    )
