"""Holds what signal handlers of the program raise until work that must not stop half-way is over.

The handler of SIGCHLD that torch installs for DataLoaders raises wherever the main thread is; workers that crashed
together with the training are often noticed while the final summary is made.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from training_profiler.recording.foreign_errors import code_of_handler

# These ask the process to end: what their handlers raise must end our work as well.
ENDING: Final = frozenset(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
    if (number := getattr(signal, name, None)) is not None
)


@contextmanager
def held_handler_errors() -> Iterator[list[Exception]]:
    """Let signal handlers run, but collect their exceptions in the returned list instead of raising them.

    Does nothing on other threads than the main thread, where no handler runs.
    """
    held: list[Exception] = []
    is_over = False

    def call(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except Exception as error:
            if is_over:  # an exception left this block while handlers were put back
                raise
            held.append(error)

    replaced: dict[int, tuple[Any, Callable[[int, FrameType | None], Any]]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals() - ENDING:
                handler: Any = signal.getsignal(number)
                if code_of_handler(handler) is not None:
                    replaced[number] = handler, partial(call, handler)
                    signal.signal(number, replaced[number][1])
        yield held
    finally:
        is_over = True
        for each, (handler, holding) in replaced.items():
            if signal.getsignal(each) is holding:  # the handler itself may have installed another one
                signal.signal(each, handler)
