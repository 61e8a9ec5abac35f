"""Finds a thread of the program that holds the interpreter's lock while the training thread waits for it.

Python's own figures do not say which thread has the lock. Two facts about threads do. A thread that computes without
the lock goes on using its CPU while the sampler holds it; a thread that runs Python code stands still. And the training
thread waits for the lock only while it uses no CPU, and neither do the helpers of torch that it may wait for.

Those are the threads of autograd, which run the backward pass of a device. The threads of OpenMP are none: while they
share an operator the training thread computes or spins, and between operators they spin themselves for milliseconds.
Where OpenMP sleeps instead, or has more threads than there are CPUs, the training sleeps until they are
ready, and all other threads count as helpers.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from training_profiler.base.units import NS_PER_S, NS_PER_US
from training_profiler.safety.fault_guard import OWN_THREADS

SEARCH_NS: Final = NS_PER_S // 2  # from one search for busy threads to the next
MOST_THREADS: Final = 64  # read in a search
MOST_WATCHED: Final = 4  # of the busiest of them; reading one takes half a microsecond
BUSY_FROM: Final = 0.2  # of the time between two searches, on a CPU
LOOKS_NEEDED: Final = 10  # until a thread is known to compute with the lock, or without
LEAST_LOOK_NS: Final = 4 * NS_PER_US  # shorter ones show nothing
COMPUTES_FROM: Final = 0.5  # of a look, on a CPU
HELPERS: Final = b"pt_autograd"  # what torch calls the threads of autograd: pt_autograd_0
TASKS: Final = "/proc/self/task"
MOST_TASKS: Final = 512  # read in a search
SELDOM: Final = 0.1  # of the looks

_CPU_OF_THREAD: Final = 6  # CPUCLOCK_SCHED of one thread, in the numbers that Linux gives to clocks


class PythonThread(NamedTuple):
    """A thread that Python started."""

    ident: int
    native_id: int
    name: str


def thread_cpu_ns(native_id: int) -> int | None:
    """Return the CPU time of a thread of this process in ns; None if there is none with this id.

    ``time.pthread_getcpuclockid`` may crash for a thread that has just ended. This is the number it would return on
    Linux (``clock_getcpuclockid(3)``), which the kernel checks.
    """
    try:
        return time.clock_gettime_ns((~native_id << 3) | _CPU_OF_THREAD)
    except OSError:
        return None


def python_threads() -> list[PythonThread]:
    """Return the threads that Python knows of and that run."""
    return [
        PythonThread(thread.ident, thread.native_id, thread.name)
        for thread in threading.enumerate()
        if thread.ident is not None and thread.native_id is not None
    ]


def helper_threads() -> list[int] | None:
    """Return the native ids of torch's threads that the training may wait for; None if these cannot be read."""
    helpers = []
    try:
        names = os.listdir(TASKS)[:MOST_TASKS]
    except OSError:
        return None
    for name in names:
        try:
            with open(f"{TASKS}/{name}/comm", "rb") as file:
                is_helper = file.read().startswith(HELPERS)
        except OSError:  # it has just ended
            continue
        helpers += [int(name)] * is_helper
    return helpers


class _Watched:
    def __init__(self, thread: PythonThread, cpu_ns: int) -> None:
        self.thread = thread
        self.used_ns = 0  # CPU time between the latest two looks
        self._cpu_ns = cpu_ns  # at the begin of the latest look
        self._looks = self._computed = 0

    @property
    def runs_python(self) -> bool:
        return self._looks >= LOOKS_NEEDED and self._computed <= SELDOM * self._looks

    def look_begins(self, cpu_ns: int) -> None:
        self.used_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns

    def look_ends(self, cpu_ns: int | None, length_ns: int) -> None:
        if length_ns >= LEAST_LOOK_NS and cpu_ns is not None:
            self._looks += 1
            self._computed += cpu_ns - self._cpu_ns >= COMPUTES_FROM * length_ns


class LockWatch:
    """Looks at the threads' CPU times with each sample of the training thread. Used on the sampler's thread alone.

    ``helpers`` returns the native ids of threads that the training may wait for; None if it may be any. Files that it
    reads give up the lock.
    """

    def __init__(
        self,
        cpu_ns: Callable[[int], int | None] = thread_cpu_ns,
        process_ns: Callable[[], int] = time.process_time_ns,
        threads: Callable[[], Iterable[PythonThread]] = python_threads,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        helpers: Callable[[], list[int] | None] = lambda: None,
    ) -> None:
        self._read_helpers = helpers
        self._helpers: list[int] | None = None
        self._needs_helpers = False  # since the latest search
        self._cpu_ns, self._process_ns, self._threads, self._now_ns = cpu_ns, process_ns, threads, now_ns
        self._search_at_ns = now_ns()
        self._searched_ns = 0  # when the latest search was
        self._is_known = False  # which threads are busy: a search compares with the one before
        self._cpu_at_search: dict[int, int] = {}  # native id -> ns
        self._watched: dict[int, _Watched] = {}  # by native id
        self._training: PythonThread | None = None
        self._begin_ns = 0  # of this look
        self._before: tuple[int, int, int] | None = None  # time, CPU time of training and of others at the look before
        self._training_ns = 0
        self._owed = 0.0  # part of a sample that the training has waited and that no sample showed so far

    @property
    def is_alone(self) -> bool:
        """Whether no other thread of Python is busy; False as long as that is not known, until the second search."""
        return self._is_known and not self._watched

    def look_begins(self, training: int) -> None:
        """Read the CPU times; ``training`` is the ident of the training thread."""
        now_ns = self._now_ns()
        if now_ns >= self._search_at_ns:
            self._search(training, now_ns)
        self._begin_ns = 0
        if not self._watched or self._training is None:
            return
        training_ns = self._cpu_ns(self._training.native_id)
        if training_ns is None:
            return
        self._training_ns = training_ns
        for native_id, watched in list(self._watched.items()):
            cpu_ns = self._cpu_ns(native_id)
            if cpu_ns is None:
                del self._watched[native_id]
            else:
                watched.look_begins(cpu_ns)
        self._begin_ns = self._now_ns()

    def look_ends(self) -> int | None:
        """Return the ident of the thread that had the lock which the training thread waited for; None without one."""
        if not self._begin_ns:
            self._before = None
            return None
        end_ns = self._now_ns()
        for native_id, watched in self._watched.items():
            watched.look_ends(self._cpu_ns(native_id), end_ns - self._begin_ns)
        if self._helpers is None:  # these may be any threads
            others_ns = self._process_ns()
        else:
            others_ns = sum(self._cpu_ns(native_id) or 0 for native_id in self._helpers)
        before, self._before = self._before, (end_ns, self._training_ns, others_ns)
        if before is None:
            return None
        since_ns, training_ns, others_ns = (now - then for now, then in zip(self._before, before, strict=True))
        holders = [watched for watched in self._watched.values() if watched.runs_python]
        if not holders or since_ns <= 0:
            return None
        helpers_ns = others_ns
        if self._helpers is None:
            helpers_ns = max(0, others_ns - training_ns - sum(watched.used_ns for watched in self._watched.values()))
        held_ns = sum(watched.used_ns for watched in holders)
        waited_ns = max(0, min(held_ns, since_ns - training_ns - helpers_ns))
        self._owed = min(2.0, self._owed + waited_ns / since_ns)
        if self._owed < 1.0:
            return None
        self._owed -= 1.0
        return max(holders, key=lambda watched: watched.used_ns).thread.ident

    def find_helpers(self) -> None:
        """Find the helpers again if a search has found busy threads. Call it when all of a look has been read."""
        if self._needs_helpers:
            self._needs_helpers, before = False, self._helpers
            self._helpers = self._read_helpers()
            if self._helpers != before:
                self._before = None

    def _search(self, training: int, now_ns: int) -> None:
        """Watch the threads that have used a CPU for a good part of the time since the last search."""
        threads = [each for each in self._threads() if not each.name.startswith(OWN_THREADS)][:MOST_THREADS]
        self._training = next((each for each in threads if each.ident == training), None)
        cpu_ns = {
            each.native_id: (each, used_ns)
            for each in threads
            if each.ident != training and (used_ns := self._cpu_ns(each.native_id)) is not None
        }
        before, since_ns = self._cpu_at_search, now_ns - self._searched_ns
        self._is_known = self._searched_ns > 0
        self._cpu_at_search = {native_id: used_ns for native_id, (_, used_ns) in cpu_ns.items()}
        self._searched_ns, self._search_at_ns = now_ns, now_ns + SEARCH_NS
        used = {native_id: ns - before.get(native_id, ns) for native_id, ns in self._cpu_at_search.items()}
        busiest = sorted(used, key=lambda native_id: -used[native_id])[:MOST_WATCHED]
        busy = [native_id for native_id in busiest if used[native_id] >= BUSY_FROM * since_ns]
        self._watched = {native_id: self._watched.get(native_id) or _Watched(*cpu_ns[native_id]) for native_id in busy}
        self._needs_helpers = bool(busy)


def has_gil() -> bool:
    """Return whether one thread at a time runs Python."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def lock_watch(openmp_sleeps: bool = False) -> LockWatch | None:
    """Return the watch of this process; None where Python has no such lock, or a thread's CPU time is not known.

    Called on the training thread: OpenMP's number of threads is that of the thread that asks. They may sleep while they
    wait, instead of spinning first.
    """
    if sys.platform != "linux" or not has_gil() or thread_cpu_ns(threading.get_native_id()) is None:
        return None
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    sleeps = openmp_sleeps or count is None or count() > len(os.sched_getaffinity(0))
    return LockWatch(helpers=(lambda: None) if sleeps else helper_threads)
