"""How much can be written to a descriptor without waiting for its reader, and writing no more than that."""

import os
import select
import socket
import stat
import struct
from contextlib import suppress
from typing import IO, Final

F_GETPIPE_SZ: Final = 1032  # of Linux, in fcntl from Python 3.10 on
OWN_SHARE: Final = 2  # of a pipe we fill one half: the program must find room when it ends and flushes its streams
PIECE: Final = 512  # bytes that any system takes from a pipe or terminal that is ready
UNLIMITED: Final = 1 << 62
LAST_STANDARD: Final = 2  # the descriptor of sys.stderr
READY: Final = getattr(select, "POLLOUT", 4)
UNREADABLE: Final = getattr(select, "POLLERR", 8)


def kind_of(descriptor: int) -> int:
    """Return the type of the file, as in ``stat.S_IFMT``."""
    return stat.S_IFMT(os.fstat(descriptor).st_mode)


def is_ready(descriptor: int, wait_s: float = 0.0) -> bool:
    """Return whether something can be written to a pipe, terminal or socket, at most ``wait_s`` from now."""
    return bool(_poll(descriptor, wait_s))


def _poll(descriptor: int, wait_s: float) -> int:
    if not hasattr(select, "poll"):  # such a system's pipes and terminals cannot be asked
        return UNREADABLE
    poll = select.poll()
    poll.register(descriptor, READY)
    return next((events for _, events in poll.poll(round(wait_s * 1000))), 0)


def is_standard_stream(descriptor: int) -> bool:
    """Return whether a descriptor up to 2 is a stream, perhaps redirected: a daemon's first files get these numbers.

    Files that Python opens are not inheritable, and libraries open theirs to read and write; streams are neither.
    """
    if not os.get_inheritable(descriptor):
        return False
    if kind_of(descriptor) != stat.S_IFREG:
        return True
    try:
        from fcntl import F_GETFL, fcntl
    except ImportError:
        return True
    return fcntl(descriptor, F_GETFL) & os.O_ACCMODE != os.O_RDWR


def takes_a_line(stream: IO[str] | None) -> bool:
    """Return whether a line can be written to a stream of the program, most likely without waiting for a reader."""
    try:
        descriptor = -1 if stream is None else stream.fileno()
        if 0 <= descriptor <= LAST_STANDARD and not is_standard_stream(descriptor):
            return False
        return descriptor < 0 or room_of(descriptor) > 0
    except (OSError, ValueError, AttributeError):  # closed, or no stream of the system
        return True


def room_of(descriptor: int) -> int:
    """Return how many bytes can be written now without waiting; more than any text for files.

    Raises:
        OSError: the descriptor is closed.
    """
    kind = kind_of(descriptor)
    if kind not in (stat.S_IFIFO, stat.S_IFSOCK) and not os.isatty(descriptor):
        return UNLIMITED
    events = _poll(descriptor, 0.0)
    if events != READY:
        return UNLIMITED if events else 0  # there is no reader: writing reports that at once
    if kind == stat.S_IFIFO:
        return _room_of_pipe(descriptor)
    return UNLIMITED if kind == stat.S_IFSOCK else PIECE  # sockets can be asked not to wait


def most_at_once(descriptor: int) -> int:
    """Return how many bytes ``room_of`` can ever be."""
    if kind_of(descriptor) == stat.S_IFIFO:
        capacity = _capacity(descriptor)
        return PIECE if capacity is None else max(PIECE, capacity // OWN_SHARE)
    return UNLIMITED


def _capacity(descriptor: int) -> int | None:
    with suppress(ImportError, OSError):
        from fcntl import fcntl

        return fcntl(descriptor, F_GETPIPE_SZ)
    return None


def _room_of_pipe(descriptor: int) -> int:
    capacity = _capacity(descriptor)
    if capacity is None:
        return PIECE
    with suppress(ImportError, OSError):
        from fcntl import ioctl
        from termios import FIONREAD

        (used,) = struct.unpack("i", ioctl(descriptor, FIONREAD, b"\0" * 4))
        return max(0, capacity // OWN_SHARE - int(used))
    return PIECE


def write_some(descriptor: int, data: memoryview) -> int:
    """Write as much as ``room_of`` allows; return how much that was.

    Raises:
        OSError: it cannot be written.
    """
    room = room_of(descriptor)
    if not room:
        return 0
    try:
        if kind_of(descriptor) != stat.S_IFSOCK or not hasattr(socket, "MSG_DONTWAIT"):
            return os.write(descriptor, data[:room])
        end = socket.socket(fileno=descriptor)
        try:
            return end.send(data, socket.MSG_DONTWAIT)
        finally:
            end.detach()
    except BlockingIOError:
        return 0
