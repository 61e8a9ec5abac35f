"""Seam: computing gradients, by ``backward`` or by ``torch.autograd.grad``."""

import functools
import threading
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.patching import Patches, unseen
from training_profiler.instrumentation.training_thread import BACKWARD, FORWARD, FREE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Note outermost backward passes; what runs inside of one, such as a recomputed forward pass, is part of it."""
    training_thread, get_ident = watch.training_thread, threading.get_ident
    is_compiling = watch.is_compiling

    def make(original: Any, trains: bool) -> Any:
        @functools.wraps(original)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or training_thread.busy > FORWARD or (not trains and watch.is_tracing()):
                return original(*args, **kwargs)
            detector = training_thread.training
            if detector is None or get_ident() != training_thread.thread:
                detector = watch.training()
                if detector is None:
                    return original(*args, **kwargs)
            try:
                if trains and detector.calls:
                    detector.trains_within()
                    training_thread.busy = FREE
                detector.backward_begins()
            except Exception as error:
                watch.give_up(error)
                return original(*args, **kwargs)
            busy_before, training_thread.busy = training_thread.busy, BACKWARD
            try:
                return original(*args, **kwargs)
            finally:
                training_thread.busy = busy_before
                try:
                    detector.backward_ends()
                except Exception as error:
                    watch.give_up(error)

        return unseen(compute)

    # Tensor.backward looks the function up here. A gradient inside of a forward pass, as for forces, trains nothing.
    patches.replace(torch.autograd, "backward", lambda original: make(original, trains=True))
    patches.replace(torch.autograd, "grad", lambda original: make(original, trains=False))
