"""The frames of all threads, read without the risk of a deadlock.

Up to Python 3.11 an allocation can start a garbage collection. ``sys._current_frames`` allocates while it holds the
lock on the list of threads. The collection may need that lock, for example for a ``threading.local``. It may also
switch to a thread that needs it. Then the process hangs (CPython issue 106883).
"""

import gc
import sys
from collections.abc import Callable
from operator import call
from types import FrameType
from typing import Any, Final

COLLECTS_LATER: Final = sys.version_info >= (
    3,
    12,
)  # it collects between two instructions, and never inside of that call
_WITHOUT_COLLECTING: Final[tuple[Callable[[], Any], ...]] = (gc.disable, sys._current_frames, gc.enable)


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its ident."""
    if COLLECTS_LATER or not gc.isenabled():
        return sys._current_frames()
    try:
        # A single call in C: no other thread runs while garbage collection is off.
        return list(map(call, _WITHOUT_COLLECTING))[1]  # type: ignore[no-any-return]
    except BaseException:
        gc.enable()
        raise
