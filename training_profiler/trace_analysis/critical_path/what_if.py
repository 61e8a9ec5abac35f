"""How long a step would take after a change: the graph with other durations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.critical_path.device_links import LONG_AGO
from training_profiler.trace_analysis.critical_path.graph import GRAPH_LAUNCH, LAUNCH, Edge, Graph, replay
from training_profiler.trace_analysis.critical_path.host_links import ALLOCATION, DATA_LOADING, KINDS, OPERATOR
from training_profiler.trace_analysis.critical_path.path import (
    COMMUNICATION,
    KERNEL,
    Path,
    critical_path,
    work_kind,
)
from training_profiler.trace_analysis.load.columns import NONE, Bools, Ints, distinct
from training_profiler.trace_analysis.phases import PHASES

MOST_EACH: Final = 3  # operators and kernels that changes are computed for
LEAST_OF_PATH: Final = 0.1  # a rank with less of it is not asked about
HALF: Final = 0.5
TWICE_AS_FAST: Final = "twice as fast"


@dataclass(frozen=True, slots=True)
class TimeChange:
    """Parts of the time of some pieces of the host and of some works that no longer pass."""

    what: str
    name: str = ""  # of the operator or kernel; "" for all of the kind
    host_saved: float = 0.0  # share of each piece, 0 to 1
    host_kind: str = ""  # "" for all
    device_saved: float = 0.0  # share of each work
    device_kind: str = ""
    without_waits: bool = False  # for the device
    phase: str = ""  # of a step; "" for all
    rank: int = NONE  # -1 for all
    is_balanced: bool = False  # each rank has the mean of what all of them do


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What the steps of the trace would take together, with the work that they launched."""

    change: TimeChange
    wall_ns: int


def outcomes(graph: Graph, path: Path) -> list[WhatIf]:
    """Return what the changes bring that are worth a look, the largest first."""
    return sorted((outcome(graph, change) for change in changes_for(graph, path)), key=lambda found: found.wall_ns)


def changes_for(graph: Graph, path: Path) -> list[TimeChange]:
    """Return a change for each thing of which much of the path consists."""
    changes = [TimeChange("the host is twice as fast", host_saved=HALF)]
    kinds = path.kinds_ns
    if len(graph.works.row):
        changes.append(TimeChange("all kernels are twice as fast", device_saved=HALF, device_kind=KERNEL))
    if kinds.get(DATA_LOADING):
        changes.append(TimeChange("data loading takes no time", host_saved=1.0, host_kind=DATA_LOADING))
    if kinds.get(ALLOCATION):
        changes.append(TimeChange("allocations take no time", host_saved=1.0, host_kind=ALLOCATION))
    if graph.removable:
        changes.append(TimeChange("the host never waits for the device", without_waits=True))
    if kinds.get(COMMUNICATION):
        changes.append(TimeChange("communication is hidden completely", device_saved=1.0, device_kind=COMMUNICATION))
    kernels, operators = (
        list(dict.fromkeys(link.name for link in path.links if link.kind == kind))[:MOST_EACH]
        for kind in (KERNEL, OPERATOR)
    )
    changes += [TimeChange(TWICE_AS_FAST, name, device_saved=HALF, device_kind=KERNEL) for name in kernels]
    changes += [TimeChange(TWICE_AS_FAST, name, host_saved=HALF, host_kind=OPERATOR) for name in operators]
    return [*changes, *_changes_of_ranks(graph, path)] if graph.is_of_ranks else changes


def _changes_of_ranks(graph: Graph, path: Path) -> list[TimeChange]:
    """Return a perfect balance, and changes on the ranks that the path leads through."""
    changes = [TimeChange("the ranks are in perfect balance", is_balanced=True)]
    phases = [name for i, name in enumerate(PHASES) if (graph.phase == i).any()]
    for rank, ns in list(path.ranks_ns.items())[:MOST_EACH]:
        if ns < LEAST_OF_PATH * path.wall_ns:
            continue
        changes += [
            TimeChange(TWICE_AS_FAST, f"{phase} of rank {rank}", HALF, "", HALF, KERNEL, phase=phase, rank=rank)
            for phase in phases
        ]
        if any(link.kind == DATA_LOADING and link.rank == rank for link in path.links):
            what = f"data loading of rank {rank} takes no time"
            changes.append(TimeChange(what, host_saved=1.0, host_kind=DATA_LOADING, rank=rank))
    return changes


def outcome(graph: Graph, change: TimeChange) -> WhatIf:
    """Return what a change brings, if all else stays as it was recorded.

    A wait that the trace does not show, because what it waits for had ended before, is not known here either. Such a
    step may be longer in reality.
    """
    without = graph.removable if change.without_waits else frozenset()
    own, edges = _host(graph, change)
    ends, _ = replay(graph, own, _lengths(graph, change), without, change.is_balanced, edges)
    if change.is_balanced:
        return WhatIf(change, _mean_wall_ns(graph, ends))
    return WhatIf(change, max(ends[item] for item in graph.ends) - critical_path(graph).begin_ns)


def _mean_wall_ns(graph: Graph, ends: Sequence[int]) -> int:
    """Return the mean over ranks of the time that each takes."""
    last: dict[int, int] = {}
    for item in graph.ends:
        side = int(graph.side[item])
        last[side] = max(last.get(side, LONG_AGO), ends[item])
    return round(sum(end - graph.sides[side].begin_ns for side, end in last.items()) / len(last))


def _host(graph: Graph, change: TimeChange) -> tuple[list[int], list[tuple[Edge, ...]]]:
    """Return the time from each item to the next on its thread or stream, and the edges with their delays.

    The delay of a launch whose work begins only after the call is time of the host too, as far as the call takes. So is
    that of a graph, whose first work can begin within the call.
    """
    if not change.host_saved:
        return graph.own_ns, graph.edges
    own, edges = np.array(graph.own_ns, np.int64), list(graph.edges)
    at = np.array(graph.at_ns[: graph.points], np.int64)
    pieces = graph.pieces
    is_changed = _chosen_pieces(graph, change)
    for thread in distinct(graph.thread).tolist():
        of = pieces.of(thread)
        points = np.flatnonzero(graph.thread == thread)
        if not is_changed[of].any():
            continue
        saved = np.where(is_changed[of], pieces.end_ns[of] - pieces.begin_ns[of], 0)
        before = np.diff(_passed(pieces.begin_ns[of], saved, at[points]), prepend=0)
        own[points] -= (before * change.host_saved).astype(np.int64)
        waits = _launch_waits(graph, thread)
        begins_ns, ends_ns = np.array([(wait.begin_ns, wait.end_ns) for wait in waits], np.int64).reshape(-1, 2).T
        of_call = _passed(pieces.begin_ns[of], saved, ends_ns) - _passed(pieces.begin_ns[of], saved, begins_ns)
        for wait, ns in zip(waits, (of_call * change.host_saved).astype(np.int64).tolist(), strict=True):
            edges[wait.item] = wait.shorter(edges[wait.item], ns)
    fixed = np.array([*graph.fixed], np.int64)
    own[fixed] = np.array(graph.own_ns, np.int64)[fixed]
    return [max(0, ns) if i < graph.points else ns for i, ns in enumerate(own.tolist())], edges


@dataclass(frozen=True, slots=True)
class _LaunchWait:
    """A work that waits for the call that launched it, from its begin to its end or to that of the work's delay."""

    item: int
    edge: int
    begin_ns: int
    end_ns: int

    def shorter(self, edges: tuple[Edge, ...], ns: int) -> tuple[Edge, ...]:
        """Return the edges of the work with a launch that takes less time."""
        point, delay, why = edges[self.edge]
        return (*edges[: self.edge], (point, delay - ns, why), *edges[self.edge + 1 :])


def _launch_waits(graph: Graph, thread: int) -> list[_LaunchWait]:
    """Return the works of a thread whose launch lasts for the whole call, and those with which a graph begins."""
    found, works = [], graph.works
    for work in np.flatnonzero((works.thread == thread) & (works.call_ns > 0)).tolist():
        item, called_ns, call_ns = graph.points + work, int(works.called_ns[work]), int(works.call_ns[work])
        for edge, (_, delay, why) in enumerate(graph.edges[item]):
            if why == GRAPH_LAUNCH or (why == LAUNCH and delay >= call_ns):
                found.append(_LaunchWait(item, edge, called_ns, called_ns + min(delay, call_ns)))
    return found


def _passed(begin_ns: Ints, length_ns: Ints, at_ns: Ints) -> Ints:
    """Return how much of the pieces that begin at ``begin_ns`` lies before each time."""
    sums = np.concatenate([[0], np.cumsum(length_ns)])
    place = np.maximum(np.searchsorted(begin_ns, at_ns, side="right") - 1, 0)
    into = np.clip(at_ns - begin_ns[place], 0, length_ns[place])
    passed: Ints = sums[place] + into
    return passed


def _chosen_pieces(graph: Graph, change: TimeChange) -> Bools:
    pieces = graph.pieces
    side = graph.side_of_thread[pieces.thread]
    chosen: Bools = pieces.begin_ns >= np.array([of.begin_ns for of in graph.sides])[side]
    chosen &= _is_chosen(graph, change, side, graph.phase[: len(pieces.thread)])
    if change.host_kind:
        chosen &= pieces.kind == KINDS.index(change.host_kind)
    if change.name and not change.phase:
        chosen &= (pieces.name != NONE) & (np.array(graph.names, object)[pieces.name] == change.name)
    return chosen


def _is_chosen(graph: Graph, change: TimeChange, side: Ints, phase: Ints) -> Bools:
    """Return which of some pieces or works belong to the rank and the phase of a change."""
    chosen = np.full(len(side), True)
    if change.rank != NONE:
        chosen &= np.array([of.rank for of in graph.sides])[side] == change.rank
    if change.phase:
        chosen &= phase == PHASES.index(change.phase)
    return chosen


def _lengths(graph: Graph, change: TimeChange) -> list[int]:
    """Return the length of each work; 0 for all other items."""
    if not change.device_saved:
        return graph.length_ns
    lengths = list(graph.length_ns)
    count = len(graph.works.row)
    side = graph.side[graph.points : graph.points + count]
    chosen = graph.works.begin_ns >= np.array([of.begin_ns for of in graph.sides])[side]
    chosen &= _is_chosen(graph, change, side, graph.phase[len(graph.pieces.thread) :])
    for work in np.flatnonzero(chosen).tolist():
        is_kind = not change.device_kind or work_kind(graph, work) == change.device_kind
        if is_kind and (change.phase or change.name in ("", graph.names[graph.work_name[work]])):
            item = graph.points + work
            lengths[item] -= int(lengths[item] * change.device_saved)
    return lengths
