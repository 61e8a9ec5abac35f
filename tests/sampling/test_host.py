from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from training_profiler.sampling.host import Host, Usage, find_container, read_usage

Cpu = namedtuple("Cpu", "user system")
Memory = namedtuple("Memory", "rss")
Virtual = namedtuple("Virtual", "total available")
LinuxTimes = namedtuple("LinuxTimes", "user nice system idle iowait irq softirq steal guest guest_nice")
MacTimes = namedtuple("MacTimes", "user nice system idle")


class FakeProcess:
    def __init__(self, psutil: "FakePsutil", pid: int, cpu_s: float, resident_bytes: int) -> None:
        self._psutil, self.pid, self.cpu_s, self.resident_bytes = psutil, pid, cpu_s, resident_bytes
        self.has_ended = False
        self.reads = 0

    def oneshot(self) -> Any:
        return nullcontext()

    def cpu_times(self) -> Cpu:
        if self.has_ended:
            raise self._psutil.Error
        self.reads += 1
        return Cpu(self.cpu_s, 0.0)

    def memory_info(self) -> Memory:
        return Memory(self.resident_bytes)

    def parent(self) -> "FakeProcess | None":
        return self._psutil.parent

    def children(self, recursive: bool = False) -> list["FakeProcess"]:
        if self is self._psutil.parent:
            return [self._psutil.own, *self._psutil.siblings]
        assert recursive
        self._psutil.searches += 1
        self._psutil.now_s += self._psutil.search_s
        return [child for child in self._psutil.workers if not child.has_ended]


class FakePsutil:
    """The part of psutil that ``Host`` uses."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.own = FakeProcess(self, 1, 10.0, 1000)
        self.workers: list[FakeProcess] = []
        self.parent: FakeProcess | None = FakeProcess(self, 0, 1.0, 1000)
        self.siblings: list[FakeProcess] = []
        self.searches = 0
        self.search_s = self.now_s = self.ended_cpu_s = 0.0
        self.times: Any = LinuxTimes(5.0, 1.0, 2.0, 80.0, 10.0, 1.0, 1.0, 0.0, 2.0, 1.0)
        self.each = [MacTimes(float(cpu), 0.0, 0.0, 10.0) for cpu in range(8)]

    def Process(self) -> FakeProcess:
        return self.own

    def virtual_memory(self) -> Virtual:
        return Virtual(8000, 3000)

    def cpu_times(self, percpu: bool = False) -> Any:
        return self.each if percpu else self.times

    def cpu_count(self) -> int:
        return 8


def host_of(psutil: FakePsutil, affinity: Any = frozenset(range(8)), is_spawned: bool = False) -> Host:
    times = (lambda: psutil.now_s, lambda: psutil.own.cpu_s, lambda: psutil.ended_cpu_s)
    return Host(psutil, *times, affinity, is_spawned)


def worker(psutil: FakePsutil, pid: int, cpu_s: float = 0.0, resident_bytes: int = 100) -> FakeProcess:
    child = FakeProcess(psutil, pid, cpu_s, resident_bytes)
    psutil.workers.append(child)
    return child


def test_memory_and_cpu_time_of_process_and_host():
    psutil = FakePsutil()
    seen = host_of(psutil).read()
    assert (seen.tree_cpu_s, seen.own_bytes, seen.tree_bytes) == (10.0, 1000, 1000)
    assert (seen.host_total_bytes, seen.host_available_bytes) == (8000, 3000)
    assert seen.host_cpu_s == (10.0, 100.0)  # guest time counts once, and waiting for I/O is idle
    psutil.times = MacTimes(5.0, 1.0, 2.0, 92.0)
    assert host_of(psutil).read().host_cpu_s == (8.0, 100.0)


def test_cpus_outside_the_affinity_are_left_out():
    assert host_of(FakePsutil()).read().allowed_cpu_s is None
    host = host_of(FakePsutil(), affinity={2, 5})
    assert (len(host.allowed), host.read().allowed_cpu_s) == (2, (7.0, 27.0))


def test_children_count_with_memory_and_cpu_time():
    psutil = FakePsutil()
    child = worker(psutil, 2, cpu_s=50.0)
    host = host_of(psutil)
    first = host.read()
    child.cpu_s, psutil.own.cpu_s = 53.0, 11.0
    second = host.read()
    assert (first.tree_cpu_s, second.tree_cpu_s) == (60.0, 64.0)
    assert (second.own_bytes, second.tree_bytes) == (1000, 1100)


def test_cpu_time_of_ended_child_is_kept():
    psutil = FakePsutil()
    child = worker(psutil, 2, cpu_s=1.0)
    host = host_of(psutil)
    host.read()
    child.cpu_s = 3.0
    assert host.read().tree_cpu_s == 13.0
    child.has_ended = True
    assert host.read().tree_cpu_s == 13.0  # not waited for yet
    psutil.ended_cpu_s = 3.5
    seen = host.read()
    assert (seen.tree_cpu_s, seen.tree_bytes) == (13.5, 1000)
    psutil.ended_cpu_s = 4.0  # a child that was never found
    assert host.read().tree_cpu_s == 14.0


def test_children_are_searched_for_less_often_later_on():
    psutil = FakePsutil()
    host = host_of(psutil)
    searched_at = []
    for look in range(80):
        before = psutil.searches
        host.read()
        searched_at += [look] * (psutil.searches - before)
    assert searched_at == [0, 1, 2, 4, 8, 16, 32, 52, 72]


def test_many_children_are_read_less_often():
    psutil = FakePsutil()
    children = [worker(psutil, 2 + i) for i in range(4)]
    host = host_of(psutil)
    cpu_s = [host.read().tree_cpu_s for _ in range(8)]
    assert cpu_s == [10.0, None, None, None, 10.0, None, None, None]
    assert {child.reads for child in children} == {2}


def test_installed_psutil_has_all_readings():
    seen = Host().read()
    assert seen.own_bytes > 1_000_000
    assert seen.host_total_bytes > seen.host_available_bytes > 0
    assert seen.tree_cpu_s > 0


def test_processes_of_one_spawn_that_work_alike_are_siblings():
    psutil = FakePsutil()
    tidy, trains, gone = (FakeProcess(psutil, pid, cpu_s, 100) for pid, cpu_s in ((7, 0.05), (8, 9.0), (9, 30.0)))
    psutil.siblings, gone.has_ended = [tidy, trains, gone], True
    host = host_of(psutil, is_spawned=True)
    assert host.read().siblings == 1
    trains.has_ended = True  # it worked beside this one for most of the run
    assert [host.read().siblings for _ in range(9)][-1] == 1
    psutil.parent = None
    assert host_of(psutil, is_spawned=True).read().siblings == 0


GIB = 2**30


def made(root: Path, files: dict[str, str]) -> Path:
    """Write files; those without a folder that begins with "proc" are below that of control groups."""
    for name, text in files.items():
        path = root / (name if name.startswith("proc/") else f"sys/fs/cgroup/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


# A container under version 2, which sees its own group as the root.
DOCKER_2 = {
    "proc/self/cgroup": "0::/",
    "cgroup.controllers": "cpuset cpu io memory pids",
    "memory.max": f"{24 * GIB}",
    "memory.current": f"{10 * GIB}",
    "memory.stat": f"anon 123\nfile 456\ninactive_file {2 * GIB}\nactive_file 7",
    "cpu.max": "250000 100000",
    "cpu.stat": "usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000",
}
# A container under version 1: the path is the host's, which is not there inside.
DOCKER_1 = {
    "proc/self/cgroup": "5:memory:/docker/0123abcd\n4:cpu,cpuacct:/docker/0123abcd\n1:name=systemd:/docker/0",
    "memory/memory.limit_in_bytes": f"{8 * GIB}",
    "memory/memory.usage_in_bytes": f"{6 * GIB}",
    "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
    "cpu,cpuacct/cpu.cfs_quota_us": "400000",
    "cpu,cpuacct/cpu.cfs_period_us": "100000",
    "cpu,cpuacct/cpuacct.usage": "7000000000",
}
OUTER, INNER = "job.slice", "job.slice/task.scope"
# The smallest limit of the groups around holds.
NESTED = {
    "proc/self/cgroup": f"0::/{INNER}",
    "cgroup.controllers": "cpu memory",
    f"{OUTER}/memory.max": f"{16 * GIB}",
    f"{OUTER}/memory.current": f"{12 * GIB}",
    f"{OUTER}/memory.stat": "inactive_file 0",
    f"{OUTER}/cpu.max": "max 100000",
    f"{OUTER}/cpu.stat": "usage_usec 10",
    f"{INNER}/memory.max": "max",
    f"{INNER}/memory.current": f"{GIB}",
    f"{INNER}/cpu.max": "max 100000",
    f"{INNER}/cpu.stat": "usage_usec 1",
}
ONE_BY_ONE = {
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n2:cpuacct:/\n1:cpu:/\n0::/",
    "memory/job/memory.limit_in_bytes": f"{GIB}",
    "memory/job/memory.usage_in_bytes": "3",
    "cpu/cpu.cfs_quota_us": "50000",
    "cpu/cpu.cfs_period_us": "100000",
    "cpuacct/cpuacct.usage": "9",
}
NO_QUOTA_2 = {"memory.max": "max", "cpu.max": "max 100000"}
NO_LIMITS_1 = {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu,cpuacct/cpu.cfs_quota_us": "-1"}
MALFORMED = {"memory.max": "", "cpu.max": "a b c", "memory.stat": "", "cpu.stat": "x"}
USAGE_2 = Usage(8 * GIB, 5_000_000_000)


@pytest.mark.parametrize(
    ("files", "limit_bytes", "quota", "usage"),
    [
        (DOCKER_2, 24 * GIB, 2.5, USAGE_2),
        (DOCKER_2 | NO_QUOTA_2, None, None, USAGE_2),
        (DOCKER_2 | MALFORMED, None, None, Usage(10 * GIB, None)),
        (DOCKER_1, 8 * GIB, 4.0, Usage(5 * GIB, 7_000_000_000)),
        (DOCKER_1 | NO_LIMITS_1, None, None, Usage(None, None)),  # as on a host
        (NESTED, 16 * GIB, None, Usage(12 * GIB, 10_000)),
        (ONE_BY_ONE, GIB, 0.5, Usage(3, 9)),
    ],
)
def test_limits_and_use_of_a_container(tmp_path, files, limit_bytes, quota, usage):
    container = find_container(made(tmp_path, files))
    assert (container.memory_limit_bytes, container.cpu_quota) == (limit_bytes, quota)
    assert read_usage(container) == usage


def test_stalls_are_those_of_the_group_and_else_of_the_host(tmp_path):
    stalls = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}"
    host = {f"proc/pressure/{resource}": stalls.format(1_000_000) for resource in ("memory", "io")}
    usage = read_usage(find_container(made(tmp_path, DOCKER_2 | host | {"io.pressure": stalls.format(2_500_000)})))
    assert (usage.memory_stall_s, usage.disk_stall_s) == (1.0, 2.5)
    assert read_usage(find_container(made(tmp_path / "without", DOCKER_1))).disk_stall_s is None
