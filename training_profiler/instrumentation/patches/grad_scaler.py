"""Seam: gradient scaling of mixed precision."""

import functools
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.loop_detection.section_codes import uncounted
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FREE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Watch


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Book what a GradScaler does as time of ``optimizer_step``; the update, where it is not skipped, has its seam."""
    gate, is_compiling = watch.gate, watch.is_compiling
    is_inside = False

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            if is_compiling():
                return original(*args, **kwargs)
            inference = watch.inference
            if inference is None or gate.busy != FREE or is_inside or not gate.is_mine():
                return original(*args, **kwargs)
            watch.has_scaler = True
            code = uncounted(inference.codes.optimizer)
            inference.tape.note(code)
            is_inside = True
            try:
                return original(*args, **kwargs)
            finally:
                is_inside = False
                inference.tape.note(-code)

        return call

    for name in ("scale", "unscale_", "step", "update"):
        patches.replace(torch.amp.GradScaler, name, make)
