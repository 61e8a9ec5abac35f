"""CPU and memory of this process, its children and the host, by psutil, and of its container, by control groups."""

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from training_profiler.base.units import NS_PER_S, NS_PER_US, US_PER_S
from training_profiler.sampling.run_queue import ran_and_waited_ns

NO_LIMIT: Final = 2**60  # v1 writes the largest number of pages where there is no limit


class Container(NamedTuple):
    """The folders of a container's use, and its limits. None: no limit, or it cannot be read."""

    memory: Path | None
    memory_limit_bytes: int | None
    cpu: Path | None
    cpu_quota: float | None  # CPUs
    quota_group: Path | None = None  # has the quota
    pressure: Path | None = None  # file on stalls for memory: of the group, else of the host
    disk_pressure: Path | None = None  # the same for disks


class Usage(NamedTuple):
    """The use of a container; None is unknown."""

    memory_bytes: int | None  # without file pages that the kernel can drop
    cpu_ns: int | None  # since the container began
    memory_stall_s: float | None = None  # in which all its tasks waited for memory pages, since it began
    disk_stall_s: float | None = None  # the same for disks
    periods: tuple[int, int] | None = None  # of its CPU quota: those in which it was stopped, and all


def find_container(root: Path = Path("/")) -> Container:
    """Return the container of this process.

    The smallest limit of the group and its parents applies. Without a limit, a file ``memory.current`` in the root
    group means that the process runs in a container: the root group of a host does not have it.
    """
    memory, cpu = _groups(root, "memory"), _groups(root, "cpu")
    cpu_use = _groups(root, "cpuacct") or cpu
    known = ((_number(group, "memory.max", "memory.limit_in_bytes"), group) for group in memory)
    limits = [(limit, group) for limit, group in known if limit is not None and limit < NO_LIMIT]
    quotas = [(quota, group) for group in cpu if (quota := _cpu_quota(group)) is not None]
    limit, memory_group = min(limits, default=(None, None), key=lambda entry: entry[0])
    quota, cpu_group = min(quotas, default=(None, None), key=lambda entry: entry[0])
    if memory_group is None and memory and (memory[-1] / "memory.current").exists():
        memory_group = memory[-1]
    pressures = (_pressure(root, memory_group, resource) for resource in ("memory", "io"))
    cpu_folder = _same(cpu_group, cpu, cpu_use) or _same(memory_group, memory, cpu_use)
    return Container(memory_group, limit, cpu_folder, quota, cpu_group, *pressures)


def _pressure(root: Path, group: Path | None, resource: str) -> Path | None:
    """Return the file on stalls for a resource: of the group, else of the host."""
    own = [] if group is None else [group / f"{resource}.pressure"]
    return next((path for path in (*own, root / "proc/pressure" / resource) if path.is_file()), None)


def _same(group: Path | None, groups: list[Path], others: list[Path]) -> Path | None:
    """Return the group of another controller at the same depth as ``group``."""
    if group is None:
        return None
    if group in others:
        return group
    from_outside = len(groups) - groups.index(group)
    return others[-from_outside] if from_outside <= len(others) and len(others) == len(groups) else None


def read_usage(container: Container) -> Usage:
    """Return the current use of the container."""
    memory, cpu_ns, periods = container.memory, None, None
    if container.cpu is not None:
        used_us = _rows(container.cpu / "cpu.stat").get("usage_usec")
        cpu_ns = _number(container.cpu, "cpuacct.usage") if used_us is None else used_us * NS_PER_US
    if container.quota_group is not None:
        rows = _rows(container.quota_group / "cpu.stat")
        periods = (rows["nr_throttled"], rows["nr_periods"]) if {"nr_throttled", "nr_periods"} <= rows.keys() else None
    memory_stall_s, disk_stall_s = map(_full_stall_s, (container.pressure, container.disk_pressure))
    return Usage(None if memory is None else _memory_use(memory), cpu_ns, memory_stall_s, disk_stall_s, periods)


def _groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and those around it, the innermost first."""
    mounts = root / "sys/fs/cgroup"
    unified: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mount = next((mounts / name for name in (controllers, controller) if (mounts / name).is_dir()), None)
            return [] if mount is None else list(_existing(mount, path))
        if number == "0" and not controllers and (mounts / "cgroup.controllers").exists():
            unified = list(_existing(mounts, path))
    return unified


def _existing(mount: Path, path: str) -> Iterator[Path]:
    inner = PurePosixPath(path)
    for group in (inner, *inner.parents):
        # Inside a container the path can be that of the host, which does not exist here.
        folder = mount / str(group).lstrip("/")
        if ".." not in group.parts and folder.is_dir():
            yield folder


def _cpu_quota(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    if not words:
        words = [_text(group / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _memory_use(group: Path) -> int | None:
    used, rows = _number(group, "memory.current", "memory.usage_in_bytes"), _rows(group / "memory.stat")
    inactive = rows.get("total_inactive_file") or rows.get("inactive_file") or 0
    return None if used is None else max(0, used - inactive)


def _full_stall_s(path: Path | None) -> float | None:
    full = None if path is None else re.search(r"^full .*\btotal=(\d+)", _text(path), re.MULTILINE)
    return None if full is None else int(full[1]) / US_PER_S


def _rows(path: Path) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", _text(path), re.MULTILINE)}


def _number(group: Path, *names: str) -> int | None:
    texts = (_text(group / name).strip() for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


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
        self._clock_s, self._own_cpu_s = clock_s, own_cpu_s
        self._ended_cpu_s = ended_cpu_s or (lambda: sum(os.times()[2:4]))
        self._search_from_s = 0.0
        self._search_at = 0
        self.cores: int | None = psutil.cpu_count()  # of the host
        mine = _affinity() if affinity is None else affinity
        self.usable_cores = float(len(mine) or self.cores or 0) or None  # by this process
        self.allowed = sorted(mine) if len(mine) < (self.cores or 0) else []  # its CPUs, if those are a part

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

    def busy_s(self) -> float:
        """Return how long the CPUs that this process may use were busy, together, since the host began."""
        return (self._read_allowed() or _busy_and_all(self._psutil.cpu_times()))[0]

    def _read_allowed(self) -> tuple[float, float] | None:
        if not self.allowed:
            return None
        each = self._psutil.cpu_times(percpu=True)
        readings = [_busy_and_all(each[cpu]) for cpu in self.allowed if cpu < len(each)]
        return sum(busy for busy, _ in readings), sum(whole for _, whole in readings)

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


class CpuReading(NamedTuple):
    """Readings at one moment, in which the processes of a training stand still."""

    at_s: float
    busy_s: float  # of the CPUs that the training may use, since the host began
    own_s: float
    waited_ns: dict[int, int]  # of each thread

    @classmethod
    def of(cls, processes: Iterable[Any]) -> "CpuReading":
        """Take the readings."""
        own_s, waited_ns = 0.0, dict[int, int]()
        for process in processes:
            with suppress(Exception):  # it has ended
                own_s += sum(process.cpu_times()[:4])  # with its children that have ended
            for task in Path("/proc", str(process.pid), "task").glob("*"):
                figures = ran_and_waited_ns(task)
                waited_ns |= {} if figures is None else {int(task.name): figures[1]}
        return cls(time.perf_counter(), Host().busy_s(), own_s, waited_ns)

    def until(self, end: "CpuReading") -> tuple[float, float, float, float]:
        """Return the seconds until a later reading, CPU seconds of the processes, of others, and the longest wait."""
        waits_ns = (waited - self.waited_ns.get(task, 0) for task, waited in end.waited_ns.items())
        own_s = max(0.0, end.own_s - self.own_s)
        others_s = max(0.0, end.busy_s - self.busy_s - own_s)
        return end.at_s - self.at_s, own_s, others_s, max((0, *waits_ns)) / NS_PER_S


def _affinity() -> set[int]:
    """Return the CPUs that this process may use; empty where that is unknown."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _busy_and_all(times: Any) -> tuple[float, float]:
    """Return busy and all seconds. Guest time is part of user time, and I/O wait counts as idle."""
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return all_s - times.idle - getattr(times, "iowait", 0.0), all_s
