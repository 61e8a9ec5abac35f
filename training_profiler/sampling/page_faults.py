"""Page faults of the training thread, as Linux counts them for a thread, and what one costs on this machine."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.base.units import NS_PER_S

PAGES: Final = 32  # of one measurement of the cost: 0.2 ms where a page is slow, as in a virtual machine
ROUNDS: Final = 8  # of which the fastest counts: the others are disturbed
# Of /proc/PID/task/TID/stat behind the name, which may contain anything (proc_pid_stat(5)).
_MINOR, _MAJOR, _KERNEL_TICKS = 7, 9, 12


class Faults(NamedTuple):
    """What the training thread did between two readings."""

    minor: int  # pages that it got without reading a disk: new memory, mostly
    major: int  # pages that were read from a disk or from swap
    kernel_s: float  # its CPU time in the kernel, which has all of this and its system calls; in 1/100 s


class PageFaults:
    """Reads ``/proc/self/task/TID/stat``. Not thread-safe, except ``use_thread``.

    Args:
        root: where the file system begins.
        ticks_per_s: the unit in which Linux writes CPU time.
    """

    def __init__(self, root: Path = Path("/"), ticks_per_s: int | None = None) -> None:
        self._tasks = root / "proc/self/task"
        self._ticks_per_s = ticks_per_s or _ticks_per_s()
        self._training = os.getpid()  # the id of the main thread, until the training thread is known
        self._before: tuple[int, list[int]] | None = None  # thread, and its counters

    def use_thread(self, native_id: int) -> None:
        """Read the faults of this thread from now on: the training thread."""
        self._training = native_id

    def read(self) -> Faults | None:
        """Return what happened since the last call; None where it is unknown, as on the first call."""
        thread = self._training
        now, before = self._counters(thread), self._before
        self._before = None if now is None else (thread, now)
        if now is None or before is None or before[0] != thread:
            return None
        minor, major, ticks = (max(0, after - then) for after, then in zip(now, before[1], strict=True))
        return Faults(minor, major, ticks / self._ticks_per_s)

    def _counters(self, thread: int) -> list[int] | None:
        try:
            text = (self._tasks / str(thread) / "stat").read_text(encoding="ascii", errors="replace")
            fields = text[text.rindex(")") + 1 :].split()
            return [int(fields[at]) for at in (_MINOR, _MAJOR, _KERNEL_TICKS)]
        except (OSError, ValueError, IndexError):  # the thread has ended, or this is another system
            return None


def page_cost_s(cpu_ns: Callable[[], int] = time.thread_time_ns) -> float:
    """Return the CPU time of a page of new memory: of the fault, and of giving it back later. Takes 2 ms."""
    zeros = bytes(PAGES * mmap.PAGESIZE)
    return min(_page_cost_ns(zeros, cpu_ns) for _ in range(ROUNDS)) / PAGES / NS_PER_S


def _page_cost_ns(zeros: bytes, cpu_ns: Callable[[], int]) -> int:
    pages = mmap.mmap(-1, len(zeros))
    begin_ns = cpu_ns()
    pages[:] = zeros
    touched_ns = cpu_ns()
    pages[:] = zeros  # only writes
    written_ns = cpu_ns()
    pages.close()
    return max(0, (touched_ns - begin_ns) - (written_ns - touched_ns)) + (cpu_ns() - written_ns)


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
