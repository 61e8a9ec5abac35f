"""CPU and memory of this process, its children and the host, by psutil."""

import multiprocessing
import os
import time
from collections.abc import Callable
from math import ceil
from typing import Any, Final, NamedTuple

# A file of /proc takes 0.1 ms to read and a child has two; searching all processes for children takes over 1 ms
# (benchmarks/machine_monitor.py). So children are searched for at samples 0, 1, 2, 4, 8, 16, 32, 52...
SAMPLES_PER_SEARCH: Final = 20
SEARCH_SHARE: Final = 1 / 5000  # of the time, where there are thousands
CHILDREN_PER_SAMPLE: Final = 1  # eight children are read at every eighth sample
ALIKE_FROM: Final = 0.5  # of this process's CPU time: a sibling with less, such as one that cleans up, does not train


class HostReading(NamedTuple):
    """Readings of processes and host at one moment; None is unknown."""

    tree_cpu_s: float | None  # of this process and its children; None at some samples
    own_bytes: int  # resident, of this process
    tree_bytes: int  # with its children
    host_cpu_s: tuple[float, float]  # busy and in all, over all CPUs since the host began
    allowed_cpu_s: tuple[float, float] | None  # the same of the CPUs of ``Host.allowed``; None if those are all
    stolen_s: float | None  # of all that: in which the hypervisor ran others; None is unknown
    host_total_bytes: int
    host_available_bytes: int
    siblings: int = 0  # at most so far: processes that work like this one, started by the same one


class Host:
    """Reads processes and host with psutil. Not thread-safe.

    Raises:
        ImportError: psutil is not installed.
    """

    def __init__(
        self,
        psutil: Any = None,
        clock_s: Callable[[], float] = time.perf_counter,
        own_cpu_s: Callable[[], float] = time.process_time,  # more exact than psutil, and without reading a file
        ended_cpu_s: Callable[[], float] | None = None,  # of children that have ended
        affinity: set[int] | None = None,
        is_spawned: bool | None = None,  # by multiprocessing, which may have started others for the same training
    ) -> None:
        if psutil is None:
            import psutil as installed

            psutil = installed
        self._psutil = psutil
        self._process = self._psutil.Process()
        self._is_spawned = multiprocessing.parent_process() is not None if is_spawned is None else is_spawned
        self._siblings = 0
        self._children: list[Any] = []
        self._children_cpu_s = 0.0  # of all that run or have ended
        self._children_bytes = 0
        self._samples = 0
        self._clock_s, self._own_cpu_s, self._ended_cpu_s = clock_s, own_cpu_s, ended_cpu_s or _ended_children_cpu_s
        self._search_from_s = 0.0
        self._search_at = 0
        count = psutil.cpu_count() or 0
        mine = _affinity() if affinity is None else affinity
        self._allowed = sorted(mine) if len(mine) < count else []

    def read(self) -> HostReading:
        """Return the current readings. Those of many children may be some samples old."""
        if self._samples >= self._search_at and self._clock_s() >= self._search_from_s:
            self._search()
        is_complete = self._samples % max(1, ceil(len(self._children) / CHILDREN_PER_SAMPLE)) == 0
        if is_complete:
            self._read_children()
        self._samples += 1
        memory, times = self._psutil.virtual_memory(), self._psutil.cpu_times()
        own_bytes = self._process.memory_info().rss
        return HostReading(
            self._own_cpu_s() + self._children_cpu_s if is_complete else None,
            own_bytes,
            own_bytes + self._children_bytes,
            _busy_and_all(times),
            self._read_allowed(),
            getattr(times, "steal", None),
            memory.total,
            memory.available,
            self._siblings,
        )

    def cores(self) -> float | None:
        """Return how many CPUs this process may run on."""
        affinity = _affinity()
        if affinity:
            return float(len(affinity))
        count = self._psutil.cpu_count()
        return None if count is None else float(count)

    def allowed(self) -> int | None:
        """Return how many CPUs are in the affinity of this process, if that is a part of the host's; else None."""
        return len(self._allowed) or None

    def _read_allowed(self) -> tuple[float, float] | None:
        if not self._allowed:
            return None
        each = self._psutil.cpu_times(percpu=True)
        readings = [_busy_and_all(each[cpu]) for cpu in self._allowed if cpu < len(each)]
        return sum(busy for busy, _ in readings), sum(whole for _, whole in readings)

    def host_cores(self) -> int | None:
        """Return how many CPUs the host has."""
        count: int | None = self._psutil.cpu_count()
        return count

    def _search(self) -> None:
        begin_s = self._clock_s()
        self._search_at = self._samples + min(max(1, self._samples), SAMPLES_PER_SEARCH)
        try:
            self._children = self._process.children(recursive=True)
        except self._psutil.Error:
            self._children = []
        if self._is_spawned:
            self._siblings = max(self._siblings, self._count_siblings())
        end_s = self._clock_s()
        self._search_from_s = end_s + (end_s - begin_s) / SEARCH_SHARE

    def _count_siblings(self) -> int:
        least_s, count = ALIKE_FROM * self._own_cpu_s(), 0
        try:
            parent = self._process.parent()
            siblings = [] if parent is None else parent.children()
        except self._psutil.Error:
            return 0
        for each in siblings:
            try:
                times = each.cpu_times()
            except self._psutil.Error:  # it has ended
                continue
            count += each.pid != self._process.pid and times.user + times.system >= least_s
        return count

    def _read_children(self) -> None:
        # The system adds up children that have ended, also those that were never found: workers of one short epoch.
        cpu_s, self._children_bytes = self._ended_cpu_s(), 0
        for child in self._children:
            try:
                with child.oneshot():
                    times, resident_bytes = child.cpu_times(), child.memory_info().rss
            except self._psutil.Error:  # it has ended
                continue
            cpu_s += times.user + times.system
            self._children_bytes += resident_bytes
        self._children_cpu_s = max(self._children_cpu_s, cpu_s)  # a child may have ended and not been waited for


def _affinity() -> set[int]:
    """Return the CPUs that this process may use; empty where that is unknown."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _ended_children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _busy_and_all(times: Any) -> tuple[float, float]:
    """Return busy and all seconds. Guest time is part of user time, and I/O wait counts as idle."""
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return all_s - times.idle - getattr(times, "iowait", 0.0), all_s
