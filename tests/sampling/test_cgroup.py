"""Files as control groups show them, captured from machines of each kind."""

from pathlib import Path

from training_profiler.sampling.host import Usage, find_container, read_usage

GIB = 2**30


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def docker_v2(root: Path) -> Path:
    """A container under version 2, which sees its own group as the root."""
    group = "sys/fs/cgroup/"
    return made(
        root,
        {
            "proc/self/cgroup": "0::/\n",
            group + "cgroup.controllers": "cpuset cpu io memory pids\n",
            group + "memory.max": f"{24 * GIB}\n",
            group + "memory.current": f"{10 * GIB}\n",
            group + "memory.stat": f"anon 123\nfile 456\ninactive_file {2 * GIB}\nactive_file 7\n",
            group + "cpu.max": "250000 100000\n",
            group + "cpu.stat": "usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000\n",
        },
    )


def docker_v1(root: Path) -> Path:
    """A container under version 1: the path is the host's, which is not there inside."""
    mounts = "sys/fs/cgroup/"
    return made(
        root,
        {
            "proc/self/cgroup": "5:memory:/docker/0123abcd\n4:cpu,cpuacct:/docker/0123abcd\n1:name=systemd:/docker/0\n",
            mounts + "memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            mounts + "memory/memory.usage_in_bytes": f"{6 * GIB}\n",
            mounts + "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
            mounts + "cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            mounts + "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            mounts + "cpu,cpuacct/cpuacct.usage": "7000000000\n",
        },
    )


def test_limits_and_use_of_a_container_under_version_2(tmp_path):
    container = find_container(docker_v2(tmp_path))
    assert (container.memory_limit_bytes, container.cpu_quota) == (24 * GIB, 2.5)
    assert read_usage(container) == Usage(memory_bytes=8 * GIB, cpu_ns=5_000_000_000)


def test_limits_and_use_of_a_container_under_version_1(tmp_path):
    container = find_container(docker_v1(tmp_path))
    assert (container.memory_limit_bytes, container.cpu_quota) == (8 * GIB, 4.0)
    assert read_usage(container) == Usage(memory_bytes=5 * GIB, cpu_ns=7_000_000_000)


def test_the_smallest_limit_of_the_groups_around_holds(tmp_path):
    outer, inner = "sys/fs/cgroup/job.slice/", "sys/fs/cgroup/job.slice/task.scope/"
    made(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job.slice/task.scope\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            outer + "memory.max": f"{16 * GIB}\n",
            outer + "memory.current": f"{12 * GIB}\n",
            outer + "memory.stat": "inactive_file 0\n",
            outer + "cpu.max": "max 100000\n",
            outer + "cpu.stat": "usage_usec 10\n",
            inner + "memory.max": "max\n",
            inner + "memory.current": f"{GIB}\n",
            inner + "cpu.max": "max 100000\n",
            inner + "cpu.stat": "usage_usec 1\n",
        },
    )
    container = find_container(tmp_path)
    assert (container.memory, container.memory_limit_bytes) == (tmp_path / outer, 16 * GIB)
    assert container.cpu_quota is None
    assert read_usage(container) == Usage(12 * GIB, 10_000)


def test_a_container_without_limits_has_use_all_the_same(tmp_path):
    made(docker_v2(tmp_path), {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    container = find_container(tmp_path)
    assert (container.memory_limit_bytes, container.cpu_quota) == (None, None)
    assert read_usage(container) == Usage(8 * GIB, 5_000_000_000)


def test_controllers_mounted_one_by_one_are_found(tmp_path):
    mounts = "sys/fs/cgroup/"
    made(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n2:cpuacct:/\n1:cpu:/\n0::/\n",
            mounts + "memory/job/memory.limit_in_bytes": f"{GIB}\n",
            mounts + "memory/job/memory.usage_in_bytes": "3\n",
            mounts + "cpu/cpu.cfs_quota_us": "50000\n",
            mounts + "cpu/cpu.cfs_period_us": "100000\n",
            mounts + "cpuacct/cpuacct.usage": "9\n",
        },
    )
    container = find_container(tmp_path)
    assert (container.memory_limit_bytes, container.cpu_quota) == (GIB, 0.5)
    assert read_usage(container).memory_bytes == 3


def test_malformed_files_are_ignored(tmp_path):
    group = "sys/fs/cgroup/"
    made(
        docker_v2(tmp_path),
        {
            group + "memory.max": "",
            group + "cpu.max": "a b c\n",
            group + "memory.stat": "\n",
            group + "cpu.stat": "x\n",
        },
    )
    container = find_container(tmp_path)
    assert (container.memory_limit_bytes, container.cpu_quota) == (None, None)
    assert read_usage(container) == Usage(10 * GIB, None)


def test_stalls_are_those_of_the_group_and_else_of_the_host(tmp_path):
    stalls = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    host = {f"proc/pressure/{resource}": stalls.format(1_000_000) for resource in ("memory", "io")}
    inside = {"sys/fs/cgroup/io.pressure": stalls.format(2_500_000)}
    usage = read_usage(find_container(made(docker_v2(tmp_path), host | inside)))
    assert (usage.memory_stall_s, usage.disk_stall_s) == (1.0, 2.5)
    assert read_usage(find_container(docker_v1(tmp_path / "without"))).disk_stall_s is None
