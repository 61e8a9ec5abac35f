"""The frozen figures of a training on many ranks, which are part of a snapshot; seconds throughout."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankId:
    """Which process of a distributed training; None is unknown."""

    rank: int = 0
    world_size: int = 1
    host: str = ""
    node: int | None = None  # number of the machine, where the launcher gives it
    local_rank: int | None = None
    attempt: int = 0  # how often the launcher had started the training anew before

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})" if self.host else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class RankStats:
    """One rank; times are means a step after warm-up. None is unknown."""

    who: RankId
    steps: int
    step_s: float | None = None
    work_s: float | None = None  # the step without what is known to be exchange, or waiting for others
    sync_s: float | None = None  # the rest of it: exchange, and waiting for others
    waiting_s: float | None = None  # the part of sync_s in which it waited for others, in the steps compared
    against_best: float | None = None  # its work over that of the rank with the least, 1 or more
    against_itself: float | None = None  # its work lately over its work before; of ranks that work longer than others
    slower_since_step: int | None = None  # from where on, if against_itself tells of a clear change for the worse
    cause: str = ""  # the section in which it takes longest beyond the other ranks, if it works longer than they do
    cause_s: float | None = None  # by how much, a step, beyond the median of the others
    place: str = ""  # where in the user's code most of that section's time goes
    heard_s_ago: float | None = None  # before the figures were made; None where they come from files
    is_final: bool = False  # it has told its last
    ended_by: str | None = None
    inside: tuple[str, ...] = ()  # sections it was in when it told this, the outermost first


@dataclass(frozen=True, slots=True)
class SectionSpread:
    """How long one section takes on the ranks that entered it."""

    name: str
    ranks: int  # that entered it
    min_s: float
    median_s: float
    max_s: float
    slowest: RankId
    imbalance: float  # max over mean, less 1; 0 where all take the same
    is_of_step: bool  # the times are a step's; else an execution's
    is_device: bool = False  # the times are the accelerator's
    slowest_total_s: float = 0.0  # on the slowest rank, of all that the figures are of
    never_on: tuple[int, ...] = ()  # ranks heard of that did not enter it


@dataclass(frozen=True, slots=True)
class HostStats:
    """The ranks of one machine."""

    host: str
    ranks: tuple[int, ...]
    work_s: float | None = None  # median over them
    against_best: float | None = None  # that over the median of the host with the least


@dataclass(frozen=True, slots=True)
class GradientSyncStats:
    """DDP's exchange of gradients on this rank, by its own statistics; means an exchange."""

    count: int
    sampled: int  # of how many DDP took the times
    total_s: float  # from the first bucket's begin to the last one's end
    overlap: float | None = None  # the part of it in which gradients were still computed, 0 to 1
    exposed_s: float | None = None  # the rest, by which the backward pass is longer


@dataclass(frozen=True, slots=True)
class ClockStats:
    """How well the clocks of the ranks' machines are known against each other."""

    hosts: int
    aligned_hosts: int  # whose clock is known against the first one's, which counts where there is another
    error_s: float | None = None  # the largest bound of them; None where none is aligned
    meetings: int = 0  # barriers and exchanges of the program that tell


@dataclass(frozen=True, slots=True)
class AttemptStats:
    """One attempt of a launcher that starts a training anew when it fails."""

    number: int
    steps: int
    wall_s: float
    ended_by: str | None = None  # None also where its end was not written
    is_ended: bool = True  # whether it was


@dataclass(frozen=True, slots=True)
class AllRanksStats:
    """All ranks of a training, as far as they were heard of. None is unknown."""

    world_size: int
    ranks: tuple[RankStats, ...]  # those heard of, by number
    missing: tuple[int, ...] = ()  # never heard of, or without a journal
    silent: tuple[int, ...] = ()  # heard of, but not lately, and not at their end
    sections: tuple[SectionSpread, ...] = ()
    hosts: tuple[HostStats, ...] = ()
    step_s: float | None = None  # median over ranks
    sync_share: float | None = None  # of step time, mean over ranks
    waiting_share: float | None = None  # the part of it that is waiting for slower ranks
    transfer_share: float | None = None  # and the part that is exchange as such
    compared_steps: int = 0  # on how many steps waiting and transfer were told apart
    clocks: ClockStats | None = None
    left_out: tuple[str, ...] = ()  # sentences on what could not be read
