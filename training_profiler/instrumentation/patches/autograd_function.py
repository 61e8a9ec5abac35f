"""Patch: executions of ``torch.autograd.Function``, whose forward runs without gradients although it has some.

An adjoint method calls the model there. Nothing is recorded here: module calls inside are one forward pass.
"""

import functools
import itertools
from threading import get_ident
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Mark outermost executions on the training thread."""
    owner = torch.autograd.Function
    apply = vars(owner)["apply"]
    function = getattr(apply, "__func__", apply)  # since torch 2.14 a method of C, called with the class
    patches.replace(owner, "apply", lambda _: classmethod(_marked(context, torch, function)))


def _marked(context: PatchContext, torch: Any, original: Any) -> Any:
    training_thread, is_compiling = context.training_thread, context.is_compiling
    is_grad_enabled, numbers = torch.is_grad_enabled, itertools.count(1)

    @functools.wraps(original)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(cls, *args, **kwargs)
        try:
            if (
                training_thread.busy_with
                or training_thread.function
                or (training_thread.ident and training_thread.ident != get_ident())
            ):
                return original(cls, *args, **kwargs)
            number = next(numbers)
            training_thread.function = number if is_grad_enabled() else -number
            try:
                return original(cls, *args, **kwargs)
            finally:
                training_thread.function = 0
        except BaseException as error:
            hide_our_frames(error)
            raise

    return apply
