"""Seam: the traceback that ends the program, without the frames of seams in it."""

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from training_profiler.instrumentation.patching import Patches

if TYPE_CHECKING:
    from training_profiler.instrumentation.instrumentation import Instrumentation

FOLDER: Final = os.path.dirname(os.path.dirname(__file__))  # of all instrumentation
PACKAGE: Final = __name__.rpartition(".")[0] + "."
DEEPEST: Final = 100  # causes and contexts that are followed


def install(patches: Patches, watch: "Instrumentation", torch: Any) -> None:
    """Let an uncaught exception print as it would without us; a hook of the program's own is left alone."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def make(original: Any) -> Any:
        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            one: BaseException | None = error
            for _ in range(DEEPEST):
                if one is None:
                    break
                one.__traceback__ = _without_ours(one.__traceback__)
                one = one.__context__ if one.__cause__ is None else one.__cause__  # an exception may be false
            original(kind, error, error.__traceback__)

        return excepthook

    patches.replace(sys, "excepthook", make)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
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
