"""Seam: collectives and barriers that Python code calls, and waiting for those that it had begun."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from training_profiler.instrumentation.loop_detection.section_codes import time_only
from training_profiler.instrumentation.patches import sync_points
from training_profiler.instrumentation.patching import Patches
from training_profiler.instrumentation.training_thread import COLLECTIVE

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation

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
BEGUN_ONLY: Final = ("batch_isend_irecv", "irecv", "isend")  # they return what is to be waited for
FUNCTIONAL: Final = "torch.distributed._functional_collectives"  # private: may be gone


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Book them under ``synchronization``, also inside of forward and backward passes.

    One that is begun and waited for later counts where it is waited for; beginning it is time alone.
    """
    if not torch.distributed.is_available():
        return
    module = torch.distributed.distributed_c10d
    is_compiling = watch.is_compiling
    originals = {}

    def make(name: str, original: Any) -> Any:
        inner = original
        if name in sync_points.BY_HOST + sync_points.BY_TENSORS:
            inner = sync_points.noted(lambda: watch.meetings, module, name, original, is_compiling)
        place = sync_points.places_of(original).get("async_op", sys.maxsize)
        is_begun_only = _always if name in BEGUN_ONLY else functools.partial(_is_async, place)
        replacement = _booked(watch, inner, is_begun_only, is_compiling)
        originals[replacement] = original
        return replacement

    replace_all(patches, torch, (*NAMES, *BEGUN_ONLY), make)
    work = getattr(module, "Work", None)
    if hasattr(work, "wait"):
        patches.replace(work, "wait", lambda original: _booked(watch, original, _never, is_compiling))

    def functional(name: str) -> None:
        give_back_to_dynamo(sys.modules[name], originals)
        if hasattr(sys.modules[name], "wait_tensor"):
            patches.replace(sys.modules[name], "wait_tensor", make_wait)

    def make_wait(original: Any) -> Any:
        # A compiler calls it with tensors that only stand for others.
        return _booked(watch, original, _never, lambda: is_compiling() or watch.is_tracing())

    watch.after_import(FUNCTIONAL, functional, patches)


def replace_all(patches: Patches, torch: Any, names: tuple[str, ...], make: Callable[[str, Any], Any]) -> None:
    """Replace what there is of these functions, under both paths."""
    package, module = torch.distributed, torch.distributed.distributed_c10d
    for name in names:
        if hasattr(module, name):
            patches.replace(module, name, functools.partial(make, name))
            patches.repeat(module, package, name)


def give_back_to_dynamo(module: Any, originals: dict[Any, Any]) -> None:
    """Let torch's table of collectives that can be compiled name torch's own, though they were replaced before."""
    for name, value in list(vars(module).items()):
        if callable(value) and _is_hashable(value) and value in originals:
            setattr(module, name, originals[value])
    remaps = getattr(module, "traceable_collective_remaps", None)
    if isinstance(remaps, dict):
        for function in [function for function in remaps if function in originals]:
            remaps[originals[function]] = remaps.pop(function)


def _is_hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _is_async(place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("async_op") or (len(args) > place and args[place]))


def _booked(
    watch: "Instrumentation",
    original: Any,
    is_begun_only: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    is_nothing: Callable[[], bool],
) -> Any:
    """Return ``original`` as a function whose calls on the training thread are spans, one within another is none."""
    training_thread, get_ident = watch.training_thread, threading.get_ident

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_nothing():
            return original(*args, **kwargs)
        detector = training_thread.training or watch.detector
        if detector is None or training_thread.busy == COLLECTIVE or get_ident() != training_thread.thread:
            return original(*args, **kwargs)
        code = detector.codes.synchronization
        try:
            if is_begun_only(args, kwargs):
                code = time_only(code)
            detector.pending.note(code)
        except Exception as error:
            watch.give_up(error)
            return original(*args, **kwargs)
        busy_before, training_thread.busy = training_thread.busy, COLLECTIVE
        try:
            return original(*args, **kwargs)
        finally:
            training_thread.busy = busy_before
            detector.pending.note(-code)

    return call
