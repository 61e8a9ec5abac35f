"""Collectives: count, time, share hidden behind compute; over several ranks, waiting and transfer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Final, NamedTuple

import numpy as np

from training_profiler.trace_analysis.device_activity import Device
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.timeline import covered

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
def collective_kind(name: str, recorded: str | None = None) -> str:
    """Return the kind of collective of a kernel, from the recorded name or else from the name of the kernel."""
    for text in (recorded or "", name):
        for kind, pattern in _PATTERNS:
            if text and pattern.search(text):
                return kind
    return "other"


def collectives(columns: Columns, device: Device, communicates: Bools) -> list[Collective]:
    """Return the collectives of this trace, the longest total first."""
    rows = np.flatnonzero(communicates)
    hidden = covered(device.compute, columns.begin_ns[rows], columns.end_ns[rows]).tolist()
    sums: dict[str, list[int]] = {}
    has_bytes: dict[str, bool] = {}
    for row, hidden_ns in zip(rows.tolist(), hidden, strict=True):
        kind = kind_of(columns, row)
        entry = sums.setdefault(kind, [0, 0, 0, 0])
        size = int(columns.messages.sent_bytes[row])
        entry[0] += 1
        entry[1] += int(columns.end_ns[row] - columns.begin_ns[row])
        entry[2] += hidden_ns
        entry[3] += max(0, size)
        has_bytes[kind] = has_bytes.get(kind, True) and size >= 0
    collectives = [
        Collective(kind, count, total_ns, hidden_ns, size if has_bytes[kind] else None)
        for kind, (count, total_ns, hidden_ns, size) in sums.items()
    ]
    return sorted(collectives, key=lambda collective: -collective.total_ns)


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


def collective_runs(columns: Columns, communicates: Bools) -> dict[RunsOf, Runs]:
    """Return the runs of each kind of collective in each process group."""
    messages = columns.messages
    duration = columns.end_ns - columns.begin_ns
    rows_of: dict[RunsOf, list[int]] = {}
    for row in np.flatnonzero(communicates).tolist():
        name, members = (part.texts[part.index[row]] for part in (messages.group_name, messages.group_ranks))
        rows_of.setdefault(RunsOf(kind_of(columns, row), name, members), []).append(row)
    return {key: Runs(np.array(rows), duration[rows], messages.sequence[rows]) for key, rows in rows_of.items()}


class Matched(NamedTuple):
    """Runs of one kind in one process group that match over ranks."""

    of: RunsOf
    ranks: list[int]
    place: Ints  # of the runs among those of each rank; one row a rank, one column a run


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
            matched.append(Matched(key, ranks, place))
    return matched


def over_ranks(runs: Mapping[int, Mapping[RunsOf, Runs]]) -> list[RankCollective]:
    """Return waiting and transfer for each kind of collective; ``runs`` holds the runs of each rank."""
    lengths: dict[str, list[tuple[list[int], Ints]]] = {}
    for of, ranks, place in matched_runs(runs):
        table = np.stack([runs[rank][of].length_ns[row] for rank, row in zip(ranks, place, strict=True)])
        lengths.setdefault(of.kind, []).append((ranks, table))
    return [_over_groups(kind, groups) for kind, groups in lengths.items()]


def _matched(runs: Sequence[Runs]) -> Ints | None:
    """Return the places of the runs that all ranks have, one row a rank; None if they cannot be matched."""
    numbers = [run.sequence for run in runs]
    if all((number != NONE).all() and len(distinct(number)) == len(number) for number in numbers):
        common = reduce(np.intersect1d, numbers)
        if len(common):
            return np.stack([np.argsort(number)[np.searchsorted(np.sort(number), common)] for number in numbers])
    if len({len(run.length_ns) for run in runs}) != 1:
        return None
    return np.stack([np.arange(len(run.length_ns)) for run in runs])


def _over_groups(kind: str, groups: Sequence[tuple[list[int], Ints]]) -> RankCollective:
    """Return waiting and transfer over process groups; each table of runs has one row a rank."""
    ranks = sorted({rank for members, _ in groups for rank in members})
    place = {rank: i for i, rank in enumerate(ranks)}
    waited, caused, count = (np.zeros(len(ranks), np.int64) for _ in range(3))
    transfer_ns = 0
    for members, table in groups:
        at = np.array([place[rank] for rank in members])
        shortest = table.min(axis=0)
        waiting = table - shortest
        transfer_ns += int(shortest.sum()) * len(members)
        waited[at] += waiting.sum(axis=1)
        count[at] += table.shape[1]
        np.add.at(caused, at[table.argmin(axis=0)], waiting.sum(axis=0))
    each = int(count.sum())
    return RankCollective(
        kind,
        round(each / len(ranks)),
        transfer_ns / each,
        int(waited.sum()) / each,
        ranks[int((waited / count).argmin())],
        _late(ranks, caused),
    )


def _late(ranks: Sequence[int], caused_ns: Ints) -> tuple[tuple[int, float], ...]:
    """Return the ranks that were last in runs with a tenth of all waiting or more, the one with most first."""
    total = int(caused_ns.sum())
    shares = [(rank, ns / total) for rank, ns in zip(ranks, caused_ns.tolist(), strict=True) if total]
    return tuple(sorted((pair for pair in shares if pair[1] >= LEAST_CAUSED), key=lambda pair: -pair[1]))


def kind_of(columns: Columns, row: int) -> str:
    """Return the kind of collective of the kernel in that row."""
    recorded = columns.collectives[columns.collective[row]] if columns.collective[row] >= 0 else None
    return collective_kind(columns.names[columns.name[row]], recorded)
