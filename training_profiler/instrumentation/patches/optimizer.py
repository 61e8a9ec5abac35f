"""Patches of updates: by torch's own hooks, clearing gradients, scaling them, and replays of CUDA graphs.

A replay runs no Python code of the step that was captured.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

from training_profiler.instrumentation.context import FETCH, FORWARD, FREE, OpenUpdates, PatchContext
from training_profiler.instrumentation.fronts import AFTER_UPDATE, BEFORE_UPDATE
from training_profiler.instrumentation.graph_captures import CapturedGraph
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings


def _was_skipped(optimizer: Any) -> bool:
    """Return whether a fused update did nothing because GradScaler found infinite gradients.

    Finding out on an accelerator would wait for the device, so updates there always count.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and found_inf.device.type == "cpu" and bool(found_inf.item())


def _changes_nothing(optimizer: Any) -> bool:
    """Return whether no parameter has a gradient, as in a loop that plots a schedule: torch's own then do nothing."""
    return type(optimizer).__module__.startswith("torch.optim.") and all(
        parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]
    )


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record updates and ``zero_grad``. Both hooks are called for every subclass of torch's Optimizer."""
    updates = context.open_updates
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes the attribute
    for kind, hook, register in (
        (BEFORE_UPDATE, _beginning(context, updates), module.register_optimizer_step_pre_hook),
        (AFTER_UPDATE, _ending(context, updates), module.register_optimizer_step_post_hook),
    ):
        handle = register(hook)
        patches.keep(handle.remove)
        context.fronts.offer(functools.partial(_put_hook, handle), kind, hook, hook)
    patches.replace(module.Optimizer, "__init__", functools.partial(_creating, context))
    patches.replace(module.Optimizer, "zero_grad", functools.partial(_clearing, context, updates, True))
    patches.replace(torch.nn.Module, "zero_grad", functools.partial(_clearing, context, updates, False))


def _put_hook(handle: Any, hook: Callable[..., None]) -> None:
    """Have ``hook`` called in place of what was registered, if that still is."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = hook


def _creating(context: PatchContext, original: Any) -> Any:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context.note_optimizer()
        return args[0]

    def end(optimizer: Any, has_failed: bool) -> None:
        if not has_failed:
            context.calls.add_optimizer(optimizer)
            context.optimizers.add(optimizer)
            if context.detector is not None:
                context.later_optimizers.made(optimizer, context.detector.updates)

    return hidden_from_warnings(context.between(original, begin, end))


def _beginning(context: PatchContext, updates: OpenUpdates) -> Callable[..., None]:
    training_thread, captures, is_compiling = context.training_thread, context.captures, context.is_compiling

    def begin(optimizer: Any, frame: FrameType) -> None:
        capture = captures.on_this_thread() if captures.under_way else None
        if capture is not None:
            capture.update_begins(optimizer)
            return
        detector = training_thread.confirmed_detector
        if detector is None or get_ident() != training_thread.ident:
            detector = context.confirm_training()
            if detector is None:
                context.count_update_on_other_thread()
                return
        is_outermost, had_failed = updates.begin(optimizer, frame)
        if had_failed:
            detector.update.end()
        if is_outermost:
            if detector.calls:
                detector.trains_within()
                training_thread.busy_with = FREE if training_thread.busy_with <= FORWARD else training_thread.busy_with
            detector.update_begins()

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            if not is_compiling() and training_thread.busy_with != FETCH:
                begin(optimizer, sys._getframe(1))
        except Exception as error:
            context.on_error(error)

    return begins


def _ending(context: PatchContext, updates: OpenUpdates) -> Callable[..., None]:
    training_thread, captures, is_compiling = context.training_thread, context.captures, context.is_compiling

    def end(optimizer: Any) -> None:
        capture = captures.on_this_thread() if captures.under_way else None
        if capture is not None:
            capture.update_ends(optimizer)
            return
        detector = training_thread.confirmed_detector
        if detector is None or get_ident() != training_thread.ident or not updates.end(optimizer):
            return
        if not updates.follows_backward(detector.backwards) and _changes_nothing(optimizer):
            detector.update.drop()
            return
        detector.update_ends(optimizer, not (context.has_grad_scaler and _was_skipped(optimizer)))
        if context.has_grad_scaler:
            detector.update.resume_scaling()

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            if not is_compiling():
                end(optimizer)
        except Exception as error:
            context.on_error(error)

    return ends


def _clearing(context: PatchContext, updates: OpenUpdates, is_of_optimizer: bool, original: Any) -> Any:
    training_thread = context.training_thread

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LoopDetector, int] | None:
        if len(args) > 1 or kwargs:
            context.calls.add_zero_grad(*args[1:], **kwargs)
        detector = training_thread.confirmed_detector or context.detector
        if (
            detector is None
            or updates.open
            or get_ident() != training_thread.ident
            or training_thread.busy_with > FORWARD
        ):
            return None
        if is_of_optimizer and detector.calls:
            detector.trains_within()
            training_thread.busy_with = FREE
        return detector, detector.update.clearing_begins()

    def end(begun: tuple[LoopDetector, int], has_failed: bool) -> None:
        begun[0].update.clearing_ends(begun[1])

    return context.between(original, begin, end)


def install_scaler(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record the methods of GradScaler as time of ``optimizer_step``. The update itself has its own patch."""

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoopDetector | None:
        detector, training_thread = context.detector, context.training_thread
        if (
            detector is None
            or training_thread.busy_with != FREE
            or detector.update.is_scaling
            or not training_thread.is_current()
        ):
            return None
        context.note_grad_scaler()
        detector.update.scaling_begins()
        return detector

    for name in ("scale", "unscale_", "step", "update"):
        make = functools.partial(context.between, begin=begin, end=lambda detector, _: detector.update.scaling_ends())
        patches.replace(torch.amp.GradScaler, name, make)


def install_replays(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record replays of graphs that train, and nothing that only happens in a capture, which executes nothing."""
    training_thread, captures = context.training_thread, context.captures

    def graph_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def capture_has_begun(graph: Any, has_failed: bool) -> None:
        if not has_failed:
            captures.begin(graph)
            training_thread.capture_begins()

    def capture_has_ended(graph: Any, has_failed: bool) -> None:
        training_thread.capture_ends(captures.end(graph, has_failed=has_failed))

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[CapturedGraph, LoopDetector] | None:
        graph = captures.training_graph(
            args[0]
        )  # compiled functions replay many graphs, none of which trains by itself
        detector = None if graph is None else _replay_begins(context, graph)
        return None if graph is None or detector is None else (graph, detector)

    def end(begun: tuple[CapturedGraph, LoopDetector], has_failed: bool) -> None:
        graph, detector = begun
        optimizers = [] if has_failed else graph.optimizers()
        if not optimizers:
            detector.update.end()
            return
        captures.note_replayed_update()
        for optimizer in optimizers:
            detector.update_ends(optimizer)

    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    if graph_class is not None:
        for name, before, after in (
            ("capture_begin", graph_of, capture_has_begun),
            ("capture_end", graph_of, capture_has_ended),
            ("replay", begin, end),
        ):
            patches.replace(graph_class, name, functools.partial(context.between, begin=before, end=after))


def _replay_begins(context: PatchContext, graph: CapturedGraph) -> LoopDetector | None:
    """Record the begin of a replay; return None if it is not recorded."""
    training_thread, updates = context.training_thread, context.open_updates
    capture = context.captures.on_this_thread()
    if capture is not None:
        capture.add(graph)
        return None
    if training_thread.busy_with == FETCH:
        return None
    detector = training_thread.confirmed_detector
    if detector is None or get_ident() != training_thread.ident:
        detector = context.confirm_training()
        if detector is None:
            if graph.optimizers():
                context.count_update_on_other_thread()
            return None
    if updates.open:
        if updates.is_running(sys._getframe()):  # an optimizer whose step is a replay
            return None
        detector.update.end()  # it raised
    if detector.calls:
        detector.trains_within()
        training_thread.busy_with = FREE if training_thread.busy_with <= FORWARD else training_thread.busy_with
    detector.update_begins()
    detector.update.replay_begins(detector.codes.replay)
    return detector
