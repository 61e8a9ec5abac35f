"""Seam: saving, by torch, safetensors and torch.distributed.checkpoint."""

import sys
from typing import TYPE_CHECKING, Any, Final

from training_profiler.instrument.patching import Patches
from training_profiler.instrument.spans import booked

if TYPE_CHECKING:
    from training_profiler.instrument.watch import Watch

LATER: Final = {
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint": ("save", "async_save"),
}


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Book them under ``checkpointing``; modules that are not imported yet follow when they are."""
    book = booked(watch, lambda codes: codes.checkpoint, ends_evaluation=True)
    patches.replace(torch.serialization, "save", book)
    patches.repeat(torch.serialization, torch, "save")

    def replace(name: str) -> None:
        module = sys.modules[name]
        for function in LATER[name]:
            if hasattr(module, function):
                patches.replace(module, function, book)

    for name in LATER:
        watch.after_import(name, replace, patches)
