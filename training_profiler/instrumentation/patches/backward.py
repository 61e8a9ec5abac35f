"""Patch: gradients, computed by ``backward`` or by ``torch.autograd.grad``."""

import functools
import inspect
import sys
from threading import get_ident
from types import FrameType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.instrumentation.training_thread import BACKWARD, FORWARD, FREE
from training_profiler.recording.tracebacks import hide_our_frames

KEEPS_GRAPH: Final = 2  # where torch.autograd.backward has retain_graph; create_graph follows
CREATES_GRAPH: Final = {True: KEEPS_GRAPH + 1, False: 4}  # where create_graph is passed, of backward and of grad


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
    note_graph(context, args, kwargs, trains)
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
    if trains:
        context.note_backward(detector.updates, keeps_graph(args))
    if context.backward_watch is not None:
        context.backward_watch.backward_begins(args, kwargs, frame, trains)
    detector.backward_begins()
    busy_before, training_thread.busy_with = training_thread.busy_with, BACKWARD
    return detector, busy_before


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record outermost backward passes. Calls inside one, such as a recomputed forward pass, are part of it."""
    # Tensor.backward looks the function up here. A gradient inside a forward pass, as for forces, trains nothing.
    patches.replace(torch.autograd, "backward", functools.partial(_training, context))
    patches.replace(torch.autograd, "grad", functools.partial(_of_any_arguments, context, trains=False))


def _arguments_of(function: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the name, the kind and the default of each; None if that is not known."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return None
    return [(each.name, each.kind, each.default) for each in parameters]


def _training(context: PatchContext, original: Any) -> Any:
    captured, is_compiling, frame_of = context.captures.under_way, context.is_compiling, sys._getframe
    begins, ends, any_backward = context.fast_path.backward_begins, context.fast_path.backward_ends, _any(original)

    # Arguments with names, because a tuple and a dictionary of them take longer than the rest in short steps.
    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Any:
        if is_compiling():
            return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        try:
            try:
                detector = None if captured else begins(retain_graph, create_graph)
            except Exception as error:
                context.on_error(error)
                return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if detector is None:
                args = (tensors, grad_tensors, retain_graph, create_graph)
                kwargs = {"grad_variables": grad_variables, "inputs": inputs}
                return any_backward(context, args, kwargs, True, frame_of(1))
            try:
                return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            finally:
                try:
                    ends(detector)
                except Exception as error:
                    context.on_error(error)
        except BaseException as error:
            hide_our_frames(error)
            raise

    if _arguments_of(original) != _arguments_of(backward):  # not torch's own, or that of another version
        return _of_any_arguments(context, original, trains=True)
    return hidden_from_warnings(backward)


def _of_any_arguments(context: PatchContext, original: Any, trains: bool) -> Any:
    is_compiling, any_gradient, frame_of = context.is_compiling, _any(original), sys._getframe

    @functools.wraps(original)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            return any_gradient(context, args, kwargs, trains, frame_of(1))
        except BaseException as error:
            hide_our_frames(error)
            raise

    return hidden_from_warnings(gradient)


def _any(original: Any) -> Any:
    """Return a function that computes and records a gradient of any kind."""

    def compute(
        context: PatchContext, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool, frame: FrameType
    ) -> Any:
        training_thread, begun = context.training_thread, None
        try:
            begun = _begins(context, args, kwargs, trains, frame)
        except Exception as error:
            context.on_error(error)
        if begun is None:
            return original(*args, **kwargs)
        detector, busy_before = begun
        try:
            return original(*args, **kwargs)
        finally:
            training_thread.busy_with = busy_before
            try:
                detector.backward_ends()
            except Exception as error:
                context.on_error(error)

    return hidden_from_warnings(compute)
