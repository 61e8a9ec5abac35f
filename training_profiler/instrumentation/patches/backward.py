"""Seam: computing gradients, by ``backward`` or by ``torch.autograd.grad``."""

import functools
import threading
from typing import TYPE_CHECKING, Any

from training_profiler.instrumentation.patching import Patches, unseen
from training_profiler.instrumentation.training_thread import BACKWARD, FORWARD, FREE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Watch


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Note outermost backward passes; what runs inside of one, such as a recomputed forward pass, is part of it."""
    gate, get_ident = watch.gate, threading.get_ident
    is_compiling = watch.is_compiling

    def make(original: Any, trains: bool) -> Any:
        @functools.wraps(original)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or gate.busy > FORWARD or (not trains and watch.is_tracing()):
                return original(*args, **kwargs)
            inference = gate.training
            if inference is None or get_ident() != gate.thread:
                inference = watch.training()
                if inference is None:
                    return original(*args, **kwargs)
            try:
                if trains and inference.calls:
                    inference.trains_within()
                    gate.busy = FREE
                inference.backward_begins()
            except Exception as error:
                watch.give_up(error)
                return original(*args, **kwargs)
            busy_before, gate.busy = gate.busy, BACKWARD
            try:
                return original(*args, **kwargs)
            finally:
                gate.busy = busy_before
                try:
                    inference.backward_ends()
                except Exception as error:
                    watch.give_up(error)

        return unseen(compute)

    # Tensor.backward looks the function up here. A gradient inside of a forward pass, as for forces, trains nothing.
    patches.replace(torch.autograd, "backward", lambda original: make(original, trains=True))
    patches.replace(torch.autograd, "grad", lambda original: make(original, trains=False))
