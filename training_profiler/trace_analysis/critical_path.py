"""The critical path: from the end of the steps back to their begin, each moment given to what was waited for last."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from training_profiler.trace_analysis.columns import NONE, Bools, Intervals, Ints
from training_profiler.trace_analysis.gaps import IN_GRAPH
from training_profiler.trace_analysis.host_activity import PHASES
from training_profiler.trace_analysis.path_graph import (
    GRAPH_LAUNCH,
    HANDOVER,
    LAUNCH,
    RETURN,
    STREAM,
    Edge,
    Graph,
    replay,
)
from training_profiler.trace_analysis.path_links import (
    ALLOCATION,
    COMMUNICATION,
    DATA_LOADING,
    KERNEL,
    KINDS,
    LONG_AGO,
    OPERATOR,
    OUTSIDE,
    SYNCHRONIZE,
    HostPieces,
    Works,
)

_BEFORE: Final = ("earlier_ns", "recording_ns")


@dataclass(frozen=True, slots=True)
class Link:
    """All time of the path that belongs to one thing."""

    kind: str
    name: str  # of the operator, kernel, call or annotation; "" for none
    ns: int
    rank: int = NONE  # -1 if the path is of one trace


@dataclass(frozen=True, slots=True)
class Jump:
    """How often the path leads from a collective to the rank that reached it last."""

    name: str  # of the collective
    waiting: int  # rank
    waited_for: int  # rank
    count: int


@dataclass(frozen=True, slots=True)
class Path:
    """The links add up to the path, which reaches from the first step to the end of what the steps launched."""

    begin_ns: int
    wall_ns: int
    steps: int  # 0 if none is marked
    links: tuple[Link, ...]  # the longest first
    jumps: tuple[Jump, ...] = ()  # the most frequent first
    earlier_ns: int = 0  # from the first step to the begin of the path, while the device did earlier work
    recording_ns: int = 0  # at the begin of the first step, while the recording started; the path begins after it

    @property
    def step_ns(self) -> float | None:
        """The time of one step; None if no step is marked, or if the path begins within one."""
        return self.wall_ns / self.steps if self.steps and not self.earlier_ns else None

    @property
    def ranks_ns(self) -> dict[int, int]:
        """The time on each rank, the longest first."""
        return self._sums("rank")

    @property
    def kinds_ns(self) -> dict[str, int]:
        """The time of each kind, the longest first."""
        return self._sums("kind")

    def _sums(self, of: str) -> dict[Any, int]:
        sums: Counter[Any] = Counter()
        for link in self.links:
            sums[getattr(link, of)] += link.ns
        return dict(sums.most_common())


class PathSpan(NamedTuple):
    """A part of the path, on one side of the graph."""

    side: int
    begin_ns: int
    end_ns: int
    kind: str
    name: str
    thread: int  # of the host; -1 otherwise


@lru_cache(1)
def critical_path(graph: Graph) -> Path:
    """Return the path of the recorded steps. That of the latest graph is kept: its tables need it one after another."""
    sums: Counter[tuple[int, str, str]] = Counter()
    jumps: Counter[tuple[str, int, int]] = Counter()
    begin_ns = end_ns = max(graph.at_ns[end] for end in graph.ends)
    for span in _walk(graph, jumps):
        sums[span.side, span.kind, span.name] += span.end_ns - span.begin_ns
        begin_ns = span.begin_ns
    links = [Link(kind, name, ns, graph.sides[side].rank) for (side, kind, name), ns in sums.items()]
    links.sort(key=lambda link: (-link.ns, link.rank, link.kind, link.name))
    met = tuple(Jump(*between, count) for between, count in jumps.most_common())
    earlier_ns, recording_ns = (max(getattr(side, key) for side in graph.sides) for key in _BEFORE)
    return Path(begin_ns, end_ns - begin_ns, graph.steps, tuple(links), met, earlier_ns, recording_ns)


def spans_of(graph: Graph) -> list[PathSpan]:
    """Return the path in order of time, with what the host does in pieces of their own; they add up to it."""
    return list(_walk(graph, Counter()))[::-1]


def _walk(graph: Graph, jumps: Counter[tuple[str, int, int]]) -> Iterator[PathSpan]:
    """Yield the parts of the path from its end to its begin, and count in ``jumps`` where it goes to another rank.

    Each moment belongs to one part: the walk begins at the last item and goes from each item to what it waited for
    last, over ranks too, until the begin of the first step of the rank that it has come to.
    """
    last = replay(graph, graph.own_ns, graph.length_ns)[1]
    at_ns, kinds, names = graph.at_ns, graph.works.kind.tolist(), graph.works.name.tolist()
    item = max(graph.ends, key=lambda end: at_ns[end])
    until, collective = at_ns[item], ""
    while until > (begin_ns := graph.sides[side := int(graph.side[item])].begin_ns):
        if graph.length_ns[item]:
            # It may end after what waits for it has begun.
            begin = max(begin_ns, min(until, at_ns[item] - graph.length_ns[item]))
            if begin < until:
                work = item - graph.points
                yield PathSpan(side, begin, until, kinds[work], graph.names[names[work]], NONE)
            until = begin
        if item in graph.waiting:
            collective = graph.names[names[item - graph.points]]
        earlier, why = _waited_for(graph, item, last[item])
        if earlier == NONE:  # nothing is known to come before it
            if begin_ns < until:
                yield from _pieces_of(graph, PathSpan(side, begin_ns, until, OUTSIDE, "", graph.sides[side].main))
            return
        if graph.side[earlier] != side:
            jumps[collective, graph.sides[side].rank, graph.sides[int(graph.side[earlier])].rank] += 1
        begin = min(until, max(begin_ns, at_ns[earlier]))
        if begin < until and not why:
            yield from _pieces_of(graph, PathSpan(side, begin, until, OUTSIDE, "", int(graph.thread[item])))
        elif begin < until:
            name = graph.call_names.get(item, "") if why == RETURN else why if why == HANDOVER else ""
            yield PathSpan(side, begin, until, {RETURN: SYNCHRONIZE, HANDOVER: OUTSIDE}.get(why, why), name, NONE)
        item, until = earlier, begin


def _pieces_of(graph: Graph, span: PathSpan) -> Iterator[PathSpan]:
    """Yield what the host does in a part of the path, the last first."""
    pieces, of, (side, least_ns, until_ns, _, _, thread) = graph.pieces, graph.pieces.of(span.thread), span
    place, end = (of.start + pieces.begin_ns[of].searchsorted((least_ns, until_ns), side="right")).tolist()
    first = max(of.start, place - 1)
    columns = (array[first:end][::-1].tolist() for array in (pieces.begin_ns, pieces.end_ns, pieces.kind, pieces.name))
    for begin_ns, end_ns, kind, number in zip(*columns, strict=True):
        begin_ns, end_ns = max(least_ns, begin_ns), min(until_ns, end_ns)
        if end_ns <= begin_ns:
            continue
        if end_ns < until_ns:
            yield PathSpan(side, end_ns, until_ns, OUTSIDE, "", thread)
        name = "" if number == NONE else graph.names[number]
        yield PathSpan(side, begin_ns, end_ns, KINDS[kind], name, thread)
        until_ns = begin_ns
    if least_ns < until_ns:
        yield PathSpan(side, least_ns, until_ns, OUTSIDE, "", thread)


def _waited_for(graph: Graph, item: int, edge: int) -> tuple[int, str]:
    """Return the item that one waited for, and why; "" if the host was busy from one to the other."""
    if edge != NONE:
        other, _, why = graph.edges[item][edge]
        return other, why
    earlier, points = graph.before[item], graph.points
    if item < points:
        return earlier, ""
    is_in_graph = points <= min(earlier, item) and max(earlier, item) < points + len(graph.works.row)
    return earlier, IN_GRAPH if is_in_graph and graph.works.is_in_graph(earlier - points, item - points) else STREAM


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


def outcomes(graph: Graph, path: Path) -> list[tuple[TimeChange, int]]:
    """Return the changes that are worth a look, each with what it brings, the largest first."""
    return sorted(((change, outcome(graph, change)) for change in changes_for(graph, path)), key=itemgetter(1))


def changes_for(graph: Graph, path: Path) -> list[TimeChange]:
    """Return a change for each thing of which much of the path consists."""
    kinds = path.kinds_ns
    offers: list[tuple[object, TimeChange]] = [
        (True, TimeChange("the host is twice as fast", host_saved=HALF)),
        (len(graph.works.row), TimeChange("all kernels are twice as fast", device_saved=HALF, device_kind=KERNEL)),
        (kinds.get(DATA_LOADING), TimeChange("data loading takes no time", host_saved=1.0, host_kind=DATA_LOADING)),
        (kinds.get(ALLOCATION), TimeChange("allocations take no time", host_saved=1.0, host_kind=ALLOCATION)),
        (graph.removable, TimeChange("the host never waits for the device", without_waits=True)),
        (
            kinds.get(COMMUNICATION),
            TimeChange("communication is hidden completely", device_saved=1.0, device_kind=COMMUNICATION),
        ),
    ]
    changes = [change for is_offered, change in offers if is_offered]
    kernels, operators = (
        list(dict.fromkeys(link.name for link in path.links if link.kind == kind))[:MOST_EACH]
        for kind in (KERNEL, OPERATOR)
    )
    changes += [TimeChange(TWICE_AS_FAST, name, device_saved=HALF, device_kind=KERNEL) for name in kernels]
    changes += [TimeChange(TWICE_AS_FAST, name, host_saved=HALF, host_kind=OPERATOR) for name in operators]
    return [*changes, *_changes_of_ranks(graph, path)] if graph.is_of_ranks else changes


def _changes_of_ranks(graph: Graph, path: Path) -> list[TimeChange]:
    changes = [TimeChange("the ranks are in perfect balance", is_balanced=True)]
    parts = graph.pieces, graph.works
    phases = [name for i, name in enumerate(PHASES) if any((part.phase == i).any() for part in parts)]
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


def outcome(graph: Graph, change: TimeChange) -> int:
    """Return what the steps would take together with a change (ns), with the work that they launched.

    All else stays as it was recorded.

    A wait that the trace does not show, because what it waits for had ended before, is not known here either. Such a
    step may be longer in reality.
    """
    without = graph.removable if change.without_waits else frozenset()
    own, edges = _host(graph, change)
    ends, _ = replay(graph, own, _lengths(graph, change), without, change.is_balanced, edges)
    if change.is_balanced:
        return _mean_wall_ns(graph, ends)
    return max(ends[item] for item in graph.ends) - critical_path(graph).begin_ns


def _mean_wall_ns(graph: Graph, ends: Sequence[int]) -> int:
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
    is_kind = pieces.kind == KINDS.index(change.host_kind) if change.host_kind else np.full(len(pieces.kind), True)
    is_changed = _chosen(graph, change, pieces, graph.side_of_thread[pieces.thread], is_kind)
    for thread in np.unique(graph.thread).tolist():
        of = pieces.of(thread)
        points = np.flatnonzero(graph.thread == thread)
        if not is_changed[of].any():
            continue
        begins_ns = pieces.begin_ns[of]
        saved = Intervals(begins_ns, np.where(is_changed[of], pieces.end_ns[of], begins_ns))
        before = np.diff(saved.before(at[points]), prepend=0)
        own[points] -= (before * change.host_saved).astype(np.int64)
        items, places, *waited = np.array(_launch_waits(graph, thread), np.int64).reshape(-1, 4).T
        shorter_ns = (saved.within(*waited) * change.host_saved).astype(np.int64).tolist()
        for item, place, ns in zip(items.tolist(), places.tolist(), shorter_ns, strict=True):
            point, delay, why = edges[item][place]
            edges[item] = (*edges[item][:place], (point, delay - ns, why), *edges[item][place + 1 :])
    fixed = np.array([*graph.fixed], np.int64)
    own[fixed] = np.array(graph.own_ns, np.int64)[fixed]
    return [max(0, ns) if i < graph.points else ns for i, ns in enumerate(own.tolist())], edges


def _launch_waits(graph: Graph, thread: int) -> list[tuple[int, int, int, int]]:
    """Return works that wait for the call that launched them: item, edge, and begin and end of that wait.

    These are the works of a thread whose launch lasts for the whole call, and those with which a graph begins.
    """
    found, works = [], graph.works
    for work in np.flatnonzero((works.thread == thread) & (works.call_ns > 0)).tolist():
        item, called_ns, call_ns = graph.points + work, int(works.called_ns[work]), int(works.call_ns[work])
        for place, (_, delay, why) in enumerate(graph.edges[item]):
            if why == GRAPH_LAUNCH or (why == LAUNCH and delay >= call_ns):
                found.append((item, place, called_ns, called_ns + min(delay, call_ns)))
    return found


def _chosen(graph: Graph, change: TimeChange, part: HostPieces | Works, side: Ints, is_kind: Bools) -> Bools:
    """Return which pieces or works of this kind, each on a side of the graph, a change is of."""
    chosen: Bools = is_kind & (part.begin_ns >= np.array([of.begin_ns for of in graph.sides])[side])
    if change.rank != NONE:
        chosen &= np.array([of.rank for of in graph.sides])[side] == change.rank
    if change.phase:
        chosen &= part.phase == PHASES.index(change.phase)
    elif change.name:
        chosen &= (part.name != NONE) & (np.array(graph.names, object)[part.name] == change.name)
    return chosen


def _lengths(graph: Graph, change: TimeChange) -> list[int]:
    if not change.device_saved:
        return graph.length_ns
    works, lengths = graph.works, np.array(graph.length_ns, np.int64)
    items = slice(graph.points, graph.points + len(works.row))
    is_kind = (works.kind == change.device_kind) | (not change.device_kind)
    chosen = _chosen(graph, change, works, graph.side[items], is_kind)
    lengths[items] -= np.where(chosen, (lengths[items] * change.device_saved).astype(np.int64), 0)
    return [int(ns) for ns in lengths]
