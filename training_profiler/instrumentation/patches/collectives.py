"""Patches of distributed training: collectives and waiting for asynchronous ones, barriers, and DDP modules."""

import functools
import importlib
import inspect
import sys
import time
from typing import Any, Final

from training_profiler.instrumentation.context import COLLECTIVE, OTHER_PATCH, PatchContext
from training_profiler.instrumentation.ddp_statistics import SyncPoints
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.event_codes import time_only

ALWAYS_ASYNC: Final = ("batch_isend_irecv", "irecv", "isend")  # they return an object to wait for
FUNCTIONAL: Final = "torch.distributed._functional_collectives"  # private: may be gone
# The host waits in these for all ranks: in the first always, in the others if their tensors are on the CPU.
HOST_BLOCKING: Final = ("all_gather_object", "barrier", "monitored_barrier")
BLOCKING_ON_CPU_TENSORS: Final = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)
SYNCHRONIZING: Final = HOST_BLOCKING + BLOCKING_ON_CPU_TENSORS
NAMES: Final = (
    *SYNCHRONIZING,
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record them as ``synchronization``, also inside forward and backward passes.

    An asynchronous call counts where it is waited for. Starting it only adds time.
    """
    if not torch.distributed.is_available():
        return
    package, module = torch.distributed, torch.distributed.distributed_c10d
    originals = {}

    def make(name: str, original: Any) -> Any:
        position = parameter_positions(original).get("async_op", sys.maxsize)

        def code_of(detector: LoopDetector, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
            is_async = kwargs.get("async_op") or (len(args) > position and args[position])
            code = detector.codes.synchronization
            return time_only(code) if is_async or name in ALWAYS_ASYNC else code

        inner = recorded(context, module, name, original) if name in SYNCHRONIZING else original
        replacement = context.spans(inner, OTHER_PATCH, COLLECTIVE, code_of)
        originals[replacement] = original
        return replacement

    def make_wait(original: Any) -> Any:
        def code_of(detector: LoopDetector, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
            return 0 if context.is_tracing() else detector.codes.synchronization

        return context.spans(original, OTHER_PATCH, COLLECTIVE, code_of)

    for name in (*NAMES, *ALWAYS_ASYNC):
        if hasattr(module, name):
            patches.replace(module, name, functools.partial(make, name))
            patches.repeat(module, package, name)
    work = getattr(module, "Work", None)
    if hasattr(work, "wait"):
        patches.replace(work, "wait", make_wait)
    ddp = torch.nn.parallel.DistributedDataParallel
    if callable(getattr(ddp, "_sync_buffers", None)):  # private; its forward pass waits for those of rank 0
        patches.replace(ddp, "_sync_buffers", make_wait)

    def replace_functional(name: str) -> None:
        restore_dynamo_table(sys.modules[name], originals)
        if hasattr(sys.modules[name], "wait_tensor"):  # a compiler calls it with tensors that stand for others
            patches.replace(sys.modules[name], "wait_tensor", make_wait)

    context.after_import(FUNCTIONAL, replace_functional, patches)


def recorded(context: PatchContext, module: Any, name: str, original: Any) -> Any:
    """Return ``original``, the collective ``name`` of ``module``, wrapped to record the calls that are sync points.

    In these the host waits for all ranks.
    """
    positions = parameter_positions(original)
    if "group" not in positions:
        return original

    def argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = positions.get(name, len(args))
        return kwargs[name] if name in kwargs else args[position] if position < len(args) else None

    def is_sync_point(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        group = argument("group", args, kwargs)
        if argument("async_op", args, kwargs) or not (group is None or group is module.GroupMember.WORLD):
            return False
        if name in HOST_BLOCKING:
            return True
        tensor = args[0] if args else next(iter(kwargs.values()))
        tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
        return bool(tensor.is_cpu and tensor.numel())

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[SyncPoints, int, int] | None:
        try:
            number = context.sync_points.call_begins() if is_sync_point(args, kwargs) else None
        except Exception:  # torch itself will reject these arguments
            number = None
        return None if number is None else (context.sync_points, number, time.time_ns())

    def end(begun: tuple[SyncPoints, int, int], has_failed: bool) -> None:
        sync_points, number, enter_ns = begun
        sync_points.call_ends(number, None if has_failed else enter_ns)

    return context.between(original, begin, end)


def restore_dynamo_table(module: Any, originals: dict[Any, Any]) -> None:
    """Put torch's own functions back into its table of compilable collectives, which was filled with ours."""
    for name, value in list(vars(module).items()):
        if callable(value) and type(value).__hash__ is not None and value in originals:
            setattr(module, name, originals[value])
    remaps = getattr(module, "traceable_collective_remaps", None)
    if isinstance(remaps, dict):
        for function in [function for function in remaps if function in originals]:
            remaps[originals[function]] = remaps.pop(function)


def parameter_positions(function: Any) -> dict[str, int]:
    """Return the position of each parameter by name; empty if the signature is unknown."""
    try:
        return {name: position for position, name in enumerate(inspect.signature(function).parameters)}
    except (TypeError, ValueError):
        return {}


def install_ddp(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Register each DDP module, and read its statistics before its process group is destroyed."""
    if not torch.distributed.is_available():
        return

    has_search = False

    def add(ddp: Any, has_failed: bool) -> None:
        nonlocal has_search
        if not has_failed:
            context.add_ddp_module(ddp)
            context.calls.add_ddp(ddp)
            if ddp.find_unused_parameters and not has_search:
                has_search = True
                patches.replace(torch.distributed.Reducer, "prepare_for_backward", search)

    def search(original: Any) -> Any:
        def begin(args: tuple[Any, ...], _: dict[str, Any]) -> float | None:
            return time.perf_counter() if len(args) > 1 and args[1] else None  # from these outputs on

        def end(began_s: float, _: bool) -> None:
            context.gradient_sync.add_search(time.perf_counter() - began_s)

        return context.between(original, begin, end)

    def read(original: Any) -> Any:
        return context.between(original, lambda *call: context.gradient_sync.read(), lambda *call: None)

    module = importlib.import_module("torch.distributed.distributed_c10d")
    # Private, and the last call of __init__. A patch of __init__ itself would make its warnings point at our line.
    add_after = functools.partial(context.between, begin=lambda args, kwargs: args[0], end=add)
    patches.replace(torch.nn.parallel.DistributedDataParallel, "_ddp_init_helper", add_after)
    patches.replace(module, "destroy_process_group", read)
    patches.repeat(module, torch.distributed, "destroy_process_group")
