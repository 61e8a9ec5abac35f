"""Patch: moving tensors and modules to a device."""

import functools
from collections.abc import Callable
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FREE, OTHER_PATCH
from training_profiler.recording.tracebacks import hide_our_frames
from training_profiler.tables.backends import BACKENDS


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record ``to`` and ``cuda`` as ``data_transfer`` if they name a device. A new dtype alone is not a transfer."""
    training_thread, is_compiling = context.training_thread, context.is_compiling
    device_kinds = (str, torch.device, int, torch.Tensor)

    def names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return (
            bool(args and isinstance(args[0], device_kinds)) or kwargs.get("device") is not None or "tensor" in kwargs
        )

    def make(
        is_transfer: Callable[[tuple[Any, ...], dict[str, Any]], bool], method_name: str | None
    ) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def move(self: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    if method_name:  # dynamo recognizes methods of tensors by name only
                        return getattr(self, method_name)(*args, **kwargs)
                    return original(self, *args, **kwargs)
                try:
                    is_recorded = not training_thread.busy_with and is_transfer(args, kwargs)
                    detector = _begin(context) if is_recorded else None
                    if detector is None:
                        return original(self, *args, **kwargs)
                    try:
                        return original(self, *args, **kwargs)
                    finally:
                        training_thread.busy_with = FREE
                        detector.transfer_ends()
                except BaseException as error:
                    hide_our_frames(error)
                    raise

            return move

        return wrap

    def always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True

    for owner in (torch.Tensor, torch.nn.Module):
        for name, is_transfer in (("to", names_device), *((kind, always) for kind in _kinds(owner))):
            patches.replace(
                owner, name, _named(owner, name, make(is_transfer, name if owner is torch.Tensor else None))
            )


def _begin(context: PatchContext) -> LoopDetector | None:
    """Record the begin of a transfer, and return the detector that has done it; None where it is not the training's."""
    training_thread, detector = context.training_thread, context.detector
    if context.is_tracing() or detector is None or not training_thread.is_current():
        return None
    update = detector.update
    # In an update, a closure moves batches; others move a learning rate, or whether a gradient is finite.
    if update.is_scaling or (context.open_updates.open and not update.has_closures):
        return None
    detector.transfer_begins()
    training_thread.busy_with = OTHER_PATCH
    return detector


def _named(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``wrap``, whose results can be pickled by name; methods in C have no module of their own."""

    def make(original: Any) -> Any:
        replacement = wrap(original)
        replacement.__module__, replacement.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
        return replacement

    return make


def _kinds(owner: Any) -> list[str]:
    """Return the methods that move to one kind of device, such as ``cuda``."""
    return [backend.kind for backend in BACKENDS if hasattr(owner, backend.kind)]
