"""The frozen stats of the machine, part of a snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

YOUNG: Final = ("generation 0", "generation 1")  # kinds of collections
FULL: Final = "generation 2"
ASKED: Final = "gc.collect()"  # of any generation


@dataclass(frozen=True, slots=True)
class Pause:
    """Time within steps in which the training stood still for one cause, in s."""

    cause: str
    seconds: float
    min_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class CollectionStats:
    """The garbage collections of one kind on the training thread."""

    count: int = 0
    total_s: float = 0.0
    step_count: int = 0  # of them, within training steps
    step_total_s: float = 0.0
    steps: int = 0  # that had one
    longest_s: float = 0.0  # within steps
    longest_step: int = 0  # counted from 1


@dataclass(frozen=True, slots=True)
class GarbageStats:
    """The garbage collections of a stretch of a run."""

    steps: int  # of which all collections are known
    by_kind: Mapping[str, CollectionStats] = field(default_factory=dict)
    share_of_step: float = 0.0  # their part of the time of those steps after the first ten, 0 to 1
    explained: float = 0.0  # their part of the variance of the time of those steps

    @property
    def step_total_s(self) -> float:
        """Their time within training steps."""
        return self.of(*self.by_kind).step_total_s

    def of(self, *kinds: str) -> CollectionStats:
        """Return the stats of these kinds together; ``steps`` is then the most of one of them."""
        found = [self.by_kind[kind] for kind in kinds if kind in self.by_kind]
        longest = max(found, key=lambda stats: stats.longest_s, default=CollectionStats())
        return CollectionStats(
            sum(stats.count for stats in found),
            sum(stats.total_s for stats in found),
            sum(stats.step_count for stats in found),
            sum(stats.step_total_s for stats in found),
            max((stats.steps for stats in found), default=0),
            longest.longest_s,
            longest.longest_step,
        )


@dataclass(frozen=True, slots=True)
class Level:
    """A quantity over a stretch of time."""

    mean: float
    max: float
    last: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of memory over a stretch: a straight line through it."""

    bytes: float  # from the first point of the line to its last; negative if memory shrank
    p_value: float  # probability of such growth by chance
    points: int
    seconds: float  # duration of the stretch


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Memory that grows, or is more, from a step on."""

    step: int  # the first of them, counted from 1
    first_step: int  # 95 % interval of ``step``
    last_step: int
    before_bytes: float  # at that step, or the median before it
    after_bytes: float  # at the end, or the median after it
    grows: bool  # on and on; else it is more once
    device: int | None = None  # index of the accelerator; None for the process


@dataclass(frozen=True, slots=True)
class GpuStats:
    """One accelerator. None means unknown."""

    index: int
    name: str = ""
    total_bytes: int | None = None
    allocated_bytes: Level | None = None  # by torch's allocator in this process
    reserved_bytes: Level | None = None
    used_bytes: Level | None = None  # by all processes
    utilization: Level | None = None  # part of the time in which a kernel ran, 0 to 1
    temperature_c: Level | None = None
    power_w: Level | None = None
    clock_mhz: Level | None = None  # of its processors
    allocated_growth: Growth | None = None
    alloc_retries: Level | None = None  # times so far that torch's allocator had to free its cache and try again
    energy_j: float | None = None  # counted by the device over ``energy_s``
    energy_s: float | None = None
    loop_utilization: Level | None = None  # utilization from the first steps on, without capture windows
    processes: Level | None = None  # how many use it
    others_utilization: Level | None = None  # part of the time in which kernels of other programs ran, 0 to 1
    sm_active: Level | None = None  # this and the following: counted within settled steps; part of its processors
    tensor_active: Level | None = None  # part of the time of its processors in which tensor cores worked, 0 to 1
    dram_active: Level | None = None  # part of its memory bandwidth
    pcie_rx_bytes_per_s: Level | None = None  # to the device
    pcie_tx_bytes_per_s: Level | None = None
    nvlink_rx_bytes_per_s: Level | None = None  # over all links
    nvlink_tx_bytes_per_s: Level | None = None
    throttled_heat: Level | None = None  # part of the samples with work in which this held its clock down, 0 to 1
    throttled_power: Level | None = None  # the same of its power limit, as under full load
    throttled_hardware: Level | None = None  # the same of its power supply, or another fault
    ecc_errors: Level | None = None  # uncorrected, since its driver was loaded
    rows_to_remap: Level | None = None  # 1: rows of its memory have to be remapped, or could not be
    pcie_width: Level | None = None  # lanes in use; its link may have ``pcie_most_width``
    pcie_most_width: Level | None = None
    pcie_generation: Level | None = None
    pcie_most_generation: Level | None = None

    @property
    def held_bytes(self) -> Level | None:
        """Memory in use: by all processes if known, else by this one."""
        return self.used_bytes or self.reserved_bytes or self.allocated_bytes


@dataclass(frozen=True, slots=True)
class MachineStats:
    """The system monitor's stats. None means unknown."""

    samples: int
    cores: float | None = None  # CPUs available to this process: affinity and the container's quota
    allowed_cores: int | None = None  # CPUs in this process's affinity
    host_cores: int | None = None
    local_ranks: int = 1  # processes of this training on this machine
    cpu_process: Level | None = None  # CPUs kept busy by this process and its children, 1.0 = one whole CPU
    cpu_container: Level | None = None  # the same for the container
    cpu_host: Level | None = None  # part of all CPUs of the host, 0 to 1
    cpu_allowed: Level | None = None  # the same of the CPUs in this process's affinity, where those are fewer
    cpu_wait: Level | None = None  # part of the time in which the training waited for a free CPU, 0 to 1
    cpu_wait_own: Level | None = None  # the same of the training thread alone, without helpers of its operations
    cpu_wait_known_s: float | None = None  # time that these means are of, from the first sample to the last
    cpu_waiting: Level | None = None  # threads of this process that waited for a free CPU
    cpu_throttled: Level | None = None  # part of the periods in which the container's quota stopped it, 0 to 1
    cpu_steal: Level | None = None  # part of the host's CPU time that its hypervisor gave to others, 0 to 1
    memory_stall: Level | None = None  # part of the time in which every program waited for memory pages, 0 to 1
    disk_stall: Level | None = None  # part of the time in which every program waited for a disk, 0 to 1
    page_faults: Level | None = None  # of the training thread without a read from a disk, in a second of the loop
    pages_read: Level | None = None  # page faults of the same that read from a disk or swap, in a second of the loop
    page_cost_s: float | None = None  # CPU time of a page of new memory; None if it was not measured
    cpu_kernel: Level | None = None  # part of the loop in which the kernel worked for the training thread, 0 to 1
    recorded: Level | None = None  # part of the samples after the first steps in which a profiler of torch was on
    ram_process_bytes: Level | None = None  # resident memory of this process and its children
    ram_container_bytes: Level | None = None
    ram_limit_bytes: int | None = None  # of the container; None without a limit
    ram_host_bytes: Level | None = None  # used on the host
    ram_host_total_bytes: int | None = None
    ram_available_bytes: Level | None = None  # until the limit or the host's memory is reached
    ram_share: Level | None = (
        None  # used part of the container's limit if there is one, else of the host's memory; 0 to 1
    )
    ram_growth: Growth | None = None  # of this process
    gpus: tuple[GpuStats, ...] = ()

    @property
    def least_busy(self) -> tuple[float, int] | None:
        """How busy the least busy accelerator is in the loop, 0 to 1, and its index; None if unknown."""
        known = ((gpu.loop_utilization.mean, gpu.index) for gpu in self.gpus if gpu.loop_utilization is not None)
        return min(known, default=None)

    @property
    def most_shared(self) -> tuple[float, GpuStats] | None:
        """For how much of the time others keep the accelerator busy that they use most, and which; None if unknown."""
        known = [(gpu.others_utilization.mean, gpu) for gpu in self.gpus if gpu.others_utilization is not None]
        return max(known, key=lambda other: other[0], default=None)

    @property
    def shared_cpus(self) -> tuple[float, float] | None:
        """The CPUs that this process may use, and how many of them anyone kept busy; None if unknown."""
        busy, count = self.cpu_allowed, self.allowed_cores
        if busy is None or count is None:
            busy, count = self.cpu_host, self.host_cores
        return None if busy is None or count is None else (float(count), busy.mean * count)
