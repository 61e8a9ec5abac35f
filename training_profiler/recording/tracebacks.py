"""Tracebacks of the program's exceptions without our frames, and exceptions of the program's in our code."""

import inspect
import os
import signal
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Final

OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE: Final = __name__.partition(".")[0]
# Stages whose functions call libraries, and nothing of the program.
_OWN_WORK: Final = ("aggregation", "device", "diagnosis", "ranks", "reports", "runtime", "snapshot", "storage")
# Not by attribute: an exception may be a frozen dataclass, or have attributes of its own kind.
_traceback_of: Final[Callable[[BaseException], TracebackType | None]] = vars(BaseException)["__traceback__"].__get__
_set_traceback: Final = BaseException.with_traceback


def hide_our_frames(error: BaseException) -> None:
    """Remove our frames from the begin of the traceback of ``error``, in an except clause that raises it again.

    A bare ``raise`` adds no frame, so the program finds a traceback in which we do not occur.
    """
    _set_traceback(error, _first_foreign(_traceback_of(error)))


def hide_all_our_frames(error: BaseException) -> None:
    """Remove our frames from the traceback of ``error``, wherever they are."""
    _set_traceback(error, without_our_frames(_traceback_of(error)))


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return ``traceback`` without our frames, wherever they are."""
    at = traceback = _first_foreign(traceback)
    while at is not None:
        at.tb_next = _first_foreign(at.tb_next)
        at = at.tb_next
    return traceback


def _first_foreign(traceback: TracebackType | None) -> TracebackType | None:
    """Return the first frame that is neither ours nor that of a library at work for us."""
    while traceback is not None and is_ours(traceback):
        package, _, module = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")
        is_own_work = package == PACKAGE and module.partition(".")[0] in _OWN_WORK
        traceback = traceback.tb_next
        while is_own_work and traceback is not None and not _is_signal_handler(traceback):
            traceback = traceback.tb_next
    return traceback


def _is_signal_handler(traceback: TracebackType) -> bool:
    """Return whether the outermost frame is a signal handler's, by its argument: the frame that was interrupted."""
    frame = traceback.tb_frame
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    arguments = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    values = [value for one in arguments for value in (one if isinstance(one, tuple) else (one,))]
    return frame.f_back is not None and any(value is frame.f_back for value in values)


def is_ours(traceback: TracebackType) -> bool:
    """Return whether the outermost frame of ``traceback`` is one of ours."""
    frame = traceback.tb_frame
    # The file of a frame is not always its own: warnings do not count the files of some.
    module = frame.f_globals.get("__name__")
    return (isinstance(module, str) and module.startswith(f"{PACKAGE}.")) or frame.f_code.co_filename.startswith(
        OURS + os.sep
    )


def reraise_if_foreign(error: Exception) -> None:
    """Raise ``error`` again if a signal handler of the program raised it, e.g. one for a time limit.

    Such a handler interrupts the training thread wherever it is, which may be in our code.

    Raises:
        Exception: ``error`` itself.
    """
    if is_from_signal_handler(error):
        raise error


def is_from_signal_handler(error: Exception) -> bool:
    """Return whether a signal handler of the program raised ``error``."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {code for handler in handlers if (code := code_of_handler(handler)) is not None}
    traceback = error.__traceback__
    while traceback is not None and codes:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def code_of_handler(handler: Any) -> CodeType | None:
    """Return the code of a Python handler; None for other handlers and for ours."""
    handler = getattr(handler, "func", handler)  # functools.partial
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    if code is None and callable(handler):
        code = getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) and not code.co_filename.startswith(OURS + os.sep) else None
