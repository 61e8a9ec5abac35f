"""Patch: the outermost call of a module.

A forward pass calls hundreds of modules inside one another, so inner calls must cost almost nothing
(benchmarks/patches.py).
"""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.fronts import MODULE
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall, inputs_of
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FORWARD, FREE
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record outermost calls of ``torch.nn.Module``."""
    original = torch.nn.Module.__call__
    outermost, ends = _outermost(context, torch, original)
    is_known = is_known_call(torch, original)
    patches.replace(torch.nn.Module, "__call__", lambda _: _recorded(context, original, is_known, outermost, ends))
    if is_known:
        context.fronts.offer_attribute(patches, torch.nn.Module, "__call__", MODULE, ends)
        context.after_import("torch._dynamo.variables.nn_module", functools.partial(_inline, patches, torch), patches)


def _inline(patches: Patches, torch: Any, module: str) -> None:
    """Have dynamo inline ``forward`` at once, as it does where it finds torch's own function."""
    if hasattr(sys.modules[module], "unpatched_nn_module_call"):  # private: may be gone
        call = patches.replaced(torch.nn.Module, "__call__")[1]
        patches.replace(sys.modules[module], "unpatched_nn_module_call", lambda _: call)


def _recorded(
    context: PatchContext,
    original: Any,
    is_known: bool,
    outermost: Callable[..., Any],
    ends: Callable[..., None],
) -> Any:
    """Return the replacement of ``Module.__call__``, which ``is_known_call`` knows or not."""
    training_thread, is_compiling, frame_of = context.training_thread, context.is_compiling, sys._getframe

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # is_compiling comes first: for dynamo it is a constant, while busy_with would need a guard.
        if is_compiling():
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs) if training_thread.busy_with else outermost(self, args, kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    def call_as_torch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A copy of torch's own function. Calling that would cost each module another frame. Without keywords, a call
        # needs no dictionary for them.
        if is_compiling():
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        try:
            if training_thread.busy_with:
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*args, **kwargs)
                return self._call_impl(*args, **kwargs) if kwargs else self._call_impl(*args)
            detector, call = training_thread.confirmed_detector, None
            if detector is not None and training_thread.ident == get_ident() and self._compiled_call_impl is None:
                try:  # as nearly all outermost calls
                    call = detector.usual_call_begins(self, args, kwargs, frame_of(1), training_thread.function)
                except Exception as error:
                    context.on_error(error)
            if detector is None or call is None:
                return outermost(self, args, kwargs)
            training_thread.busy_with = FORWARD
            try:
                return self._call_impl(*args, **kwargs) if kwargs else self._call_impl(*args)
            finally:
                ends(detector, call, self)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return _named(call_as_torch if is_known else __call__, original)


def _named(replacement: Any, original: Any) -> Any:
    """Return ``replacement`` with the signature and source of the original, under the name at which pickle finds it."""
    functools.update_wrapper(replacement, original, updated=())
    replacement.__name__, replacement.__qualname__ = "__call__", "Module.__call__"
    replacement.__module__ = "torch.nn.modules.module"
    return replacement


def _outermost(context: PatchContext, torch: Any, original: Any) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return a function that makes and records an outermost call, and one that records its end."""
    training_thread = context.training_thread

    def outermost(module: Any, args: Any, kwargs: Any) -> Any:
        if torch.jit.is_tracing():  # by a function that the program has imported before the patches
            return original(module, *args, **kwargs)
        detector = training_thread.confirmed_detector
        if detector is None or get_ident() != training_thread.ident:
            is_module_call = torch.is_grad_enabled() or training_thread.function > 0
            detector = context.current_detector(is_module_call)
            if detector is None:
                return original(module, *args, **kwargs)
        try:
            function, inputs = training_thread.function, inputs_of(args, kwargs)
            call = detector.call_begins(module, inputs, not is_compiled(module), sys._getframe(2), function)
        except Exception as error:
            context.on_error(error)
            return original(module, *args, **kwargs)
        training_thread.busy_with = FREE if call.is_explored else FORWARD
        try:
            return original(module, *args, **kwargs)
        finally:
            ends(detector, call, module)

    def ends(detector: LoopDetector, call: ModuleCall, module: Any) -> None:
        if context.detector is detector:  # otherwise another thread has become the training thread meanwhile
            training_thread.busy_with = FREE
        try:
            calls = detector.calls
            if call.is_plain and calls and calls[-1] is call and module.training:
                calls.pop()
                detector.forward_ends()
            elif not detector.repeated_call_ends(call):
                detector.call_ends(call, module)
        except Exception as error:
            context.on_error(error)

    return outermost, ends


def is_compiled(module: Any) -> bool:
    """Return whether ``module`` may run compiled code, which patches cannot follow."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def is_known_call(torch: Any, original: Any) -> bool:
    """Return whether ``Module.__call__`` is torch's own and only chooses between its two implementations."""
    code = getattr(original, "__code__", None)
    names = ("_compiled_call_impl", "_call_impl")
    return (
        original is getattr(torch.nn.Module, "_wrapped_call_impl", None) and code is not None and code.co_names == names
    )
