"""Seam: moving averages of the weights."""

from typing import TYPE_CHECKING, Any

from training_profiler.instrument.patching import Patches
from training_profiler.instrument.spans import booked

if TYPE_CHECKING:
    from training_profiler.instrument.watch import Watch


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Book ``AveragedModel.update_parameters`` under ``ema_update``."""
    patches.replace(
        torch.optim.swa_utils.AveragedModel, "update_parameters", booked(watch, lambda codes: codes.averaging)
    )
