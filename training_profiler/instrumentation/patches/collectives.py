"""Patch: collectives and barriers called from Python, and waiting for asynchronous ones."""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patches import sync_points
from training_profiler.instrumentation.patches.sync_points import FUNCTIONAL, replace_all, restore_dynamo_table
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import COLLECTIVE
from training_profiler.recording.event_codes import time_only
from training_profiler.recording.tracebacks import hide_our_frames

NAMES: Final = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)
ALWAYS_ASYNC: Final = ("batch_isend_irecv", "irecv", "isend")  # they return an object to wait for


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record them as ``synchronization``, also inside forward and backward passes.

    An asynchronous call counts where it is waited for. Starting it only adds time.
    """
    if not torch.distributed.is_available():
        return
    module = torch.distributed.distributed_c10d
    is_compiling = context.is_compiling
    originals = {}

    def make(name: str, original: Any) -> Any:
        inner = original
        if name in sync_points.SYNCHRONIZING:
            inner = sync_points.recorded(context, module, name, original)
        position = sync_points.parameter_positions(original).get("async_op", sys.maxsize)
        is_async = _always if name in ALWAYS_ASYNC else functools.partial(_is_async, position)
        replacement = _recorded(context, inner, is_async, is_compiling)
        originals[replacement] = original
        return replacement

    replace_all(patches, torch, (*NAMES, *ALWAYS_ASYNC), make)
    work = getattr(module, "Work", None)
    if hasattr(work, "wait"):
        patches.replace(work, "wait", lambda original: _recorded(context, original, _never, is_compiling))

    def replace_functional(name: str) -> None:
        restore_dynamo_table(sys.modules[name], originals)
        if hasattr(sys.modules[name], "wait_tensor"):
            patches.replace(sys.modules[name], "wait_tensor", make_wait)

    def make_wait(original: Any) -> Any:
        # A compiler calls it with tensors that stand for others.
        return _recorded(context, original, _never, lambda: is_compiling() or context.is_tracing())

    context.after_import(FUNCTIONAL, replace_functional, patches)


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _is_async(position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("async_op") or (len(args) > position and args[position]))


def _recorded(
    context: PatchContext,
    original: Any,
    is_async: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    is_compiling: Callable[[], bool],
) -> Any:
    """Return ``original`` wrapped so that outermost calls on the training thread are spans."""
    training_thread = context.training_thread

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            detector = training_thread.confirmed_detector or context.detector
            if detector is None or training_thread.busy_with >= COLLECTIVE or get_ident() != training_thread.ident:
                return original(*args, **kwargs)
            code = detector.codes.synchronization
            try:
                if is_async(args, kwargs):
                    code = time_only(code)
                detector.pending.record(code)
            except Exception as error:
                context.on_error(error)
                return original(*args, **kwargs)
            busy_before, training_thread.busy_with = training_thread.busy_with, COLLECTIVE
            try:
                return original(*args, **kwargs)
            finally:
                training_thread.busy_with = busy_before
                detector.pending.record(-code)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return call
