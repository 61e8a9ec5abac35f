"""What Linux says of the training thread: how long it waited for a free CPU, and its page faults."""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

MOST_HELPERS: Final = 4  # threads beside the training thread; reading one takes 20 us
COMPUTES: Final = 0.05  # of the CPU time of the training thread: a thread that computes with it, and does not only wait
SAMPLES_PER_SEARCH: Final = 64  # a search reads every thread


class RunQueueWait(NamedTuple):
    """The wait between two readings."""

    training_ns: int
    """What the training lost: the wait of its own thread, or of the helper that waited longest if that is more."""
    all_ns: int  # the wait of all threads that are read
    own_ns: int  # the wait of the training thread itself


class RunQueue:
    """Reads ``/proc/self/task/*/schedstat``: time on a CPU, time waiting for one, and switches; ns.

    An operation that torch splits among threads ends when the last of them ends, so a helper's wait holds the training
    as well. Helpers are threads that Python did not start. Not thread-safe, except ``use_thread``.
    """

    def __init__(self, root: Path = Path("/"), python_threads: Callable[[], Iterable[int]] | None = None) -> None:
        self._tasks = root / "proc/self/task"
        self._python_threads = python_threads or _python_threads
        self._training = os.getpid()  # the id of the main thread, until the training thread is known
        self._helpers: list[int] = []
        self._before: dict[int, tuple[int, int]] = {}  # thread -> time on a CPU, and waiting
        self._samples = 0
        self._search_at = 0

    def use_thread(self, native_id: int) -> None:
        """Read the wait of this thread from now on: the training thread."""
        self._training = native_id

    def read(self) -> RunQueueWait | None:
        """Return the wait since the last call; None where it is unknown, as on the first call."""
        training = self._training
        if self._samples >= self._search_at:
            self._search()
        self._samples += 1
        now = {thread: figures for thread in (training, *self._helpers) if (figures := self._figures(thread))}
        before, self._before = self._before, now
        waits = {
            thread: waited - before[thread][1]
            for thread, (ran, waited) in now.items()
            if thread in before and (thread == training or ran > before[thread][0])
        }
        if training not in waits:
            return None
        return RunQueueWait(max(waits.values()), sum(waits.values()), waits[training])

    def computing(self) -> int:
        """Return how many threads compute: the training thread, and others that Python did not start; 0 if unknown."""
        own, ran = self._figures(self._training), self._ran(_python_threads())
        return 0 if own is None else 1 + sum(each >= COMPUTES * own[0] for each in ran.values())

    def _search(self) -> None:
        """Choose the helpers: threads that Python did not start, with the most time on a CPU."""
        self._search_at = self._samples + min(max(1, self._samples), SAMPLES_PER_SEARCH)
        ran = self._ran(self._python_threads())
        self._helpers = sorted(ran, key=lambda thread: -ran[thread])[:MOST_HELPERS]

    def _ran(self, python_threads: Iterable[int]) -> dict[int, int]:
        """Return the time on a CPU of each thread that Python did not start, without the training thread."""
        try:
            threads = {int(name) for name in os.listdir(self._tasks)} - {self._training, *python_threads}
        except (OSError, ValueError):  # not on this system
            return {}
        return {thread: figures[0] for thread in threads if (figures := self._figures(thread)) is not None}

    def _figures(self, thread: int) -> tuple[int, int] | None:
        return ran_and_waited_ns(self._tasks / str(thread))


def ran_and_waited_ns(task: Path) -> tuple[int, int] | None:
    """Return how long the thread of a folder of ``/proc`` was on a CPU, and waited for one; None if unknown."""
    try:
        ran, waited, *_ = (task / "schedstat").read_text(encoding="ascii").split()
        return int(ran), int(waited)
    except (OSError, ValueError):  # the thread has ended, or the kernel has no such statistics
        return None


def _python_threads() -> list[int]:
    return [thread.native_id for thread in threading.enumerate() if thread.native_id is not None]


# Of /proc/PID/task/TID/stat behind the name, which may contain anything (proc_pid_stat(5)).
_MINOR, _MAJOR, _KERNEL_TICKS = 7, 9, 12


class Faults(NamedTuple):
    """What the training thread did between two readings."""

    minor: int  # pages that it got without reading a disk: new memory, mostly
    major: int  # pages that were read from a disk or from swap
    kernel_s: float  # its CPU time in the kernel, which has all of this and its system calls; in 1/100 s


class PageFaults:
    """Reads ``/proc/self/task/TID/stat`` below ``root``. Not thread-safe, except ``use_thread``."""

    def __init__(self, root: Path = Path("/"), ticks_per_s: int | None = None) -> None:
        self._tasks = root / "proc/self/task"
        self._ticks_per_s = ticks_per_s or (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
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
