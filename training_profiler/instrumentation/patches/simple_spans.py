"""Patch: functions whose calls are simply spans of a section. One row per function."""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, NamedTuple

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import OTHER_PATCH
from training_profiler.recording.tracebacks import hide_our_frames
from training_profiler.tables.sections import (
    BATCH_NORM_UPDATE,
    CHECKPOINTING,
    EMA_UPDATE,
    METRICS_COMPUTATION,
)


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
        SimpleSpan(
            "torch.optim.swa_utils.AveragedModel",
            ("update_parameters",),
            EMA_UPDATE,
        ),
        SimpleSpan(
            "torch.optim.swa_utils",
            ("update_bn",),
            BATCH_NORM_UPDATE,
            ends_evaluation=True,
        ),
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
        make = recorded_as(context, span.section, span.ends_evaluation)
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
    if path is None:
        return None
    return functools.reduce(getattr, path.split(".")[1:], torch)


def recorded_as(context: PatchContext, section: str, ends_evaluation: bool = False) -> Callable[[Any], Any]:
    """Return a wrapper for functions whose calls on the training thread are spans.

    Args:
        context: of the patches.
        section: name of the section.
        ends_evaluation: whether a call is not part of the evaluation before it.
    """
    training_thread, is_compiling = context.training_thread, context.is_compiling

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            try:
                detector = training_thread.confirmed_detector or context.detector
                if detector is None or training_thread.busy_with or get_ident() != training_thread.ident:
                    return original(*args, **kwargs)
                code = detector.codes.by_name[section]
                try:
                    if ends_evaluation and detector.phases.is_unresolved:
                        detector.phases.checkpoint_begins()
                    detector.pending.record(code)
                except Exception as error:
                    context.on_error(error)
                    return original(*args, **kwargs)
                busy_before, training_thread.busy_with = training_thread.busy_with, OTHER_PATCH
                try:
                    return original(*args, **kwargs)
                finally:
                    training_thread.busy_with = busy_before
                    detector.pending.record(-code)
            except BaseException as error:
                hide_our_frames(error)
                raise

        return call

    return make
