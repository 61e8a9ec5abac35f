"""Patch: gradient scaling of mixed precision."""

import functools
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FREE
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record the methods of GradScaler as time of ``optimizer_step``. The update itself has its own patch."""
    training_thread, is_compiling = context.training_thread, context.is_compiling
    is_inside = False

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            if is_compiling():
                return original(*args, **kwargs)
            try:
                detector = context.detector
                if (
                    detector is None
                    or training_thread.busy_with != FREE
                    or is_inside
                    or not training_thread.is_current()
                ):
                    return original(*args, **kwargs)
                context.note_grad_scaler()
                detector.update.scaling_begins()
                is_inside = True
                try:
                    return original(*args, **kwargs)
                finally:
                    is_inside = False
                    detector.update.scaling_ends()
            except BaseException as error:
                hide_our_frames(error)
                raise

        return call

    for name in ("scale", "unscale_", "step", "update"):
        patches.replace(torch.amp.GradScaler, name, make)
