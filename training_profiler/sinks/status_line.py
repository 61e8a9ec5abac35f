"""One line of the terminal that is rewritten in place and is gone before the program writes.

Only the program's own writes show whether the cursor is at the begin of a line. So the unbuffered streams behind
``sys.stdout`` and ``sys.stderr`` get a ``write`` that watches them, as long as there is a status line. After a progress
bar, or any text without the end of its line, nothing is drawn.
"""

import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Final

from training_profiler.recording.tracebacks import hide_our_frames
from training_profiler.safety.stream_room import is_ready
from training_profiler.settings.settings import is_dumb_terminal

CLEAR: Final = b"\r\x1b[K"


class StatusLine:
    """The status line of one terminal. Any thread may call it; it never waits."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._watched: list[tuple[Any, Callable[..., Any]]] = []  # raw streams, and what stands in for their write
        self._writing = threading.RLock()  # a signal handler may print while the program does
        self._is_shown = self._is_at_line_start = False

    @property
    def is_active(self) -> bool:
        """Whether there is a terminal that can show it."""
        return self._descriptor is not None

    def start(self, stream: IO[str] | None) -> bool:
        """Begin to watch the terminal behind ``stream``; return False, and do nothing, where there is none."""
        if self.is_active:
            return True
        raw = _raw_terminal(stream)
        if raw is None or is_dumb_terminal():
            return False
        self._descriptor = raw.fileno()
        device = os.fstat(self._descriptor).st_rdev
        for other in (stream, sys.stdout, sys.stderr):
            found = _raw_terminal(other)
            if found is not None and os.fstat(found.fileno()).st_rdev == device:
                self._watch(found)
        return True

    def show(self, text: str) -> None:
        """Draw ``text``, which has to fit into a line, if the cursor is at the begin of one."""
        writing = self._writing
        if not writing.acquire(blocking=False):
            return
        try:
            descriptor = self._descriptor
            if descriptor is not None and self._is_at_line_start and os.isatty(descriptor) and is_ready(descriptor):
                self._is_shown = True
                os.write(descriptor, b"\r" + text.encode("ascii", "replace") + b"\x1b[K")
        finally:
            writing.release()

    def clear(self) -> None:
        """Remove the line; whoever calls writes a text that ends with its line."""
        if self.is_active:
            with self._writing:
                self._clear()
                self._is_at_line_start = True

    def stop(self) -> None:
        """Remove the line and watch no more."""
        with self._writing:
            self._clear()
            self._forget()

    def after_fork_in_child(self) -> None:
        """Watch no more, and leave the line to the parent process."""
        self._writing = threading.RLock()  # a thread that the child does not have may hold the old one
        self._forget()

    def _forget(self) -> None:
        for raw, write in self._watched:
            if vars(raw).get("write") is write:
                del vars(raw)["write"]
        self._watched = []
        self._descriptor, self._is_shown = None, False

    def _watch(self, raw: Any) -> None:
        if "write" in vars(raw):  # watched already, or replaced by the program
            return
        write_itself = raw.write

        def write(data: Any) -> Any:
            try:
                with self._writing:
                    self._clear()
                    written = write_itself(data)
                    if written:
                        self._is_at_line_start = bytes(memoryview(data)[written - 1 : written]) == b"\n"
                    return written
            except BaseException as error:
                hide_our_frames(error)
                raise

        vars(raw)["write"] = write
        self._watched.append((raw, write))

    def _clear(self) -> None:
        if self._is_shown and self._descriptor is not None:
            self._is_shown = False
            with suppress(OSError):  # the program learns of it by its own write
                os.write(self._descriptor, CLEAR)


def _raw_terminal(stream: IO[str] | None) -> Any:
    """Return the unbuffered stream behind a stream of Python that writes to a terminal; None for any other."""
    if type(stream) is not io.TextIOWrapper or "write" in vars(stream) or stream.closed:
        return None
    buffer = stream.buffer
    raw = getattr(buffer, "raw", buffer)
    if type(raw) is not io.FileIO or not raw.isatty():
        return None
    return raw
