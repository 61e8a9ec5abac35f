"""Patch: the traceback that ends the program shows no frames of ours."""

import os
import sys
from types import TracebackType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches

FOLDER: Final = os.path.dirname(os.path.dirname(__file__))  # instrumentation/
PACKAGE: Final = __name__.rpartition(".")[0] + "."
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
                cause.__traceback__ = _without_our_frames(cause.__traceback__)
                cause = cause.__context__ if cause.__cause__ is None else cause.__cause__  # not `or`: may be false
            original(kind, error, error.__traceback__)

        return excepthook

    patches.replace(sys, "excepthook", make)


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    at = traceback
    while at is not None:
        while at.tb_next is not None and _is_ours(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return traceback


def _is_ours(traceback: TracebackType) -> bool:
    frame = traceback.tb_frame
    if os.path.dirname(frame.f_code.co_filename) == FOLDER:
        return True
    return str(frame.f_globals.get("__name__", "")).startswith(PACKAGE)  # its file's name is not always its own
