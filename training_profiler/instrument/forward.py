"""Seam: the outermost call of a module.

Modules call modules, hundreds a forward pass, so all but the outermost call must cost next to nothing
(benchmarks/seams.py).
"""

import sys
import threading
from typing import TYPE_CHECKING, Any

from training_profiler.instrument.gate import FORWARD, FREE
from training_profiler.instrument.patching import Patches

if TYPE_CHECKING:
    from training_profiler.instrument.watch import Watch


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Note outermost calls of ``torch.nn.Module``."""
    gate, get_ident = watch.gate, threading.get_ident
    original: Any = None
    is_known = False
    is_compiling = watch.is_compiling

    def outermost(module: Any, args: Any, kwargs: Any) -> Any:
        inference = gate.training
        if inference is None or get_ident() != gate.thread:
            inference = watch.ready(is_likely=torch.is_grad_enabled())
            if inference is None:
                return original(module, *args, **kwargs)
        try:
            caller = sys._getframe(2)
            call = inference.usual_call_begins(module, caller.f_code)
            is_usual = call is not None
            if call is None:
                call = inference.call_begins(module, args, not is_compiled(module), caller)
        except Exception as error:
            watch.give_up(error)
            return original(module, *args, **kwargs)
        gate.busy = FREE if call.is_explored else FORWARD
        try:
            if not is_known or module._compiled_call_impl is not None:
                return original(module, *args, **kwargs)
            return module._call_impl(*args, **kwargs)
        finally:
            if watch.inference is inference:  # and no other thread was found to be the training's meanwhile
                gate.busy = FREE
            try:
                (inference.usual_call_ends if is_usual else inference.call_ends)(call, module)
            except Exception as error:
                watch.give_up(error)

    def make(replaced: Any) -> Any:
        nonlocal original, is_known
        original, is_known = replaced, is_as_known(torch, replaced)

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # In this order: what dynamo sees is a constant, and not a flag to guard on.
            if not is_compiling() and not gate.busy:
                return outermost(self, args, kwargs)
            return original(self, *args, **kwargs)

        def call_as_torch(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and not gate.busy:
                return outermost(self, args, kwargs)
            # What torch's own function does, without the frame that calling it would cost each module.
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)

        return call_as_torch if is_known else __call__

    def is_compiled(module: Any) -> bool:
        """Return whether what ``module`` calls may be compiled code, of which nothing is to be looked at."""
        return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None

    patches.replace(torch.nn.Module, "__call__", make)


def is_as_known(torch: Any, replaced: Any) -> bool:
    """Return whether ``Module.__call__`` is the function of torch that does nothing but choose one of two others."""
    code = getattr(replaced, "__code__", None)
    names = ("_compiled_call_impl", "_call_impl")
    return (
        replaced is getattr(torch.nn.Module, "_wrapped_call_impl", None) and code is not None and code.co_names == names
    )
