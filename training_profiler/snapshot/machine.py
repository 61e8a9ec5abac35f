"""The frozen figures of the machine, which are part of a snapshot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """How high a quantity was over a stretch."""

    mean: float
    max: float
    last: float


@dataclass(frozen=True, slots=True)
class Growth:
    """A rise of memory over a stretch: a straight line through it."""

    bytes: float  # from the first point of the line to its last; negative where it fell
    p_value: float  # of chance alone making such a rise
    points: int
    seconds: float  # over which


@dataclass(frozen=True, slots=True)
class GpuStats:
    """One accelerator; None is unknown."""

    index: int
    name: str = ""
    total_bytes: int | None = None
    allocated_bytes: Level | None = None  # by torch's allocator of this process
    reserved_bytes: Level | None = None
    used_bytes: Level | None = None  # by all processes
    utilization: Level | None = None  # 0 to 1: part of the time in which a kernel ran
    temperature_c: Level | None = None
    power_w: Level | None = None
    allocated_growth: Growth | None = None

    @property
    def held_bytes(self) -> Level | None:
        """How much of its memory is taken: by all processes, else what is known of this one."""
        return self.used_bytes or self.reserved_bytes or self.allocated_bytes


@dataclass(frozen=True, slots=True)
class MachineStats:
    """What the monitor saw of the machine; None is unknown."""

    samples: int
    cores: float | None = None  # CPUs that this process may use: affinity and the container's quota
    host_cores: int | None = None
    cpu_process: Level | None = None  # CPUs busy with this process and its children, 1.0 = one whole CPU
    cpu_container: Level | None = None  # the same of the container
    cpu_host: Level | None = None  # part of all of the host's CPUs, 0 to 1
    ram_process_bytes: Level | None = None  # resident, of this process and its children
    ram_container_bytes: Level | None = None
    ram_limit_bytes: int | None = None  # of the container; None where there is none
    ram_host_bytes: Level | None = None  # used on the host
    ram_host_total_bytes: int | None = None
    ram_available_bytes: Level | None = None  # before the limit or the host's end is reached
    ram_share: Level | None = None  # used part of the container's limit where there is one, else of the host's; 0 to 1
    ram_growth: Growth | None = None  # of this process
    gpus: tuple[GpuStats, ...] = ()
