"""Collectives: count, time, share hidden behind compute; over several ranks, waiting and transfer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from training_profiler.trace_analysis.device_activity import Device
from training_profiler.trace_analysis.intervals import covered
from training_profiler.trace_analysis.load.columns import Bools, Columns, Ints

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
    count: int
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
        kind = _kind(columns, row)
        entry = sums.setdefault(kind, [0, 0, 0, 0])
        size = int(columns.sent_bytes[row])
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


def collective_runs(columns: Columns, communicates: Bools) -> dict[str, Ints]:
    """Return the length of each run by kind of collective, in order of time; ns."""
    runs: dict[str, list[int]] = {}
    duration = columns.end_ns - columns.begin_ns
    for row in np.flatnonzero(communicates).tolist():
        runs.setdefault(_kind(columns, row), []).append(int(duration[row]))
    return {kind: np.array(durations, np.int64) for kind, durations in runs.items()}


def over_ranks(runs: Mapping[int, Mapping[str, Ints]]) -> list[RankCollective]:
    """Return waiting and transfer for each kind of collective; ``runs`` holds the runs of each rank.

    The k-th run of a kind on one rank matches the k-th on every other; kinds whose counts differ are left out.
    """
    if len(runs) < 2:
        return []
    ranks = sorted(runs)
    matched = []
    for kind in sorted(set.intersection(*(set(rank_runs) for rank_runs in runs.values()))):
        if len({len(runs[rank][kind]) for rank in ranks}) != 1:
            continue
        table = np.stack([runs[rank][kind] for rank in ranks])
        shortest = table.min(axis=0)
        waiting = table - shortest
        latest = ranks[int(waiting.sum(axis=1).argmin())]
        late = _late(ranks, table.argmin(axis=0), waiting.sum(axis=0))
        matched.append(
            RankCollective(kind, table.shape[1], float(shortest.mean()), float(waiting.mean()), latest, late)
        )
    return matched


def _late(ranks: Sequence[int], last: Ints, waiting_ns: Ints) -> tuple[tuple[int, float], ...]:
    """Return the ranks that were last in runs with a tenth of all waiting or more, the one with most first."""
    total = int(waiting_ns.sum())
    caused = np.zeros(len(ranks), np.int64)
    np.add.at(caused, last, waiting_ns)
    shares = [(rank, ns / total) for rank, ns in zip(ranks, caused.tolist(), strict=True) if total]
    return tuple(sorted((pair for pair in shares if pair[1] >= LEAST_CAUSED), key=lambda pair: -pair[1]))


def _kind(columns: Columns, row: int) -> str:
    recorded = columns.collectives[columns.collective[row]] if columns.collective[row] >= 0 else None
    return collective_kind(columns.names[columns.name[row]], recorded)
