"""What seams have in common that book a call as a span and infer nothing from it."""

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training_profiler.instrument.gate import OTHER_SEAM

if TYPE_CHECKING:
    from training_profiler.instrument.codes import Codes
    from training_profiler.instrument.watch import Watch


def booked(watch: "Watch", code_of: Callable[["Codes"], int], ends_evaluation: bool = False) -> Callable[[Any], Any]:
    """Return what makes a function into one whose calls on the training thread are spans.

    Args:
        watch: tells whether this is the training thread.
        code_of: the span's code.
        ends_evaluation: whether it is no part of an evaluation it follows.
    """
    gate, is_compiling, get_ident = watch.gate, watch.is_compiling, threading.get_ident

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            inference = gate.training or watch.inference
            if inference is None or gate.busy or get_ident() != gate.thread:
                return original(*args, **kwargs)
            code = code_of(inference.codes)
            try:
                if ends_evaluation and inference.evaluation.is_unsettled:
                    inference.evaluation.checkpoint_begins()
                inference.tape.note(code)
            except Exception as error:
                watch.give_up(error)
                return original(*args, **kwargs)
            busy_before, gate.busy = gate.busy, OTHER_SEAM
            try:
                return original(*args, **kwargs)
            finally:
                gate.busy = busy_before
                inference.tape.note(-code)

        return call

    return make
