"""Seam: moving tensors and modules to a device."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training_profiler.device.backends import BACKENDS
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import FREE, OTHER_PATCH

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Book ``to`` and ``cuda`` under ``data_transfer`` where they name a device; another dtype alone is no transfer."""
    training_thread = watch.training_thread
    is_compiling = watch.is_compiling
    device_kinds = (str, torch.device, int, torch.Tensor)

    def names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return bool(args and isinstance(args[0], device_kinds)) or kwargs.get("device") is not None or "other" in kwargs

    def make(counts: Callable[[tuple[Any, ...], dict[str, Any]], bool], by_name: str | None) -> Callable[[Any], Any]:
        def make_one(original: Any) -> Any:
            @functools.wraps(original)
            def move(self: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    if by_name:  # dynamo knows what a tensor does by the method's name alone
                        return getattr(self, by_name)(*args, **kwargs)
                    return original(self, *args, **kwargs)
                if training_thread.busy:
                    return original(self, *args, **kwargs)
                detector = watch.detector
                if (
                    detector is None
                    or not training_thread.is_current()
                    or not counts(args, kwargs)
                    or watch.is_tracing()
                ):
                    return original(self, *args, **kwargs)
                begin_ns = detector.pending.clock()
                training_thread.busy = OTHER_PATCH
                try:
                    return original(self, *args, **kwargs)
                finally:
                    training_thread.busy = FREE
                    detector.pending.note_span(begin_ns, detector.codes.data_transfer)

            return move

        return make_one

    def always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True

    for owner in (torch.Tensor, torch.nn.Module):
        for name, counts in (("to", names_device), *((kind, always) for kind in _kinds(owner))):
            patches.replace(owner, name, make(counts, name if owner is torch.Tensor else None))


def _kinds(owner: Any) -> list[str]:
    """Return the methods that move to one kind of device, such as ``cuda``."""
    return [backend.kind for backend in BACKENDS if hasattr(owner, backend.kind)]
