"""Patch: the loop that every worker process of ``torch.utils.data.DataLoader`` runs."""

import functools
from collections.abc import Callable
from typing import Any

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import hide_our_frames


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Observe workers, however they are started.

    A forked worker runs the patched loop. A spawned one is given the loop by its name, and runs the patch of its own
    process if that is profiled. No object of the user's is wrapped, so that workers are given the same.
    """
    patches.replace(torch.utils.data._utils.worker, "_worker_loop", functools.partial(_observed, context))


def _observed(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        ends: list[Callable[[], None]] = []
        try:
            context.guarded(lambda: ends.append(context.workers.observe(original.__code__)))
            return original(*args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise
        finally:
            for end in ends:
                context.guarded(end)

    return _worker_loop
