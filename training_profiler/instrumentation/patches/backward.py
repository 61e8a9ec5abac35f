"""Patch: gradients, computed by ``backward`` or by ``torch.autograd.grad``."""

import functools
import sys
from threading import get_ident
from types import FrameType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.fronts import BACKWARD as GRADIENTS
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.instrumentation.training_thread import BACKWARD, FORWARD, FREE, TrainingThread
from training_profiler.recording.tracebacks import hide_our_frames

KEEPS_GRAPH: Final = 2  # where torch.autograd.backward has retain_graph
CREATES_GRAPH: Final = {True: 3, False: 4}  # where create_graph is passed, of backward and of grad


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


def _begins(
    context: PatchContext, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool, frame: FrameType
) -> tuple[LoopDetector, int] | None:
    """Record the begin of a gradient that ``frame`` computes, if it is one of the training's.

    Return the detector, and the kind of call that the training thread was in.
    """
    training_thread, captures = context.training_thread, context.captures
    if captures.under_way:
        capture = captures.on_this_thread()
        if capture is not None:
            if trains:
                capture.gradients_begin()
            return None
    at = CREATES_GRAPH[trains]
    creates_graph = args[at] if len(args) > at else kwargs.get("create_graph")
    if creates_graph is True or context.unused_graph is not None:
        detector = context.detector
        if detector is not None and get_ident() == training_thread.ident:
            context.gradient_begins(detector.updates, creates_graph is True)
    if training_thread.busy_with > FORWARD or (not trains and context.is_tracing()):
        return None
    detector = training_thread.confirmed_detector
    if detector is None or get_ident() != training_thread.ident:
        detector = context.confirm_training()
        if detector is None:
            return None
    if trains and detector.calls:
        detector.trains_within()
        training_thread.busy_with = FREE
    if detector.inferred is not None:
        look_for_update(context, detector, args, kwargs, trains)
    keeps_graph = args[KEEPS_GRAPH] if len(args) > KEEPS_GRAPH else kwargs.get("retain_graph")
    if trains and (keeps_graph or context.updates_at_kept is not None):
        context.note_backward(detector.updates, bool(keeps_graph) and not creates_graph)
    if context.backward_watch is not None:
        context.backward_watch.backward_begins(args, kwargs, frame, trains)
    detector.backward_begins()
    busy_before, training_thread.busy_with = training_thread.busy_with, BACKWARD
    return detector, busy_before


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record outermost backward passes. Calls inside one, such as a recomputed forward pass, are part of it."""
    # Tensor.backward looks the function up here. A gradient inside a forward pass, as for forces, trains nothing.
    patches.replace(torch.autograd, "backward", functools.partial(_computing, context, trains=True))
    patches.replace(torch.autograd, "grad", functools.partial(_computing, context, trains=False))


def _computing(context: PatchContext, original: Any, trains: bool) -> Any:
    is_compiling, computed = context.is_compiling, _recorded(context, original, trains)
    if trains:
        ended = functools.partial(_ends, context.training_thread, FREE)
        computed = context.fronts.in_front_of(GRADIENTS, original, computed, ended)

    @functools.wraps(original)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            return computed(*args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return hidden_from_warnings(gradient)


def _recorded(context: PatchContext, original: Any, trains: bool) -> Any:
    """Return a function that computes gradients and records that, to be called by the replacement of ``original``."""
    training_thread, frame_of = context.training_thread, sys._getframe

    def recorded(*args: Any, **kwargs: Any) -> Any:
        begun = None
        try:
            begun = _begins(context, args, kwargs, trains, frame_of(2))
        except Exception as error:
            context.on_error(error)
        if begun is None:
            return original(*args, **kwargs)
        detector, busy_before = begun
        try:
            return original(*args, **kwargs)
        finally:
            try:
                _ends(training_thread, busy_before, detector)
            except Exception as error:
                context.on_error(error)

    return hidden_from_warnings(recorded)


def _ends(training_thread: TrainingThread, busy_before: int, detector: LoopDetector) -> None:
    training_thread.busy_with = busy_before
    detector.backward_ends()
