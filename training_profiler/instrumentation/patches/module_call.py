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
    from training_profiler.instrumentation.instrumentation import Instrumentation
    from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector, ModuleCall


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Note outermost calls of ``torch.nn.Module``."""
    patches.replace(torch.nn.Module, "__call__", lambda original: _calling(watch, torch, original))


def _calling(watch: "Instrumentation", torch: Any, original: Any) -> Any:
    """Return what takes the place of ``Module.__call__``."""
    training_thread, get_ident, is_compiling = watch.training_thread, threading.get_ident, watch.is_compiling
    outermost, ends = _outermost(watch, torch, original)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # In this order: what dynamo sees is a constant, and not a flag to guard on.
        if not is_compiling() and not training_thread.busy:
            return outermost(self, args, kwargs)
        return original(self, *args, **kwargs)

    def call_as_torch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What torch's own function does, without the frame that calling it would cost each module.
        if is_compiling() or training_thread.busy:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        # Nearly all outermost calls are usual ones; through outermost they would cost half as much again.
        detector = training_thread.training
        if detector is None or get_ident() != training_thread.thread or self._compiled_call_impl is not None:
            return outermost(self, args, kwargs)
        try:
            call = detector.fast_path_call_begins(self, sys._getframe(1).f_code)
        except Exception as error:
            watch.give_up(error)
            call = None
        if call is None:
            return outermost(self, args, kwargs)
        training_thread.busy, calls = FORWARD, detector.calls
        try:
            return self._call_impl(*args, **kwargs)
        finally:
            if call.is_plain and self.training and training_thread.training is detector and calls and calls[-1] is call:
                training_thread.busy = FREE
                calls.pop()
                detector.forward_ends()
            else:
                ends(detector, call, self)

    return call_as_torch if is_as_known(torch, original) else __call__


def _outermost(watch: "Instrumentation", torch: Any, original: Any) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return what calls a module that is outermost, and what notes the end of such a call."""
    training_thread, get_ident = watch.training_thread, threading.get_ident

    def outermost(module: Any, args: Any, kwargs: Any) -> Any:
        detector = training_thread.training
        if detector is None or get_ident() != training_thread.thread:
            detector = watch.ready(is_likely=torch.is_grad_enabled())
            if detector is None:
                return original(module, *args, **kwargs)
        try:
            call = detector.call_begins(module, args, not is_compiled(module), sys._getframe(2))
        except Exception as error:
            watch.give_up(error)
            return original(module, *args, **kwargs)
        training_thread.busy = FREE if call.is_explored else FORWARD
        try:
            return original(module, *args, **kwargs)
        finally:
            ends(detector, call, module)

    def ends(detector: "LoopDetector", call: "ModuleCall", module: Any) -> None:
        if watch.detector is detector:  # and no other thread was found to be the training's meanwhile
            training_thread.busy = FREE
        try:
            detector.call_ends(call, module)
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
