"""Patch: the traceback that ends the program shows no frames of ours.

Patches remove their frames from the exceptions that pass through them. What remains are exceptions raised in our code,
such as by Ctrl-C.
"""

import sys
from types import TracebackType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import hide_all_our_frames

MAX_CHAIN: Final = 100  # causes and contexts of an exception


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Print an uncaught exception as it would be without us, unless the program has a hook of its own."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def make(original: Any) -> Any:
        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            cause: BaseException | None = error
            for _ in range(MAX_CHAIN):
                if cause is None:
                    break
                hide_all_our_frames(cause)
                cause = cause.__context__ if cause.__cause__ is None else cause.__cause__  # not `or`: may be false
            original(kind, error, error.__traceback__)

        return excepthook

    patches.replace(sys, "excepthook", make)
