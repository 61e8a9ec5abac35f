"""The terminal: each report is one write, goes around progress bars, and never harms the stream."""

import io
import os
import select
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, Any, Final

from training_profiler.reports.layout import MIN_WIDTH, WIDTH, Layout, has_terminal_color
from training_profiler.settings import is_dumb_terminal

PATIENCE_S: Final = 1.0  # for a reader that does not keep up


class Console:
    """Prints to ``sys.stdout`` or ``sys.stderr``, whatever that is at the moment of printing.

    Raises:
        OSError, ValueError: the stream is closed or cannot be written.
    """

    def __init__(self, stream: str) -> None:
        self._name = stream

    def layout(self, format: str) -> Layout:
        """Return the layout that reports need on this stream now."""
        return stream_layout(getattr(sys, self._name), format)

    def print(self, text: str) -> None:
        """Write ``text`` in one piece; tqdm's progress bars are cleared before and redrawn after."""
        stream: IO[str] | None = getattr(sys, self._name)
        if stream is None or getattr(stream, "closed", False):
            raise OSError(f"sys.{self._name} is closed")
        with _bars_cleared(stream):
            if _is_plain(stream):
                with suppress(RuntimeError):  # a signal interrupted the program's own write to this stream
                    stream.flush()
                _write_whole(
                    stream.fileno(), text.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")
                )
            else:
                stream.write(text)
                stream.flush()


def stream_layout(stream: IO[str] | None, format: str) -> Layout:
    """Return the layout of reports on ``stream``: its width (COLUMNS wins), colors if it shows any, its characters.

    Files and pipes have 80 columns. Colors follow NO_COLOR, FORCE_COLOR and TERM.
    """
    if stream is None or getattr(stream, "closed", False):
        return Layout(format=format)
    is_own_stream, is_terminal = stream is sys.stdout and _is_plain(stream), _is_terminal(stream)
    # Otherwise the size would be that of another stream: the notebook server's terminal, or stdout's.
    width = shutil.get_terminal_size((WIDTH, 24)).columns if is_own_stream or is_terminal else WIDTH
    has_color = (is_own_stream or is_terminal) and _is_plain(stream) and has_terminal_color()
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
    is_unicode = encoding in ("utf8", "utf8sig") and not is_dumb_terminal()
    return Layout(max(width, MIN_WIDTH), has_color, is_unicode, format)


def _is_terminal(stream: IO[str]) -> bool:
    with suppress(Exception):  # a stand-in for a stream may raise anything
        return bool(stream.isatty())
    return False


def _bars_cleared(stream: IO[str]) -> AbstractContextManager[Any]:
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not hasattr(tqdm, "external_write_mode"):
        return nullcontext()
    context: AbstractContextManager[Any] = tqdm.external_write_mode(file=stream)
    return context


def _is_plain(stream: IO[str]) -> bool:
    """Return whether writing to the descriptor is the same as writing to the stream.

    It is not where ``write`` was replaced, as notebooks and trackers do.
    """
    return type(stream) is io.TextIOWrapper and "write" not in vars(stream) and not _is_memory(stream)


def _is_memory(stream: IO[str]) -> bool:
    try:
        stream.fileno()
    except OSError:  # includes io.UnsupportedOperation
        return True
    return False


def _write_whole(descriptor: int, data: bytes) -> None:
    # Bypasses the stream's buffer: after a broken pipe its contents would fail again when the interpreter flushes
    # at its end, which turns the exit status of the user's program into 120.
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # a pipe set to non-blocking, and full
            if not select.select([], [descriptor], [], PATIENCE_S)[1]:
                raise
