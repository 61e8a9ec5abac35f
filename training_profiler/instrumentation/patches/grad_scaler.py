"""Seam: gradient scaling of mixed precision."""

import functools
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.loop_detection.section_codes import time_only
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FREE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Book what a GradScaler does as time of ``optimizer_step``; the update, where it is not skipped, has its seam."""
    training_thread, is_compiling = watch.training_thread, watch.is_compiling
    is_inside = False

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            if is_compiling():
                return original(*args, **kwargs)
            detector = watch.detector
            if detector is None or training_thread.busy != FREE or is_inside or not training_thread.is_current():
                return original(*args, **kwargs)
            watch.has_scaler = True
            code = time_only(detector.codes.optimizer)
            detector.pending.note(code)
            is_inside = True
            try:
                return original(*args, **kwargs)
            finally:
                is_inside = False
                detector.pending.note(-code)

        return call

    for name in ("scale", "unscale_", "step", "update"):
        patches.replace(torch.amp.GradScaler, name, make)
