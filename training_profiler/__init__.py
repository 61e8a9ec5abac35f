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

import gc

from training_profiler.base.switch import is_switched_on

TYPE_CHECKING = False  # typing itself takes longer to import than this package

if TYPE_CHECKING:
    from typing import Any

if TYPE_CHECKING or is_switched_on():
    # Modules are objects that stay. Collecting among those of torch while they are made takes a fifth of this import.
    _was_collecting = gc.isenabled()
    gc.disable()
    try:
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
        from training_profiler.bootstrap.training_profiler_hook import arm
    finally:
        if _was_collecting:
            gc.enable()
    if not TYPE_CHECKING:
        arm()
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


def __getattr__(name: str) -> "Any":
    """Return ``__version__`` or ``integrations`` when it is asked for: importing this package stays cheap."""
    if name == "integrations":
        from importlib import import_module

        return import_module("training_profiler.integrations")
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("training-profiler")
        except PackageNotFoundError:  # used from its source folder, without being installed
            pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: "Any") -> None:
    """Switch profiling on in a notebook: ``%load_ext training_profiler``."""
    from training_profiler.base.switch import switch_on

    switch_on()
    before = {name: globals()[name] for name in __all__}  # now: the import binds the package ``snapshot`` to its name
    from training_profiler import api

    live = {name: getattr(api, name) for name in __all__}
    globals().update(live)
    _name_public_functions()
    for name, value in shell.user_ns.items():  # what cells have imported while profiling was off
        public = next((public for public, function in before.items() if function is value), None)
        if public is not None:
            shell.user_ns[name] = live[public]
    api.load_in_notebook()


def unload_ipython_extension(shell: "Any") -> None:
    """End the run: ``%unload_ext training_profiler``."""
    stop_training_profiling()


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


def _name_public_functions() -> None:
    # On and off they are the same functions to pickle, inspect and tracebacks.
    for name in __all__:
        globals()[name].__module__ = __name__


_name_public_functions()
