"""Limits and use of the container of this process, read from Linux control groups v1 and v2."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from training_profiler.base.units import NS_PER_US, US_PER_S

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
    memory = _groups(root, "memory")
    cpu = _groups(root, "cpu")
    cpu_use = _groups(root, "cpuacct") or cpu
    limits = [(limit, group) for group in memory if (limit := _memory_limit(group)) is not None]
    quotas = [(quota, group) for group in cpu if (quota := _cpu_quota(group)) is not None]
    limit, memory_group = min(limits, default=(None, None), key=lambda entry: entry[0])
    quota, cpu_group = min(quotas, default=(None, None), key=lambda entry: entry[0])
    inside = memory[-1] if memory and (memory[-1] / "memory.current").exists() else None
    return Container(
        memory_group or inside,
        limit,
        _same(cpu_group, cpu, cpu_use) or _same(memory_group or inside, memory, cpu_use),
        quota,
        cpu_group,
        _pressure(root, memory_group or inside, "memory"),
        _pressure(root, memory_group or inside, "io"),
    )


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
    memory, cpu = container.memory, container.cpu
    return Usage(
        None if memory is None else _memory_use(memory),
        None if cpu is None else _cpu_use(cpu),
        None if container.pressure is None else _full_stall_s(container.pressure),
        None if container.disk_pressure is None else _full_stall_s(container.disk_pressure),
        None if container.quota_group is None else _periods(container.quota_group),
    )


def _groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and those around it, the innermost first."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            named = [mounts / controllers, mounts / controller]
            return list(_existing(next((mount for mount in named if mount.is_dir()), None), path))
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::") and (mounts / "cgroup.controllers").exists():
            return list(_existing(mounts, line.removeprefix("0::")))
    return []


def _existing(mount: Path | None, path: str) -> Iterator[Path]:
    if mount is None:
        return
    inner = PurePosixPath(path)
    for group in (inner, *inner.parents):
        # Inside a container the path can be that of the host, which does not exist here.
        folder = mount / str(group).lstrip("/")
        if ".." not in group.parts and folder.is_dir():
            yield folder


def _memory_limit(group: Path) -> int | None:
    limit = _number(group / "memory.max")
    if limit is None:
        limit = _number(group / "memory.limit_in_bytes")
    return limit if limit is not None and limit < NO_LIMIT else None


def _cpu_quota(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    if not words:
        words = [_text(group / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _memory_use(group: Path) -> int | None:
    used = _number(group / "memory.current")
    if used is None:
        used = _number(group / "memory.usage_in_bytes")
    if used is None:
        return None
    rows = dict(line.split()[:2] for line in _text(group / "memory.stat").splitlines() if " " in line)
    inactive = rows.get("total_inactive_file") or rows.get("inactive_file") or "0"
    return max(0, used - int(inactive))


def _cpu_use(group: Path) -> int | None:
    for line in _text(group / "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return int(value) * NS_PER_US
    return _number(group / "cpuacct.usage")


def _periods(group: Path) -> tuple[int, int] | None:
    rows = dict(line.split()[:2] for line in _text(group / "cpu.stat").splitlines() if " " in line)
    stopped, periods = rows.get("nr_throttled", ""), rows.get("nr_periods", "")
    return (int(stopped), int(periods)) if stopped.isdecimal() and periods.isdecimal() else None


def _full_stall_s(path: Path) -> float | None:
    for line in _text(path).splitlines():
        kind, *figures = line.split()
        total = next((figure.removeprefix("total=") for figure in figures if figure.startswith("total=")), "")
        if kind == "full" and total.isdecimal():
            return int(total) / US_PER_S
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
