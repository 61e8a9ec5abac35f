"""Patch: optimizer updates, by torch's own hooks, and clearing gradients."""

import functools
import importlib
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.fronts import AFTER_UPDATE, BEFORE_UPDATE, CLEARING
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.open_updates import OpenUpdates
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.instrumentation.training_thread import FETCH, FORWARD, FREE
from training_profiler.recording.tracebacks import hide_our_frames


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
    for owner in (module.Optimizer, torch.nn.Module):
        context.fronts.offer_attribute(patches, owner, "zero_grad", CLEARING)


def _put_hook(handle: Any, hook: Callable[..., None]) -> None:
    """Have ``hook`` called in place of what was registered, if that still is."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = hook


def _creating(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        context.note_optimizer()
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise
        context.calls.add_optimizer(self)
        context.optimizers.add(self)
        if context.detector is not None:
            context.later_optimizers.made(self, context.detector.updates)

    return hidden_from_warnings(__init__)


def _beginning(context: PatchContext, updates: OpenUpdates) -> Callable[..., None]:
    training_thread, captured = context.training_thread, context.captures.under_way
    is_compiling, frame_of = context.is_compiling, sys._getframe

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        try:
            detector, frame = training_thread.confirmed_detector, frame_of(1)
            if (
                detector is None
                or updates.open
                or detector.calls
                or captured
                or training_thread.busy_with == FETCH
                or training_thread.ident != get_ident()
            ):
                _any_update_begins(context, updates, optimizer, frame)
            else:
                updates.open.append((id(optimizer), id(frame), frame.f_code))
                detector.update_begins()
        except Exception as error:
            context.on_error(error)

    return begins


def _any_update_begins(context: PatchContext, updates: OpenUpdates, optimizer: Any, frame: FrameType) -> None:
    training_thread, captures = context.training_thread, context.captures
    if training_thread.busy_with == FETCH:
        return
    if captures.under_way:
        capture = captures.on_this_thread()
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


def _ending(context: PatchContext, updates: OpenUpdates) -> Callable[..., None]:
    training_thread, captured, is_compiling = context.training_thread, context.captures.under_way, context.is_compiling

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        try:
            detector = training_thread.confirmed_detector
            if (
                detector is None
                or captured
                or context.has_grad_scaler
                or training_thread.ident != get_ident()
                or len(updates.open) != 1
                or updates.open[0][0] != id(optimizer)
                or not updates.follows_backward(detector.backwards)
            ):
                _any_update_ends(context, updates, optimizer)
            else:
                updates.open.clear()
                detector.update_ends(optimizer)
        except Exception as error:
            context.on_error(error)

    return ends


def _any_update_ends(context: PatchContext, updates: OpenUpdates, optimizer: Any) -> None:
    training_thread, captures = context.training_thread, context.captures
    if captures.under_way:
        capture = captures.on_this_thread()
        if capture is not None:
            capture.update_ends(optimizer)
            return
    detector = training_thread.confirmed_detector
    if detector is None or get_ident() != training_thread.ident:
        return
    is_outermost = updates.end(optimizer)
    if is_outermost and not updates.follows_backward(detector.backwards) and _changes_nothing(optimizer):
        detector.drop_update()
    elif is_outermost:
        detector.update_ends(optimizer, not (context.has_grad_scaler and _was_skipped(optimizer)))
        if context.has_grad_scaler:
            detector.update.resume_scaling()


def _clearing(context: PatchContext, updates: OpenUpdates, is_of_optimizer: bool, original: Any) -> Any:
    is_compiling = context.is_compiling

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        has_arguments = args or kwargs
        if has_arguments:
            context.calls.add_zero_grad(*args, **kwargs)
        try:
            detector, code = None, 0
            try:
                detector, code = _clearing_begins(context, updates, is_of_optimizer)
            except Exception as error:
                context.on_error(error)
            if detector is None:
                return original(self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs) if has_arguments else original(self)
            finally:
                try:
                    detector.update.clearing_ends(code)
                except Exception as error:
                    context.on_error(error)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return zero_grad


def _clearing_begins(
    context: PatchContext, updates: OpenUpdates, is_of_optimizer: bool
) -> tuple[LoopDetector | None, int]:
    training_thread = context.training_thread
    detector = training_thread.confirmed_detector or context.detector
    if detector is None or updates.open or get_ident() != training_thread.ident or training_thread.busy_with > FORWARD:
        return None, 0
    if is_of_optimizer and detector.calls:
        detector.trains_within()
        training_thread.busy_with = FREE
    return detector, detector.update.clearing_begins()
