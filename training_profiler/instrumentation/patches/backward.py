"""Patch: gradients, computed by ``backward`` or by ``torch.autograd.grad``."""

import functools
import sys
from threading import get_ident
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.instrumentation.training_thread import BACKWARD, FORWARD, FREE
from training_profiler.recording.tracebacks import hide_our_frames

KEEPS_GRAPH = 2  # where Tensor.backward passes retain_graph to torch.autograd.backward; create_graph follows
CREATES_GRAPH = {True: KEEPS_GRAPH + 1, False: 4}  # where create_graph is passed, of backward and of grad


def note_graph(context: PatchContext, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
    """Show the context a gradient that has a graph of its own, or that may use the graph of an earlier one."""
    try:
        at = CREATES_GRAPH[trains]
        creates = (args[at] if len(args) > at else kwargs.get("create_graph")) is True
        if creates or context.unused_graph is not None:
            detector = context.detector
            if detector is not None and get_ident() == context.training_thread.ident:
                context.gradient_begins(detector.updates, creates)
    except Exception as error:
        context.on_error(error)


def keeps_graph(args: tuple[Any, ...]) -> bool:
    """Return whether a backward pass keeps its graph, and makes none of its gradients."""
    return len(args) > KEEPS_GRAPH + 1 and bool(args[KEEPS_GRAPH]) and not args[KEEPS_GRAPH + 1]


def look_for_update(
    context: PatchContext, detector: LoopDetector, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool
) -> None:
    """Find an update that the program made itself, unless it has an optimizer of torch or a failure shows it cannot."""
    try:
        if not context.has_optimizer and not detector.updates:  # it may be older than the patches
            detector.look_for_update(args, kwargs, trains)
            return
    except Exception:  # of tensors that are not torch's own
        detector.use_inferred_updates(None)
        return
    detector.use_inferred_updates(None)


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record outermost backward passes. Calls inside one, such as a recomputed forward pass, are part of it."""
    training_thread, captures = context.training_thread, context.captures
    is_compiling = context.is_compiling

    def make(original: Any, trains: bool) -> Any:
        @functools.wraps(original)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            try:
                if captures.under_way:
                    capture = captures.on_this_thread()
                    if capture is not None:
                        if trains:
                            capture.gradients_begin()
                        return original(*args, **kwargs)
                note_graph(context, args, kwargs, trains)
                if training_thread.busy_with > FORWARD or (not trains and context.is_tracing()):
                    return original(*args, **kwargs)
                detector = training_thread.confirmed_detector
                if detector is None or get_ident() != training_thread.ident:
                    detector = context.confirm_training()
                    if detector is None:
                        return original(*args, **kwargs)
                try:
                    if trains and detector.calls:
                        detector.trains_within()
                        training_thread.busy_with = FREE
                    if detector.inferred is not None:
                        look_for_update(context, detector, args, kwargs, trains)
                    if trains:
                        context.note_backward(detector.updates, keeps_graph(args))
                    if context.backward_watch is not None:
                        context.backward_watch.backward_begins(args, kwargs, sys._getframe(1), trains)
                    detector.backward_begins()
                except Exception as error:
                    context.on_error(error)
                    return original(*args, **kwargs)
                busy_before, training_thread.busy_with = training_thread.busy_with, BACKWARD
                try:
                    return original(*args, **kwargs)
                finally:
                    training_thread.busy_with = busy_before
                    try:
                        detector.backward_ends()
                    except Exception as error:
                        context.on_error(error)
            except BaseException as error:
                hide_our_frames(error)
                raise

        return hidden_from_warnings(compute)

    # Tensor.backward looks the function up here. A gradient inside a forward pass, as for forces, trains nothing.
    patches.replace(torch.autograd, "backward", lambda original: make(original, trains=True))
    patches.replace(torch.autograd, "grad", lambda original: make(original, trains=False))
