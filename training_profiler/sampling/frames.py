"""The stacks of other threads, read without the risk of a deadlock or a crash.

Up to Python 3.11 an allocation can start a garbage collection, which may run Python code and switch threads.

- ``sys._current_frames`` allocates while it holds the lock on the list of threads. The collection may need that lock,
  for example for a ``threading.local``, or switch to a thread that needs it. Then the process hangs (CPython issue
  106883).
- ``frame.f_back`` allocates the object of a frame. If the other thread runs meanwhile and its function returns, the
  object is of a frame that is gone, and reading it crashes the process.

So all objects of a stack are made in a single call in C, with garbage collection off.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from operator import call, methodcaller
from types import CodeType, FrameType
from typing import Any, Final

# It collects between two instructions, and never inside of a call.
COLLECTS_LATER: Final = sys.version_info >= (3, 12)
DEPTHS: Final = (12, 32, 96, 288)  # of the stacks that are read; a deeper one is not read at all
READS_PER_DEPTH: Final = 64  # then a shorter stack is expected again


class KeptFrame:
    """The code and the instruction of a frame, and the one around it. The frame itself would keep objects alive."""

    def __init__(self, code: CodeType, instruction: int, back: "KeptFrame | None") -> None:
        self.f_code, self.f_lasti, self.f_back = code, instruction, back


Frame = FrameType | KeptFrame


def outwards(frame: Frame | None, most: int = sys.maxsize) -> Iterator[Frame]:
    """Yield a frame and those around it, at most so many."""
    while frame is not None and most > 0:
        yield frame
        frame, most = frame.f_back, most - 1


class StackOfThread:
    """Reads the stack of one thread, by its ident. Not thread-safe."""

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self._at = 0  # in DEPTHS
        self._reads = 0
        self._read = _reader(ident, DEPTHS[0])

    def frame(self) -> FrameType | None:
        """Return the innermost frame, whose ``f_back`` may be followed to the end; None if the thread has ended."""
        if COLLECTS_LATER or not gc.isenabled():
            return sys._current_frames().get(self.ident)
        self._reads += 1
        if self._at and self._reads % READS_PER_DEPTH == 0:
            self._expect(0)
        while True:
            innermost, beyond = self._read_now()
            if beyond is None:
                return innermost
            if self._at + 1 == len(DEPTHS):
                return None
            self._expect(self._at + 1)

    def _expect(self, at: int) -> None:
        self._at = at
        self._read = _reader(self.ident, DEPTHS[at])

    def _read_now(self) -> tuple[FrameType | None, FrameType | None]:
        try:
            _, beyond, innermost, _ = list(map(call, self._read))  # a single call in C: no other thread runs
        except BaseException:
            gc.enable()
            self._expect(self._at)  # the iterators may have stopped anywhere
            raise
        return innermost, beyond


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its ident, as ``StackOfThread.frame`` does."""
    if COLLECTS_LATER or not gc.isenabled():
        return sys._current_frames()
    threads: Iterator[Any] = map(call, repeat(sys._current_frames))
    steps: tuple[Callable[[], Any], ...] = (gc.disable, partial(next, map(list, threads)), gc.enable)
    try:
        _, idents, _ = list(map(call, steps))
    except BaseException:
        gc.enable()
        raise
    return {ident: frame for ident in idents if (frame := StackOfThread(ident).frame()) is not None}


def _reader(ident: int, depth: int) -> tuple[Callable[[], Any], ...]:
    """Return functions in C that, called in turn, read a stack: the frame ``depth`` calls out, then the innermost."""
    outer = _innermost(ident)
    for _ in range(depth):
        outer = map(getattr, outer, repeat("f_back"), repeat(None))
    return gc.disable, partial(next, outer), partial(next, _innermost(ident)), gc.enable


def _innermost(ident: int) -> Iterator[Any]:
    # One for each use: ``tee`` would keep frames, and with them the tensors of a step.
    return map(methodcaller("get", ident), map(call, repeat(sys._current_frames)))
