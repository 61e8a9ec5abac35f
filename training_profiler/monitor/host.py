"""CPU and memory of this process, its children and the host, by psutil."""

import os
from math import ceil
from typing import Any, Final, NamedTuple

LOOKS_A_SEARCH: Final = 10  # searching all processes for children takes 1 ms, which is a look and a half
CHILDREN_A_LOOK: Final = 8  # reading one takes 40 us


class Seen(NamedTuple):
    """What is known of processes and host at one moment; None is unknown."""

    tree_cpu_s: float | None  # of this process and of its children since they were first seen; None at some looks
    own_bytes: int  # resident, of this process
    tree_bytes: int  # and with its children
    host_cpu_s: tuple[float, float]  # busy and in all, over all CPUs since the host began
    host_total_bytes: int
    host_available_bytes: int


class Host:
    """Reads what psutil knows; not made for several threads.

    Raises:
        ImportError: psutil is not installed.
    """

    def __init__(self, psutil: Any = None) -> None:
        if psutil is None:
            import psutil as installed

            psutil = installed
        self._psutil = psutil
        self._process = self._psutil.Process()
        self._children: list[Any] = []
        self._children_cpu_s: dict[int, float] = {}  # since each began
        self._children_spent_s = 0.0
        self._children_bytes = 0
        self._looks = 0

    def read(self) -> Seen:
        """Return what is known now; of many children as of some looks ago."""
        if self._looks % LOOKS_A_SEARCH == 0:
            self._search()
        is_complete = self._looks % max(1, ceil(len(self._children) / CHILDREN_A_LOOK)) == 0
        if is_complete:
            self._read_children()
        self._looks += 1
        cpu, memory = self._process.cpu_times(), self._psutil.virtual_memory()
        own_bytes = self._process.memory_info().rss
        return Seen(
            cpu.user + cpu.system + self._children_spent_s if is_complete else None,
            own_bytes,
            own_bytes + self._children_bytes,
            _busy_and_all(self._psutil.cpu_times()),
            memory.total,
            memory.available,
        )

    def cores(self) -> float | None:
        """Return how many CPUs this process may run on."""
        if hasattr(os, "sched_getaffinity"):
            return float(len(os.sched_getaffinity(0)))
        count = self._psutil.cpu_count()
        return None if count is None else float(count)

    def host_cores(self) -> int | None:
        """Return how many CPUs the host has."""
        count: int | None = self._psutil.cpu_count()
        return count

    def _search(self) -> None:
        try:
            self._children = self._process.children(recursive=True)
        except self._psutil.Error:
            self._children = []

    def _read_children(self) -> None:
        before_s, self._children_cpu_s, self._children_bytes = self._children_cpu_s, {}, 0
        for child in self._children:
            try:
                with child.oneshot():
                    cpu, resident_bytes = child.cpu_times(), child.memory_info().rss
            except self._psutil.Error:  # it has ended
                continue
            cpu_s = self._children_cpu_s[child.pid] = cpu.user + cpu.system
            # When a child is seen for the first time it may have run for many looks.
            self._children_spent_s += max(0.0, cpu_s - before_s.get(child.pid, cpu_s))
            self._children_bytes += resident_bytes


def _busy_and_all(times: Any) -> tuple[float, float]:
    """Return busy and all seconds; a guest's stand in the user's as well, and waiting for a disk is idle."""
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return all_s - times.idle - getattr(times, "iowait", 0.0), all_s
