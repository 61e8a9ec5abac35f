"""The frames of all threads, read such that the interpreter cannot lock itself up.

Up to Python 3.11 an allocation may collect garbage on the spot. ``sys._current_frames`` allocates while it holds the
lock on the list of threads; what is collected there may need that lock (a ``threading.local`` does), or let another
thread run that needs it, and everything stands still for good (CPython issue 106883).
"""

import gc
import sys
from collections.abc import Callable
from operator import call
from types import FrameType
from typing import Any, Final

COLLECTS_LATER: Final = sys.version_info >= (3, 12)  # between two instructions, and so never inside of that call
_WITHOUT_COLLECTING: Final[tuple[Callable[[], Any], ...]] = (gc.disable, sys._current_frames, gc.enable)


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its ident."""
    if COLLECTS_LATER or not gc.isenabled():
        return sys._current_frames()
    try:
        # One call in C: no other thread runs within it, so none sees that collecting was off for a moment.
        return list(map(call, _WITHOUT_COLLECTING))[1]  # type: ignore[no-any-return]
    except BaseException:
        gc.enable()
        raise
