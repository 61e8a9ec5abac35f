"""Patch: DistributedDataParallel modules are registered when they are made."""

import functools
import importlib
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Register each DDP module, and read its statistics before its process group is destroyed."""
    if not torch.distributed.is_available():
        return

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                made = original(self, *args, **kwargs)
                context.add_ddp_module(self)
                context.calls.add_ddp(self)
                return made
            except BaseException as error:
                hide_our_frames(error)
                raise

        return _ddp_init_helper

    def make_destroy(original: Any) -> Any:
        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                context.gradient_sync.read()
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frames(error)
                raise

        return destroy_process_group

    module = importlib.import_module("torch.distributed.distributed_c10d")
    # Private, and the last call of __init__. A patch of __init__ itself would make its warnings point at our line.
    patches.replace(torch.nn.parallel.DistributedDataParallel, "_ddp_init_helper", make)
    patches.replace(module, "destroy_process_group", make_destroy)
    patches.repeat(module, torch.distributed, "destroy_process_group")
