"""What the worker processes of one data loader did, and its batches of a phase: sums that can be added up."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from training_profiler.model.bounds import Count, fit
from training_profiler.model.lines import StreamRepeats

Phase = Literal["train", "val"]
TRAIN: Final = "train"
VAL: Final = "val"
MOST_LINES: Final = 30  # of one loader; the others count as the phase alone
OWN_COLLATE: Final = "own"  # a function of the program's
NO_COLLATE: Final = "default_convert"  # of torch, where the data set returns batches
WHOLE_TENSORS: Final = "TensorDataset"  # the data set that returns a whole batch by a list of numbers
MOST_WORKERS: Final = 64  # whose memory is kept
MOST_PRINTS: Final = 128  # of the samples of a worker, or of a rank
PRINTS_END: Final = 1 << 53  # fingerprints are smaller, which JSON keeps
SAMPLES_NEEDED: Final = 16  # that are compared

# The phases of a worker's time, in the order in which reports have them. All but the last are of making batches.
FETCH: Final = "fetch"
DECODE: Final = "decode"
TRANSFORM: Final = "transform"
COLLATE: Final = "collate"
LOCK: Final = "lock"  # waiting for one that may be of this process alone
SHARED_LOCK: Final = "shared lock"  # waiting for one that several processes share
THREADS: Final = "threads"  # waiting for other threads of the process, as for those of a pool
HAND_OVER: Final = "hand-over"
STARTING: Final = "start"
IDLE: Final = "idle"
PHASES: Final = (FETCH, DECODE, TRANSFORM, COLLATE, LOCK, SHARED_LOCK, THREADS, HAND_OVER, STARTING, IDLE)


class MadeBatches(NamedTuple):
    """Batches that the training process made itself and whose CPU time was measured."""

    number: Count = 0
    cpu_ns: Count = 0  # of all threads of the process


NONE_MADE: Final = MadeBatches()


class PhaseCounts(Struct, array_like=True):
    """Batches of one phase, in memory and in a journal."""

    phase: Phase
    batches: Count = 0
    samples: Count | None = 0
    wait_ns: Count = 0  # of profile_dataloader's fetches; patched fetches are in the event stream
    made: MadeBatches = NONE_MADE
    cut_passes: Count = 0  # left after their first batch

    def add(
        self, batches: int, samples: int | None, wait_ns: int = 0, made: MadeBatches = NONE_MADE, cut_passes: int = 0
    ) -> None:
        """Add batches with so many samples in all (None: unknown)."""
        self.batches += batches
        self.samples = None if self.samples is None or samples is None else self.samples + samples
        self.wait_ns += wait_ns
        self.made = MadeBatches(self.made.number + made.number, self.made.cpu_ns + made.cpu_ns)
        self.cut_passes += cut_passes

    def add_pass(self, loader_pass: Any) -> None:
        """Add a pass over the loader in this phase."""
        self.add(loader_pass.fetches, loader_pass.samples, 0, loader_pass.made, loader_pass.is_cut)


class WorkerLine(NamedTuple):
    """Samples of one line in workers; ``file`` is "" for those beyond ``MOST_LINES``."""

    phase: str
    file: str
    line: Count
    function: str
    inside: str  # frames of a library that the line called; see ``LineStats.inside``
    samples: Count


class WorkerMemory(NamedTuple):
    """The resident memory of one worker in bytes."""

    first: Count  # with its first batches made
    last: Count
    peak: Count
    copied: Count = 0  # what it had in common with the training, until it wrote there


class SamplePrints(NamedTuple):
    """Fingerprints of samples in a worker's first pass over a stream, or in early steps of a rank."""

    # The smallest ones, and which of the samples had each first.
    places: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=500)] = ()
    samples: Count = 0  # that were looked at: the first ones
    again: Count = 0  # fingerprints of more than one sample
    is_over: bool = False  # its latest pass has ended


class WorkerSums(NamedTuple):
    """The work of workers, from the begin of the first batch of each."""

    workers: Count = 0
    batches: Count = 0
    wall_ns: Count = 0  # summed over workers, as all others
    fetch_ns: Count = 0  # making batches: data set, transforms and collate_fn
    slowest_ns: Count = 0  # the longest batch of all
    cpu_ns: Count = 0  # of the processes and of programs that they ran, without ``sampling_ns``
    queued_ns: Count = 0  # ready to run, but no CPU was free
    sampling_ns: Count = 0  # CPU time of our own thread
    idle_samples: Count = 0
    waits: Count = 0  # samples of the training in which it waited for a batch of theirs
    held: Count = 0  # of these: later batches were ready
    lines: Annotated[tuple[WorkerLine, ...], Meta(max_length=500)] = ()
    memory: Annotated[tuple[WorkerMemory, ...], Meta(max_length=500)] = ()
    pin_waits: Count = 0  # samples of the training in which it waited for a batch that a thread pins
    pinning: Count = 0  # of these: the thread unpacked or copied one
    prints: SamplePrints | None = None  # of one worker of a stream
    repeats: StreamRepeats | None = None  # of the latest pass
    threads: Count = 0  # that compute: main threads, and those of libraries; 0 is unknown

    @property
    def samples(self) -> int:
        """All samples."""
        return self.idle_samples + sum(line.samples for line in self.lines)


_ADDED: Final = [
    name for name in WorkerSums._fields if name not in ("slowest_ns", "lines", "memory", "prints", "repeats")
]


def added(parts: Iterable[WorkerSums]) -> WorkerSums:
    """Return the sums of several workers as one."""
    parts = list(parts)
    samples: Counter[tuple[str, str, int, str, str]] = Counter()
    for part in parts:
        for line in part.lines:
            samples[line[:5]] += line.samples
    return WorkerSums(
        **{name: sum(getattr(part, name) for part in parts) for name in _ADDED},
        slowest_ns=max((part.slowest_ns for part in parts), default=0),
        lines=largest_lines(samples),
        memory=tuple(memory for part in parts for memory in part.memory)[-MOST_WORKERS:],
        repeats=next((part.repeats for part in reversed(parts) if part.repeats is not None), None),
    )


def repeats_among(workers: Sequence[SamplePrints]) -> StreamRepeats | None:
    """Return how many workers of a pass yield each sample, on average; None where too few samples are known.

    Of each worker, as many of its first samples count.
    """
    known = [worker for worker in workers if worker.places]
    largest = min((worker.places[-1][0] for worker in known if len(worker.places) >= MOST_PRINTS), default=PRINTS_END)
    first = min((worker.samples for worker in known), default=0)
    seen = [{each for each, place in worker.places if each <= largest and place <= first} for worker in known]
    compared = set().union(*seen)
    if len(known) < 2 or len(compared) < SAMPLES_NEEDED:
        return None
    return StreamRepeats(
        len(workers),
        len(compared),
        sum(map(len, seen)) / len(compared),
        max(worker.again / len(worker.places) for worker in known),
        all(worker.is_over for worker in workers),
        first,
    )


def fit_sums(sums: WorkerSums) -> WorkerSums:
    """Return sums of another process as reports may have them. A phase of a later version counts as the first."""
    lines = (line if line.phase in PHASES else line._replace(phase=PHASES[0]) for line in sums.lines)
    return fit(sums._replace(lines=tuple(lines)))


def largest_lines(samples: Counter[tuple[str, str, int, str, str]]) -> tuple[WorkerLine, ...]:
    """Return the lines with most samples; those beyond ``MOST_LINES`` become one row for each phase."""
    kept: Counter[tuple[str, str, int, str, str]] = Counter()
    named = [line for line in samples if line[1]]
    shown = set(sorted(named, key=lambda line: (-samples[line], line))[:MOST_LINES])
    for line, count in samples.items():
        kept[line if line in shown else (line[0], "", 0, "", "")] += count
    return tuple(WorkerLine(*line, count) for line, count in sorted(kept.items(), key=lambda item: (-item[1], item[0])))
