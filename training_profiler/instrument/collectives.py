"""Seam: collectives and barriers that Python code calls."""

from typing import TYPE_CHECKING, Any, Final

from training_profiler.instrument.patching import Patches
from training_profiler.instrument.spans import booked

if TYPE_CHECKING:
    from training_profiler.instrument.watch import Watch

NAMES: Final = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
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
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Book them under ``synchronization``, also inside of forward and backward passes."""
    if not torch.distributed.is_available():
        return
    package, module = torch.distributed, torch.distributed.distributed_c10d
    for name in NAMES:
        if hasattr(module, name):
            patches.replace(module, name, booked(watch, lambda codes: codes.synchronization, is_anywhere=True))
            patches.repeat(module, package, name)
