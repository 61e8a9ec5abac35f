"""Tracebacks of the program's exceptions without our frames."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import Final

from training_profiler.recording.foreign_errors import OURS

PACKAGE: Final = __name__.partition(".")[0]
# Not by attribute: an exception may be a frozen dataclass, or have attributes of its own kind.
_traceback_of: Final[Callable[[BaseException], TracebackType | None]] = vars(BaseException)["__traceback__"].__get__
_set_traceback: Final = BaseException.with_traceback


def hide_our_frames(error: BaseException) -> None:
    """Remove our frames from the begin of the traceback of ``error``, in an except clause that raises it again.

    A bare ``raise`` adds no frame, so the program finds a traceback in which we do not occur.
    """
    traceback = _traceback_of(error)
    while traceback is not None and is_ours(traceback):
        traceback = traceback.tb_next
    _set_traceback(error, traceback)


def hide_all_our_frames(error: BaseException) -> None:
    """Remove our frames from the traceback of ``error``, wherever they are."""
    _set_traceback(error, without_our_frames(_traceback_of(error)))


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return ``traceback`` without our frames, wherever they are."""
    while traceback is not None and is_ours(traceback):
        traceback = traceback.tb_next
    at = traceback
    while at is not None:
        while at.tb_next is not None and is_ours(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return traceback


def is_ours(traceback: TracebackType) -> bool:
    """Return whether the outermost frame of ``traceback`` is one of ours."""
    frame = traceback.tb_frame
    # The file of a frame is not always its own: warnings do not count the files of some.
    module = frame.f_globals.get("__name__")
    return (isinstance(module, str) and module.startswith(f"{PACKAGE}.")) or frame.f_code.co_filename.startswith(
        OURS + os.sep
    )
