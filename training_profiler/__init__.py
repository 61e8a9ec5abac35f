"""Where a PyTorch training's time goes, why, what that is worth, and what to change.

``RECTIFIED_FLOW_PROFILE=1`` switches it on; without it every name below does nothing and this import
loads neither torch nor numpy.

    from training_profiler import profile_section, profile_step, start_training_profiling

    start_training_profiling(log_every=50)
    for batch in loader:
        with profile_section("forward_pass"):
            loss = model(batch)
        ...
        profile_step()
"""

from training_profiler.switch import is_switched_on

TYPE_CHECKING = False  # typing itself takes longer to import than this package

if TYPE_CHECKING or is_switched_on():
    from training_profiler.api import (
        is_profiling_enabled,
        profile_dataloader,
        profile_epoch,
        profile_phase,
        profile_section,
        profile_step,
        snapshot,
        start_training_profiling,
        stop_training_profiling,
    )
else:
    from training_profiler.api_disabled import (
        is_profiling_enabled,
        profile_dataloader,
        profile_epoch,
        profile_phase,
        profile_section,
        profile_step,
        snapshot,
        start_training_profiling,
        stop_training_profiling,
    )

__version__ = "0.1.0"
__all__ = [
    "is_profiling_enabled",
    "profile_dataloader",
    "profile_epoch",
    "profile_phase",
    "profile_section",
    "profile_step",
    "snapshot",
    "start_training_profiling",
    "stop_training_profiling",
]
