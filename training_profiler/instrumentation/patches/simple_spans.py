"""Patch: functions whose calls are simply spans of a section, one row each, and moving tensors to a device."""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from training_profiler.base.backends import BACKENDS
from training_profiler.base.sections import BATCH_NORM_UPDATE, CHECKPOINTING, EMA_UPDATE, METRICS_COMPUTATION
from training_profiler.instrumentation.context import FREE, OTHER_PATCH, PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches


class SimpleSpan(NamedTuple):
    """Where functions are, and the section that their calls belong to."""

    owner: str  # a module, or a class in one
    functions: tuple[str, ...]
    section: str
    also_in: str | None = None  # the package that has the same functions under its own name
    is_optional: bool = False  # the module may be imported later, or never
    ends_evaluation: bool = False  # a call is not part of the evaluation before it


def _checkpoint(owner: str, *functions: str, **rest: Any) -> SimpleSpan:
    return SimpleSpan(owner, functions, CHECKPOINTING, ends_evaluation=True, **rest)


# The name of the patch in reports, and its functions.
SIMPLE_SPANS: Final[dict[str, tuple[SimpleSpan, ...]]] = {
    "gradient norms": (
        SimpleSpan(
            "torch.nn.utils.clip_grad",
            ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"),
            METRICS_COMPUTATION,
            also_in="torch.nn.utils",
        ),
    ),
    "weight averaging": (
        SimpleSpan("torch.optim.swa_utils.AveragedModel", ("update_parameters",), EMA_UPDATE),
        SimpleSpan("torch.optim.swa_utils", ("update_bn",), BATCH_NORM_UPDATE, ends_evaluation=True),
    ),
    "checkpoints": (
        _checkpoint("torch.serialization", "save", also_in="torch"),
        _checkpoint("safetensors.torch", "save_file", "save_model", is_optional=True),
        _checkpoint("torch.distributed.checkpoint", "save", "async_save", is_optional=True),
    ),
}


def install(spans: tuple[SimpleSpan, ...], patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record the calls of all functions in ``spans``; optional modules are patched once they are imported.

    Raises:
        AttributeError: this version of torch has none of the functions of a row.
    """
    for span in spans:
        make = functools.partial(recorded_as, context, span.section, span.ends_evaluation)
        if span.is_optional:
            replace = functools.partial(_replace_if_imported, span, patches, make)
            context.after_import(span.owner, replace, patches)
        elif not _replace(span, patches, make, _at(torch, span.owner), _at(torch, span.also_in)):
            raise AttributeError(f"{span.owner} has none of {', '.join(span.functions)}")


def _replace(span: SimpleSpan, patches: Patches, make: Callable[[Any], Any], owner: Any, package: Any) -> bool:
    """Replace the functions of ``span`` that exist; return whether there are any."""
    is_found = False
    for name in span.functions:
        if hasattr(owner, name):
            patches.replace(owner, name, make)
            if package is not None:
                patches.repeat(owner, package, name)
        elif hasattr(package, name):  # the module has it under a private name
            patches.replace(package, name, make)
        else:
            continue
        is_found = True
    return is_found


def _replace_if_imported(span: SimpleSpan, patches: Patches, make: Callable[[Any], Any], module: str) -> None:
    _replace(span, patches, make, sys.modules[module], None)


def _at(torch: Any, path: str | None) -> Any:
    """Return what is at ``path``, which begins with "torch"; None for no path."""
    return None if path is None else functools.reduce(getattr, path.split(".")[1:], torch)


def recorded_as(context: PatchContext, section: str, ends_evaluation: bool, original: Any) -> Any:
    """Return ``original``, whose calls on the training thread are spans of ``section``, and may end an evaluation."""

    def code_of(detector: LoopDetector, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        if ends_evaluation and detector.phases.is_unresolved:
            detector.phases.checkpoint_begins()
        return detector.codes.of(section)

    return context.spans(original, FREE, OTHER_PATCH, code_of)


def install_transfers(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record ``to`` and ``cuda`` as ``data_transfer`` if they name a device. A new dtype alone is not a transfer."""
    device_kinds = (str, torch.device, int, torch.Tensor)

    def code_of(
        detector: LoopDetector, args: tuple[Any, ...], kwargs: dict[str, Any], *, must_name_device: bool
    ) -> int:
        if must_name_device:
            is_named = bool(len(args) > 1 and isinstance(args[1], device_kinds))
            if not (is_named or kwargs.get("device") is not None or "tensor" in kwargs):
                return 0
        update = detector.update
        # In an update, a closure moves batches; others move a learning rate, or whether a gradient is finite.
        is_of_update = update.is_scaling or (context.open_updates.open and not update.has_closures)
        is_recorded = not (is_of_update or context.is_tracing()) and context.training_thread.is_current()
        return detector.codes.data_transfer if is_recorded else 0

    def make(owner: Any, name: str, original: Any) -> Any:
        # Dynamo recognizes methods of tensors by name only.
        method = name if owner is torch.Tensor else ""
        code = functools.partial(code_of, must_name_device=name == "to")
        replacement = context.spans(original, FREE, OTHER_PATCH, code, method)
        # So that it can be pickled by name: methods in C have no module of their own.
        replacement.__module__, replacement.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
        return replacement

    for owner in (torch.Tensor, torch.nn.Module):
        for name in ("to", *(backend.kind for backend in BACKENDS)):
            if hasattr(owner, name):
                patches.replace(owner, name, functools.partial(make, owner, name))
