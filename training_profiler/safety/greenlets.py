"""Whether a library has replaced threads by greenlets, as gevent's and eventlet's ``monkey_patch`` do."""

import threading
from typing import Final

_LIBRARIES: Final = ("gevent", "eventlet")


class NoThreadError(RuntimeError):
    """No thread of the profiler can be started, because a greenlet would be started in its place."""

    def __init__(self, library: str) -> None:
        super().__init__(f"{library} has replaced threads by greenlets")


def library_of_greenlets() -> str | None:
    """Return the library that makes ``threading`` start greenlets; None where it starts threads.

    A greenlet of ours would run, and wait, on the training's own thread.
    """
    for name in ("_start_joinable_thread", "_start_new_thread"):  # private: may be gone; the first since Python 3.13
        library = str(getattr(getattr(threading, name, None), "__module__", None)).partition(".")[0]
        if library in _LIBRARIES:
            return library
    return None
