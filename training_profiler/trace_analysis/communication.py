"""Collectives: count, time, share hidden behind compute; over several ranks, waiting and transfer."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from training_profiler.base.peaks import DeviceLink, link_of
from training_profiler.base.units import NS_PER_S
from training_profiler.trace_analysis.columns import NONE, Columns, Ints
from training_profiler.trace_analysis.events import TracedEvents
from training_profiler.trace_analysis.host_activity import BACKWARD, MARKS, OPTIMIZER

_KINDS: Final = (
    ("all_reduce", r"all_?reduce|cross_device_reduce|one_?shot|two_?shot"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all|a2a"),
    ("dispatch_combine", r"dispatch|combine"),
    ("send_recv", r"send_?recv|^send$|^recv$"),
    ("broadcast", r"broadcast"),
    ("reduce", r"_reduce_|kernel_reduce"),
)
K = TypeVar("K")
LEAST_CAUSED: Final = 0.10  # of all waiting; a rank that caused less is not named
_PATTERNS: Final = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS]


@dataclass(frozen=True, slots=True)
class Collective:
    """All runs of one kind of collective on this rank."""

    kind: str
    count: int
    total_ns: int
    hidden_ns: int  # while the device computed as well
    bytes: int | None  # input, if the trace has it


@dataclass(frozen=True, slots=True)
class RankCollective:
    """One kind of collective over ranks; means per run, in ns."""

    kind: str
    count: int  # of each rank, in the mean
    transfer_ns: float  # the shortest over ranks: the last rank to arrive does not wait
    waiting_ns: float  # the mean beyond that
    latest_rank: int  # waited least in total: the others wait for it
    late: tuple[tuple[int, float], ...] = ()  # the ranks that arrived last, with their share of all waiting


@cache
def collective_kind(name: str, recorded: str) -> str:
    """Return the kind of collective of a kernel, from the recorded name or else from the name of the kernel."""
    for text in (recorded, name):
        for kind, pattern in _PATTERNS:
            if text and pattern.search(text):
                return kind
    return "other"


def collectives(events: TracedEvents) -> tuple[Collective, ...]:
    """Return the collectives of this trace by kind, the longest total first."""
    columns = events.columns
    found = []
    for kind, rows in _grouped(events, lambda row: kind_of(columns, row)).items():
        hidden_ns = events.device.compute.within(columns.begin_ns[rows], columns.end_ns[rows])
        sent = columns.messages.sent_bytes[rows]
        size = sum(sent.tolist()) if (sent >= 0).all() else None
        found.append(Collective(kind, len(rows), int(columns.length_ns[rows].sum()), int(hidden_ns.sum()), size))
    return tuple(sorted(found, key=lambda collective: -collective.total_ns))


def _grouped(events: TracedEvents, key_of: Callable[[int], K]) -> dict[K, Ints]:
    rows_of: dict[K, list[int]] = {}
    for row in np.flatnonzero(events.communicates).tolist():
        rows_of.setdefault(key_of(row), []).append(row)
    return {key: np.array(rows) for key, rows in rows_of.items()}


class RunsOf(NamedTuple):
    """What runs that may match each other have in common."""

    kind: str
    group: str  # the name of the process group; "" if the trace does not have it, as below
    members: str  # its ranks


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of collectives on one rank, in order of time."""

    row: Ints  # of the trace's columns
    length_ns: Ints
    sequence: Ints  # the number of each in its group; -1 if unknown


def collective_runs(events: TracedEvents) -> dict[RunsOf, Runs]:
    """Return the runs of each kind of collective in each process group."""
    columns, messages = events.columns, events.columns.messages

    def key_of(row: int) -> RunsOf:
        return RunsOf(kind_of(columns, row), messages.group_name.of(row), messages.group_ranks.of(row))

    return {
        key: Runs(rows, columns.length_ns[rows], messages.sequence[rows])
        for key, rows in _grouped(events, key_of).items()
    }


# Runs that match: their ranks, and the place of the runs among those of each rank (one row a rank, one column a run).
Matched = tuple[RunsOf, list[int], Ints]


def matched_runs(runs: Mapping[int, Mapping[RunsOf, Runs]]) -> list[Matched]:
    """Return the runs that match; ``runs`` holds those of each rank.

    Runs of one process group match by their numbers, else the k-th on one rank matches the k-th on every other; groups
    in which ranks differ in the number of runs are left out. A group whose ranks are unknown must be on all of them.
    """
    matched = []
    for key in sorted(set().union(*runs.values())) if len(runs) > 1 else []:
        ranks = sorted(rank for rank in runs if key in runs[rank])
        place = _matched([runs[rank][key] for rank in ranks])
        if place is not None and len(ranks) > 1 and (key.members or len(ranks) == len(runs)):
            matched.append((key, ranks, place))
    return matched


def over_ranks(runs: Mapping[int, Mapping[RunsOf, Runs]]) -> list[RankCollective]:
    """Return waiting and transfer for each kind of collective; ``runs`` holds the runs of each rank."""
    waited, caused, count = (defaultdict[str, Counter[int]](Counter) for _ in range(3))  # by kind and rank
    transfer_ns: Counter[str] = Counter()
    for of, ranks, place in matched_runs(runs):
        table = np.stack([runs[rank][of].length_ns[row] for rank, row in zip(ranks, place, strict=True)])
        waiting = table - table.min(axis=0)
        transfer_ns[of.kind] += int(table.min(axis=0).sum()) * len(ranks)
        for rank, ns in zip(ranks, waiting.sum(axis=1).tolist(), strict=True):
            waited[of.kind][rank] += ns
            count[of.kind][rank] += table.shape[1]
        for last, ns in zip(table.argmin(axis=0).tolist(), waiting.sum(axis=0).tolist(), strict=True):
            caused[of.kind][ranks[last]] += ns
    return [_over_ranks(kind, ns, waited[kind], caused[kind], count[kind]) for kind, ns in transfer_ns.items()]


def _over_ranks(
    kind: str, transfer_ns: int, waited: Counter[int], caused: Counter[int], count: Counter[int]
) -> RankCollective:
    each, ranks = count.total(), sorted(count)
    shares = [(rank, caused[rank] / caused.total()) for rank in ranks if caused[rank] > 0]
    return RankCollective(
        kind,
        round(each / len(ranks)),
        transfer_ns / each,
        waited.total() / each,
        min(ranks, key=lambda rank: waited[rank] / count[rank]),
        tuple(sorted((pair for pair in shares if pair[1] >= LEAST_CAUSED), key=lambda pair: -pair[1])),
    )


def _matched(runs: Sequence[Runs]) -> Ints | None:
    numbers = [run.sequence for run in runs]
    if all((number != NONE).all() and len(np.unique(number)) == len(number) for number in numbers):
        common = reduce(np.intersect1d, numbers)
        if len(common):
            return np.stack([np.argsort(number)[np.searchsorted(np.sort(number), common)] for number in numbers])
    if len({len(run.length_ns) for run in runs}) != 1:
        return None
    return np.stack([np.arange(len(run.length_ns)) for run in runs])


def kind_of(columns: Columns, row: int) -> str:
    """Return the kind of collective of the kernel in that row."""
    return collective_kind(columns.name_of(row), columns.collective.of(row))


_BYTES_PER_GB: Final = 1e9
# The message of an all-gather and of a reduce-scatter is the whole that n devices hold together.
FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}


@dataclass(frozen=True, slots=True)
class BusBandwidth:
    """All runs of one kind of collective with the same message in groups of the same size."""

    kind: str
    message_bytes: int | None  # None if unknown, as below
    group_size: int | None
    count: int
    total_ns: int  # waiting for other devices included
    shortest_ns: int
    link: DeviceLink | None  # between the devices of the group
    lacks: tuple[str, ...]  # what would have to be known for the rest

    @property
    def mean_gb_s(self) -> float | None:
        """The bus bandwidth of all runs, in 1e9 bytes per second; None if it is unknown."""
        return self._gb_s(self.total_ns / self.count)

    @property
    def best_gb_s(self) -> float | None:
        """That of the shortest run, which waited least."""
        return self._gb_s(self.shortest_ns)

    @property
    def link_gb_s(self) -> float | None:
        """What the link can do, in 1e9 bytes per second."""
        return None if self.link is None else self.link.gb_s

    @property
    def share_of_link(self) -> float | None:
        """The best as a share of what the link can do; None if that is unknown, or less than the best."""
        best, link = self.best_gb_s, self.link_gb_s
        return None if best is None or link is None or self.is_above_link else best / link

    @property
    def is_above_link(self) -> bool:
        """Whether devices cannot have sent what the formula counts, because the switch added the values."""
        return self.link is not None and (self.best_gb_s or 0) > self.link.gb_s

    def _gb_s(self, ns: float) -> float | None:
        if self.message_bytes is None or self.group_size is None or self.kind not in FACTORS or not ns:
            return None
        return self.message_bytes * FACTORS[self.kind](self.group_size) / _BYTES_PER_GB / (ns / NS_PER_S)


def bus_bandwidths(events: TracedEvents) -> tuple[BusBandwidth, ...]:
    """Return the collectives by kind, message, group size and link, those with most time first."""
    columns = events.columns

    def key_of(row: int) -> tuple[str, int | None, int | None, DeviceLink | None]:
        kind, size = kind_of(columns, row), _group_size(columns, row)
        sent, received = int(columns.messages.sent_bytes[row]), int(columns.messages.received_bytes[row])
        if kind == "all_gather":
            message = received if received > 0 else sent * (size or 0)
        elif kind in ("all_reduce", "reduce_scatter", "all_to_all"):
            message = sent
        else:
            message = max(sent, received)
        return kind, (message if message > 0 else None), size, _link(columns, row)

    found = []
    for (kind, message, size, link), rows in _grouped(events, key_of).items():
        unknown = {
            "kind of collective": kind not in FACTORS,
            "message size": message is None,
            "group size": size is None,
            "link between the devices": link is None,
        }
        lacks = tuple(what for what, is_unknown in unknown.items() if is_unknown)
        lengths = columns.length_ns[rows]
        found.append(BusBandwidth(kind, message, size, len(rows), int(lengths.sum()), int(lengths.min()), link, lacks))
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.kind, row.message_bytes or 0)))


def _group_size(columns: Columns, row: int) -> int | None:
    size = int(columns.messages.group_size[row])
    if size < 1:
        ranks = _ranks(columns, row)
        size = 0 if ranks is None else len(ranks)
    return size if size > 1 else None


def _ranks(columns: Columns, row: int) -> list[int] | None:
    return _decoded(columns.messages.group_ranks.of(row).strip('"'))


@cache
def _decoded(ranks: str) -> list[int] | None:
    try:
        return msgspec.json.decode(ranks, type=list[int])
    except msgspec.DecodeError:
        return None


def _link(columns: Columns, row: int) -> DeviceLink | None:
    """Return the link between the devices of the group, if they are known to be in one node.

    A trace lists the devices of its node, and launchers number the ranks of a node one after another.
    """
    devices, name = len(columns.device_names), columns.name_of_device(int(columns.device[row]))
    if not name or len(set(columns.device_names)) > 1:
        return None
    ranks = _ranks(columns, row)
    if ranks is None:
        is_inside = columns.world_size is not None and 1 < columns.world_size <= devices
    else:
        is_inside = len({rank // devices for rank in ranks}) == 1
    return link_of(name) if is_inside else None


DDP: Final = "DDP"
FSDP: Final = "FSDP"
PIPELINE: Final = "pipeline"
EXPERT: Final = "expert"
TENSOR: Final = "tensor"
ALL_TO_ALL: Final = "all-to-all"
# Operators and annotations by which torch marks each kind.
_NAMES: Final = {
    FSDP: re.compile(r"FSDP|FullyShardedDataParallel|fully_shard", re.IGNORECASE),
    DDP: re.compile(r"DistributedDataParallel|distributed(\.|::)ddp|ddp::reducer"),
    ALL_TO_ALL: re.compile(r"^nccl:all_to_all|^c10d::alltoall|all_to_all_single"),
    PIPELINE: re.compile(r"^nccl:(send|recv)\b|^c10d::(send|recv_)|PipelineStage|pipelining"),
}
_SHARDED: Final = frozenset({"all_gather", "reduce_scatter"})
LEAST_IN_FORWARD: Final = 4  # collectives of a step; a norm or a metric makes one or two
ADVICE: Final = {
    DDP: "larger DDP buckets (bucket_cap_mb), gradient accumulation with no_sync(), gradients in bfloat16",
    FSDP: "prefetching in FSDP (forward_prefetch), larger wrapped units, reshard_after_forward=False",
    PIPELINE: "more micro-batches for the pipeline, an interleaved schedule, stages of equal time",
    ALL_TO_ALL: "shards of equal load (embedding tables, sequences), all-to-all overlapped with computation",
    EXPERT: "experts of equal load (capacity, auxiliary loss), all-to-all overlapped with the shared expert",
    TENSOR: "sequence parallelism or async tensor parallelism (overlap with the matrix products), smaller groups",
}
_LARGER: Final = "larger messages, and "
_ONE_STREAM: Final = f"{_LARGER}communication on a stream of its own beside computation"
_OWN_STREAM: Final = f"{_LARGER}computation meanwhile that does not need what is communicated"


def parallelism_of(events: TracedEvents, collectives: Sequence[Collective]) -> tuple[str, ...]:
    """Return the kinds of parallelism that the trace shows."""
    columns = events.columns
    kinds = {collective.kind for collective in collectives}
    is_host = columns.is_of("cpu_op", "user_annotation")
    names = [columns.names[i] for i in np.unique(columns.name[is_host]).tolist()] if events.communicates.any() else []
    seen = [kind for kind, pattern in _NAMES.items() if any(map(pattern.search, names))]
    if FSDP not in seen and kinds >= _SHARDED:
        seen.append(FSDP)
    if "all_to_all" in kinds or "dispatch_combine" in kinds:
        seen = [kind for kind in seen if kind != ALL_TO_ALL] + [EXPERT]
    elif ALL_TO_ALL in seen:  # NCCL makes it of sends and receives
        sent_ns = sum(each.total_ns for each in collectives if each.kind == "send_recv")
        if 2 * sent_ns > sum(each.total_ns for each in collectives):
            seen = [ALL_TO_ALL, *(kind for kind in seen if kind != ALL_TO_ALL)]
    if FSDP not in seen and _in_forward(events) >= LEAST_IN_FORWARD * max(1, events.scope.repetitions):
        seen.append(TENSOR)
    return tuple(seen)


def _in_forward(events: TracedEvents) -> int:
    """Return how many all-reduces were launched outside of backward pass and optimizer; 0 without a backward pass."""
    columns = events.columns
    marks = re.compile(f"{MARKS[BACKWARD].pattern}|{MARKS[OPTIMIZER].pattern}")
    elsewhere = columns.named(marks.search, "cpu_op", "user_annotation")
    is_reduce = columns.named(
        lambda name: "reduce" in name.lower() and "scatter" not in name.lower(), among=events.communicates
    )
    by = events.launches.operator[is_reduce]
    if not elsewhere.any():
        return 0
    return int((events.nesting.nearest(elsewhere)[by[by != NONE]] == NONE).sum())


def advice(seen: Sequence[str], has_own_stream: bool) -> str:
    """Return what makes communication cost less under these kinds of parallelism."""
    return "; ".join(ADVICE[kind] for kind in seen) or (_OWN_STREAM if has_own_stream else _ONE_STREAM)
