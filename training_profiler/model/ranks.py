"""The frozen stats of a training on many ranks, part of a snapshot. Times are in seconds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from training_profiler.model.lines import StreamRepeats

FIRST_STEPS: Final = 64  # kept one by one, because warm-up is only known afterwards
BLOCK_STEPS: Final = 16  # steps in a row that ranks compare
MOST_BLOCKS: Final = 8
_Count = Annotated[int, Meta(ge=0, le=2**53)]


class GradientSyncTotals(NamedTuple):
    """Gradient synchronization since the last drain; ns."""

    exchanges: int = 0
    sampled: int = 0  # how many of them DDP timed; the others are assumed to be alike
    total_ns: int = 0  # of all: from the begin of the first bucket to the end of the last
    hidden_ns: int = 0  # the part of that in which gradients were still being computed
    is_on_host: bool = True  # the backward pass waits for it on the host and contains the rest
    of_steps: tuple[tuple[int, int], ...] = ()  # (step counted from 0, exposed ns) of the compared steps

    @property
    def exposed_ns(self) -> int:
        """The time by which synchronization makes the backward pass longer."""
        return max(0, self.total_ns - self.hidden_ns)


class UnusedSearch(NamedTuple):
    """How DDP searched graphs for parameters that get no gradient, on one rank, or on all together."""

    searches: _Count = 0
    seconds: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    looked_at: _Count = 0  # searches whose result is known
    found: _Count = 0  # of these: a parameter is unused


def is_compared(step: int) -> bool:
    """Return whether ranks compare ``step``, counted from 0, one by one.

    Steps come in blocks of 16. At first every block is compared. Whenever there would be more than 8 blocks, every
    other one is left out, of past and future blocks. The choice depends on the step's number alone, so ranks at
    different steps keep the same blocks.
    """
    block = step // BLOCK_STEPS
    return block % block_stride(block + 1) == 0


def compared_blocks(first_step: int, end: int) -> Iterator[int]:
    """Return the first steps of the compared blocks that have a part among the steps from ``first_step`` to ``end``."""
    first = first_step // BLOCK_STEPS
    stride = block_stride(first + 1)  # later ones are as far apart at least
    blocks = range(-(-first // stride) * stride * BLOCK_STEPS, end, stride * BLOCK_STEPS)
    return filter(is_compared, blocks)


def block_stride(blocks: int) -> int:
    """Return the stride between kept blocks: the smallest power of two that leaves at most 8 of ``blocks``."""
    return 1 << max(0, (blocks - 1) // MOST_BLOCKS).bit_length()


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A function that runs, and its line."""

    file: str
    line: int
    function: str
    is_users: bool  # whether it is the user's code and not a library's


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread, outermost frame first."""

    name: str
    frames: tuple[StackFrame, ...]
    is_training: bool = False
    sections: tuple[str, ...] = ()  # that it is in, outermost first
    since_s: float | None = None  # time in the innermost section

    @property
    def users_frame(self) -> StackFrame | None:
        """The innermost frame of the user's code; None without one."""
        return next((frame for frame in reversed(self.frames) if frame.is_users), None)


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of all threads of a rank, without the profiler's own."""

    asked_ns: int  # when they were asked for, by the wall clock; identifies the request
    wall_ns: int
    rank: int
    host: str
    pid: int
    steps: int | None  # ended so far; None where its Python could not answer
    threads: tuple[ThreadStack, ...] = ()

    @property
    def training(self) -> ThreadStack | None:
        """The stack of the thread that trains; None where it has ended."""
        return next((thread for thread in self.threads if thread.is_training), None)


@dataclass(frozen=True, slots=True)
class RankId:
    """A process of a distributed training. None means unknown."""

    rank: int = 0
    world_size: int = 1
    host: str = ""
    node: int | None = None  # number of the machine, if the launcher sets it
    local_rank: int | None = None
    attempt: int = 0  # how often the launcher had restarted the training before

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})" if self.host else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class RankStats:
    """One rank. Times are means per step after warm-up. None means unknown."""

    who: RankId
    steps: int
    step_s: float | None = None
    work_s: float | None = None  # the step without communication and waiting for other ranks
    sync_s: float | None = None  # communication, and waiting for other ranks
    waiting_s: float | None = None  # the part of sync_s spent waiting, from the steps that were compared
    work_over_best: float | None = None  # work over the least work of all ranks, 1 or more
    work_over_earlier: float | None = None  # recent work over earlier work; only for ranks with more work than others
    slower_since_step: int | None = None  # since when work_over_earlier is clearly above 1
    cause: str = ""  # the section with the most time beyond the other ranks, if the rank works longer than they do
    cause_s: float | None = None  # that time per step, beyond the median of the others
    place: str = ""  # line of the user's code with most of that section's time
    input_elements: float | None = None  # of the largest input of a forward pass, mean over some
    last_message_s_ago: float | None = None  # time since the last sign of the rank; None if read from files
    is_final: bool = False  # its last summary was received
    ended_by: str | None = None
    inside: tuple[str, ...] = ()  # open sections when the summary was sent, outermost first


@dataclass(frozen=True, slots=True)
class SectionSpread:
    """The time of one section on the ranks that entered it."""

    name: str
    ranks: int  # number of ranks that entered it
    min_s: float
    median_s: float
    max_s: float
    slowest: RankId
    imbalance: float  # max over mean, less 1; 0 if all are equal
    is_of_step: bool  # times are per step, otherwise per span
    is_device: bool = False  # times are on the accelerator's clock
    slowest_total_s: float = 0.0  # sum on the slowest rank over the stretch
    never_on: tuple[int, ...] = ()  # ranks that did not enter it


@dataclass(frozen=True, slots=True)
class HostStats:
    """The ranks on one machine."""

    host: str
    ranks: tuple[int, ...]
    work_s: float | None = None  # median over them
    work_over_best: float | None = None  # work_s over that of the best host


@dataclass(frozen=True, slots=True)
class GradientSyncStats:
    """DDP's gradient sync on this rank, from its own statistics; means per sync."""

    count: int
    sampled: int  # syncs that DDP timed
    total_s: float  # from the begin of the first bucket to the end of the last
    overlap: float | None = None  # the part that overlaps with computing gradients, 0 to 1
    exposed_s: float | None = None  # the rest, which makes the backward pass longer


@dataclass(frozen=True, slots=True)
class ClockStats:
    """How well the clocks of the ranks' machines are known relative to each other."""

    hosts: int
    aligned_hosts: int  # machines whose clock is known relative to the first; with others, the first counts as well
    error_s: float | None = None  # the largest error bound; None if no clock is aligned
    sync_points: int = 0  # barriers and collectives of the program that were used


@dataclass(frozen=True, slots=True)
class AttemptStats:
    """One attempt of a launcher that restarts a failed training."""

    number: int
    steps: int
    wall_s: float
    ended_by: str | None = None  # None also if the end was not written
    is_ended: bool = True  # whether the end was written


@dataclass(frozen=True, slots=True)
class AllRanksStats:
    """All ranks of a training, as far as known. None means unknown."""

    world_size: int
    ranks: tuple[RankStats, ...]  # the known ranks, by number
    missing: tuple[int, ...] = ()  # ranks without any sign, or without a journal
    unresponsive: tuple[int, ...] = ()  # ranks without a recent sign that have not ended
    sections: tuple[SectionSpread, ...] = ()
    hosts: tuple[HostStats, ...] = ()
    step_s: float | None = None  # median over ranks
    sync_share: float | None = None  # of step time, mean over ranks
    waiting_share: float | None = None  # the part of sync_share spent waiting for slower ranks
    transfer_share: float | None = None  # the part of sync_share spent on communication
    compared_steps: int = 0  # steps from which waiting and transfer were determined
    clocks: ClockStats | None = None
    repeats: StreamRepeats | None = None  # of the samples that ranks train on; None: too few are known
    searched: UnusedSearch | None = None  # None where a rank does not search
    left_out: tuple[str, ...] = ()  # messages about data that could not be read
