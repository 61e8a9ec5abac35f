"""What the worker processes of a loader did, in seconds and shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerLineStats:
    """A line that workers ran: of the user's code, or of a library where none of it was on the stack."""

    file: str
    line: int
    function: str
    share: float  # of the workers' work, 0 to 1
    samples: int
    phase: str  # fetch, decode, transform, collate, ...; a line may be in several
    inside: str = ""  # what ran in a library that the line called

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"

    @property
    def what(self) -> str:
        """The function, and what it ran in a library."""
        return f"{self.function} > {self.inside.rpartition(' ')[2]}" if self.inside else self.function


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The workers of one loader. Times are per batch, summed over all of one worker's threads."""

    workers: int  # that were observed, of all passes
    batches: int  # that they made; those not asked for at the end included
    busy: float  # share of their time in which they made batches, 0 to 1
    batch_avg_s: float  # from the request to the batch, in the worker
    batch_max_s: float
    cpu_avg_s: float  # CPU time, with programs that a worker ran
    queued_avg_s: float  # ready to run while no CPU was free
    samples: int
    phases: Mapping[str, float] = field(default_factory=dict)  # fetch, decode, ... -> share of their time
    lines: tuple[WorkerLineStats, ...] = ()  # most samples first
    memory_bytes: int | None = None  # resident, of the largest worker at its end
    memory_growth_bytes: int | None = None  # of the worker that grew most, since its first batches
    held: float | None = None  # share of the training's waiting in which later batches were ready
    pinning: float | None = None  # share of the waiting in which the pin-memory thread had a batch in hand
    sampling_share: float = 0.0  # of the workers' time: CPU time of the sampling

    @property
    def work_s(self) -> float:
        """Time in which they made batches, in s."""
        return self.batches * self.batch_avg_s


@dataclass(frozen=True, slots=True)
class UnseenWait:
    """A wait of the training for work elsewhere that is not sampled."""

    what: str  # "a queue between processes"
    line: str  # that waits longest for it: "train.py:41 main"
    share: float  # of the run, 0 to 1
    samples: int
    in_loader: bool = False  # while a data loader of torch asks its data set
