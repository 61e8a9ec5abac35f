"""The terminal: each report in one write, around any progress bars, and never harmful to the stream."""

import io
import os
import select
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, Any, Final

PATIENCE_S: Final = 1.0  # for a reader that has fallen behind


class Console:
    """Prints to what ``sys.stdout`` or ``sys.stderr`` is at the moment of printing.

    Raises:
        OSError, ValueError: the stream is closed or cannot be written.
    """

    def __init__(self, stream: str) -> None:
        self._name = stream

    def print(self, text: str) -> None:
        """Write ``text`` in one piece; progress bars of tqdm are cleared before and drawn again after."""
        stream: IO[str] | None = getattr(sys, self._name)
        if stream is None or getattr(stream, "closed", False):
            raise OSError(f"sys.{self._name} is closed")
        with _bars_aside(stream):
            if _is_plain(stream):
                with suppress(RuntimeError):  # a signal came in the middle of the program's own write to it
                    stream.flush()
                _write_whole(
                    stream.fileno(), text.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")
                )
            else:
                stream.write(text)
                stream.flush()


def _bars_aside(stream: IO[str]) -> AbstractContextManager[Any]:
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not hasattr(tqdm, "external_write_mode"):
        return nullcontext()
    context: AbstractContextManager[Any] = tqdm.external_write_mode(file=stream)
    return context


def _is_plain(stream: IO[str]) -> bool:
    """Return whether writing to the descriptor is the same as writing to the stream.

    It is not where somebody listens in on ``write``, as notebooks and trackers do.
    """
    return type(stream) is io.TextIOWrapper and "write" not in vars(stream) and not _is_memory(stream)


def _is_memory(stream: IO[str]) -> bool:
    try:
        stream.fileno()
    except OSError:  # io.UnsupportedOperation is one
        return True
    return False


def _write_whole(descriptor: int, data: bytes) -> None:
    # Past the stream's own buffer: what a broken pipe left in there would fail once more when the
    # interpreter flushes at its end, and turn the exit status of the user's program into 120.
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # a pipe set to non-blocking, and full
            if not select.select([], [descriptor], [], PATIENCE_S)[1]:
                raise
