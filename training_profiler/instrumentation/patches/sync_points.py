"""Patch: collectives in which the host waits for all ranks are recorded as sync points."""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import hide_our_frames

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


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record sync points alone; ``collectives.install`` records them together with the sections."""
    if not torch.distributed.is_available():
        return
    originals = {}

    def make(name: str, original: Any) -> Any:
        replacement = recorded(context, torch.distributed.distributed_c10d, name, original)
        originals[replacement] = original
        return replacement

    replace_all(patches, torch, SYNCHRONIZING, make)
    context.after_import(FUNCTIONAL, lambda name: restore_dynamo_table(sys.modules[name], originals), patches)


def recorded(context: PatchContext, module: Any, name: str, original: Any) -> Any:
    """Return ``original``, the collective ``name`` of ``module``, wrapped to record the calls that are sync points."""
    get_argument = _argument_of(original)
    if get_argument is None:
        return original
    is_compiling = context.is_compiling

    def is_sync_point(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        group = get_argument("group", args, kwargs)
        if get_argument("async_op", args, kwargs) or not (group is None or group is module.GroupMember.WORLD):
            return False
        if name in HOST_BLOCKING:
            return True
        tensor = args[0] if args else next(iter(kwargs.values()))
        tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
        return bool(tensor.is_cpu and tensor.numel())

    @functools.wraps(original)
    def synchronize(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            try:
                sync_points = context.sync_points
                number = sync_points.call_begins() if is_sync_point(args, kwargs) else None
            except Exception:  # torch itself will reject these arguments
                number = None
            if number is None:
                return original(*args, **kwargs)
            enter_ns: int | None = time.time_ns()
            try:
                return original(*args, **kwargs)
            except BaseException:
                enter_ns = None
                raise
            finally:
                sync_points.call_ends(number, enter_ns)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return synchronize


def replace_all(patches: Patches, torch: Any, names: tuple[str, ...], make: Callable[[str, Any], Any]) -> None:
    """Replace those of the functions that exist, under both their paths."""
    package, module = torch.distributed, torch.distributed.distributed_c10d
    for name in names:
        if hasattr(module, name):
            patches.replace(module, name, functools.partial(make, name))
            patches.repeat(module, package, name)


def restore_dynamo_table(module: Any, originals: dict[Any, Any]) -> None:
    """Put torch's own functions back into its table of compilable collectives, which was filled with ours."""
    for name, value in list(vars(module).items()):
        if callable(value) and _is_hashable(value) and value in originals:
            setattr(module, name, originals[value])
    remaps = getattr(module, "traceable_collective_remaps", None)
    if isinstance(remaps, dict):
        for function in [function for function in remaps if function in originals]:
            remaps[originals[function]] = remaps.pop(function)


def _is_hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def _argument_of(function: Any) -> Callable[[str, tuple[Any, ...], dict[str, Any]], Any] | None:
    """Return a function that finds an argument of ``function`` by name; None if it takes no process group."""
    positions = parameter_positions(function)
    if "group" not in positions:
        return None

    def argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        position = positions.get(name, len(args))
        return args[position] if position < len(args) else None

    return argument


def parameter_positions(function: Any) -> dict[str, int]:
    """Return the position of each parameter by name; empty if the signature is unknown."""
    try:
        return {name: position for position, name in enumerate(inspect.signature(function).parameters)}
    except (TypeError, ValueError):
        return {}
