"""Exceptions that are raised inside our code but belong to the program."""

import os
import signal
from types import CodeType
from typing import Any, Final

OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


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
