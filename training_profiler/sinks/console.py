"""The terminal: each report is one write, goes around progress bars, and never harms the stream."""

import io
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, Any, Final

from training_profiler.recording.tracebacks import hide_our_frames
from training_profiler.reports.layout import MIN_WIDTH, WIDTH, Layout, has_terminal_color
from training_profiler.safety.stream_room import (
    LAST_STANDARD,
    is_ready,
    is_standard_stream,
    kind_of,
    most_at_once,
    room_of,
    write_some,
)
from training_profiler.settings.settings import is_dumb_terminal

PATIENCE_S: Final = 1.0  # for a reader that does not keep up, where the caller does not decide
MOST_UNFLUSHED: Final = 16_384  # bytes in the two buffers of a stream of Python
LOOK_S: Final = 0.05  # between two looks at a pipe of which the other end reads nothing


class Console:
    """Prints to ``sys.stdout`` or ``sys.stderr``, whatever that is when the text is handed over.

    It waits for room before it touches the stream: a write that waits would hold the locks of the stream and of tqdm,
    for which the training would wait. Used by one thread at a time.
    """

    def __init__(self, stream: str) -> None:
        self._name = stream
        self._known: tuple[IO[str], tuple[int, int]] | None = None  # the last stream of the program, and its file
        self._asked: tuple[IO[str], bool] | None = None  # the last stream, and whether it is a file on a disk
        self._writing = threading.Lock()
        self._flushing: IO[str] | None = None

    def stream(self) -> IO[str] | None:
        """Return the stream as it is now."""
        stream: IO[str] | None = getattr(sys, self._name)
        return stream

    def layout(self, format: str) -> Layout:
        """Return the layout that reports need on this stream now."""
        return stream_layout(self.stream(), format)

    def print(self, text: str, stream: IO[str] | None = None, gives_up: Callable[[], bool] | None = None) -> bool:
        """Write ``text`` in one piece; tqdm's progress bars are cleared before and redrawn after.

        Args:
            text: ends with a new line.
            stream: where to; by default, or if it was closed, the stream as it is now.
            gives_up: asked while the reader does not keep up; after a second by default.

        Returns:
            False if it gave up, at most after a part of the text.

        Raises:
            OSError, ValueError: the stream is closed or cannot be written.
        """
        if _is_closed(stream):
            stream = self.stream()
        if stream is None or _is_closed(stream):
            raise OSError(f"sys.{self._name} is closed")
        end_s = time.monotonic() + PATIENCE_S
        gives_up = gives_up or (lambda: time.monotonic() >= end_s)
        if not _is_plain(stream):
            if not self._has_room(_descriptor_behind(stream), len(text), gives_up):
                return False
            with self._writing:
                _write_as_program(stream, text)
            return True
        descriptor = stream.fileno()
        self._check_stream(stream, descriptor)
        data = memoryview(text.encode(_encoding_of(stream), "backslashreplace"))
        if not self._has_room(descriptor, len(data), gives_up):
            return False
        with self._writing, _bars_cleared(stream):
            if not os.isatty(descriptor):  # on a terminal each line of the program is flushed as a whole
                self._flush(stream)
            # Bypasses the stream's buffer: after a broken pipe its contents would fail again when the interpreter
            # flushes at its end, which turns the exit status of the user's program into 120.
            while data := _write_ready(descriptor, data):
                if gives_up():
                    return False
                _wait_for_reader(descriptor)
        return True

    def is_on_disk(self) -> bool:
        """Return whether the stream is a file. The disk is asked once for each stream: it may stop responding."""
        stream = self.stream()
        if stream is None or _is_closed(stream):
            return False
        if self._asked is None or self._asked[0] is not stream:
            descriptor = _descriptor_behind(stream)
            self._asked = stream, descriptor is not None and kind_of(descriptor) == stat.S_IFREG
        return self._asked[1]

    def print_now(self, text: str) -> str:
        """Write ``text`` on the calling thread as far as that cannot wait for a reader; return the rest.

        Only the thread that prints the program's lines can write between two of them: a line is several writes where
        the stream has no buffer.

        Raises:
            OSError, ValueError: the stream is closed or cannot be written.
        """
        stream = self.stream()
        if stream is None or _is_closed(stream):
            return text
        is_plain = _is_plain(stream)
        descriptor = stream.fileno() if is_plain else _descriptor_behind(stream)
        if not _takes_all(descriptor, len(text)) or not self._writing.acquire(blocking=False):
            return text
        try:
            if descriptor is None or not is_plain:
                _write_as_program(stream, text)
                return ""
            self._check_stream(stream, descriptor)
            encoding = _encoding_of(stream)
            with _bars_cleared(stream):
                self._flush(stream)
                rest = _write_ready(descriptor, memoryview(text.encode(encoding, "backslashreplace")))
            return bytes(rest).decode(encoding, "replace")
        finally:
            self._writing.release()

    def finish_flush(self) -> None:
        """Wait for the program's own text that another thread is writing, as the interpreter would at its end.

        Interpreters abort where a thread still holds a stream then.
        """
        stream = self._flushing
        if stream is not None:
            with suppress(Exception):
                stream.flush()

    def hold(self, timeout_s: float) -> bool:
        """Keep other threads from the stream until ``release``, e.g. over a fork; return whether that succeeded."""
        return self._writing.acquire(timeout=timeout_s)

    def release(self) -> None:
        """Undo ``hold``."""
        self._writing.release()

    def _check_stream(self, stream: IO[str], descriptor: int) -> None:
        """Raise OSError if the descriptor is a stream no longer, but a file that got the number of a closed stream."""
        identity = _identity(descriptor)
        if identity is None:
            raise OSError(f"sys.{self._name}: its descriptor is closed")
        if descriptor <= LAST_STANDARD:
            is_stream = is_standard_stream(descriptor)
        else:
            if self._known is None or self._known[0] is not stream:
                self._known = stream, identity
            is_stream = self._known[1] == identity
        if not is_stream:
            raise OSError(f"sys.{self._name}: its descriptor was closed, and now is that of a file of the program")

    def _has_room(self, descriptor: int | None, size: int, gives_up: Callable[[], bool]) -> bool:
        """Wait until a text of ``size`` fits; return whether it does."""
        if descriptor is None:
            return True
        while room_of(descriptor) < min(size, most_at_once(descriptor)):
            if os.isatty(descriptor) and room_of(descriptor) > 0:
                break
            if gives_up():
                return False
            _wait_for_reader(descriptor)
        return True

    def _flush(self, stream: IO[str]) -> None:
        """Write the program's own text first."""
        self._flushing = stream
        try:
            with suppress(RuntimeError):  # a signal interrupted the program's own write to this stream
                stream.flush()
        finally:
            self._flushing = None


def _encoding_of(stream: IO[str]) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _write_as_program(stream: IO[str], text: str) -> None:
    with _bars_cleared(stream):
        stream.write(text)
        stream.flush()


def _write_ready(descriptor: int, data: memoryview) -> memoryview:
    """Write as long as the reader keeps up; return the rest."""
    while data and (written := write_some(descriptor, data)):
        data = data[written:]
    return data


def _wait_for_reader(descriptor: int) -> None:
    """Wait a moment for room; also where a pipe is ready for a few bytes only."""
    is_ready(descriptor, LOOK_S)
    time.sleep(LOOK_S if is_ready(descriptor) else 0.0)


def _takes_all(descriptor: int | None, size: int) -> bool:
    """Return whether a text of ``size``, after what the program has not flushed, fits without waiting for a reader."""
    if descriptor is None:
        return True
    with suppress(OSError):
        if os.isatty(descriptor):  # nothing says how much a terminal takes
            return False
        return room_of(descriptor) >= min(size + MOST_UNFLUSHED, most_at_once(descriptor))
    return False


def _is_closed(stream: IO[str] | None) -> bool:
    return stream is None or bool(getattr(stream, "closed", False))


def _identity(descriptor: int) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    return None


def _descriptor_behind(stream: IO[str]) -> int | None:
    """Return the descriptor that a stand-in for a stream most likely writes to; None if it is unknown."""
    if type(stream).__module__.partition(".")[0] == "ipykernel":  # hands the text to the cell of the calling thread
        return None
    for candidate in (stream, sys.__stdout__):
        with suppress(Exception):  # a stand-in may raise anything
            descriptor = candidate.fileno()  # type: ignore[union-attr]
            if type(descriptor) is int and _identity(descriptor) is not None:
                return descriptor
    return None


def stream_layout(stream: IO[str] | None, format: str) -> Layout:
    """Return the layout of reports on ``stream``: its width (COLUMNS wins), colors if it shows any, its characters.

    Files and pipes have 80 columns. Colors follow NO_COLOR, FORCE_COLOR and TERM.
    """
    if stream is None or _is_closed(stream):
        return Layout(format=format)
    is_own_stream, is_terminal = stream is sys.stdout and _is_plain(stream), False
    with suppress(Exception):  # a stand-in for a stream may raise anything
        is_terminal = bool(stream.isatty())
    # Otherwise the size would be that of another stream: the notebook server's terminal, or stdout's.
    width = shutil.get_terminal_size((WIDTH, 24)).columns if is_own_stream or is_terminal else WIDTH
    has_color = (is_own_stream or is_terminal) and _is_plain(stream) and has_terminal_color()
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
    is_unicode = encoding in ("utf8", "utf8sig") and not is_dumb_terminal()
    return Layout(max(width, MIN_WIDTH), has_color, is_unicode, format)


def _bars_cleared(stream: IO[str]) -> AbstractContextManager[Any]:
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not hasattr(tqdm, "external_write_mode") or not _has_bars(tqdm, stream):
        return nullcontext()
    context: AbstractContextManager[Any] = tqdm.external_write_mode(file=stream)
    return context


def _has_bars(tqdm: Any, stream: IO[str]) -> bool:
    """Return whether a progress bar shares a screen, or a file, with ``stream``."""
    for bar in list(getattr(tqdm, "_instances", ())):
        with suppress(Exception):  # a bar of another kind
            if bar.fp == stream or not _is_plain(stream):
                return True
            theirs, ours = bar.fp.fileno(), stream.fileno()
            if _identity(theirs) == _identity(ours) or (os.isatty(theirs) and os.isatty(ours)):
                return True
    return False


def _is_plain(stream: IO[str]) -> bool:
    """Return whether the descriptor gets what is written: notebooks and trackers replace ``write``."""
    if type(stream) is not io.TextIOWrapper or "write" in vars(stream):
        return False
    try:
        stream.fileno()
    except OSError:  # includes io.UnsupportedOperation: a stream in memory
        return False
    return True


CLEAR: Final = b"\r\x1b[K"


class StatusLine:
    """One line of a terminal that is rewritten in place and is gone before the program writes.

    Only the program's own writes show whether the cursor is at the begin of a line. So the unbuffered streams behind
    ``sys.stdout`` and ``sys.stderr`` get a ``write`` that watches them, as long as there is a status line. After a
    progress bar, or any text without the end of its line, nothing is drawn. Any thread may call it; it never waits.
    """

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
