"""Exceptions that come into our code and are the program's own."""

import os
import signal
from types import CodeType
from typing import Any, Final

OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def let_through(error: Exception) -> None:
    """Raise ``error`` again where a signal handler of the program's raised it, as one that sets a time limit does.

    It meant what the training thread was at, which happened to be us.

    Raises:
        Exception: that one.
    """
    if _is_of_signal_handler(error):
        raise error


def _is_of_signal_handler(error: Exception) -> bool:
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    traceback = error.__traceback__
    while traceback is not None and codes:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a handler that is not ours, and that Python's own code is."""
    handler = getattr(handler, "func", handler)  # of functools.partial
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    if code is None and callable(handler):
        code = getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) and not code.co_filename.startswith(OURS + os.sep) else None
