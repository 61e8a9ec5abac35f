"""Seam: norms and clipping of gradients."""

from typing import TYPE_CHECKING, Any, Final

from training_profiler.instrument.patching import Patches
from training_profiler.instrument.spans import booked

if TYPE_CHECKING:
    from training_profiler.instrument.watch import Watch

NAMES: Final = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Book them under ``metrics_computation``."""
    package, module = torch.nn.utils, torch.nn.utils.clip_grad
    book = booked(watch, lambda codes: codes.metrics)
    for name in NAMES:
        if hasattr(module, name):
            patches.replace(module, name, book)
            patches.repeat(module, package, name)
        elif hasattr(package, name):  # the module has it under a private name
            patches.replace(package, name, book)
