"""The critical path: from the end of the steps back to their begin, each moment given to what was waited for last."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np

from training_profiler.trace_analysis.critical_path.graph import HANDOVER, RETURN, STREAM, Graph, replay
from training_profiler.trace_analysis.critical_path.host_links import KINDS, OUTSIDE, SYNCHRONIZE
from training_profiler.trace_analysis.gaps import IN_GRAPH
from training_profiler.trace_analysis.load.columns import NONE, Ints
from training_profiler.trace_analysis.timeline import covered, union

K = TypeVar("K", bound=Hashable)

KERNEL: Final = "kernel"
COMMUNICATION: Final = "communication"
COPY: Final = "copy"
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
        return _sums((link.rank, link.ns) for link in self.links)

    @property
    def kinds_ns(self) -> dict[str, int]:
        """The time of each kind, the longest first."""
        return _sums((link.kind, link.ns) for link in self.links)


def _sums(times_ns: Iterable[tuple[K, int]]) -> dict[K, int]:
    sums: Counter[K] = Counter()
    for key, ns in times_ns:
        sums[key] += ns
    return dict(sums.most_common())


@dataclass(frozen=True, slots=True)
class PathSpan:
    """A part of the path, on one side of the graph. What the host does there is in its pieces."""

    side: int
    begin_ns: int
    end_ns: int
    kind: str  # "" for time of the host
    name: str
    thread: int  # of the host; -1 otherwise


@lru_cache(1)
def critical_path(graph: Graph) -> Path:
    """Return the path of the recorded steps. That of the latest graph is kept: its tables need it one after another."""
    sums: Counter[tuple[int, str, str]] = Counter()
    jumps: Counter[tuple[str, int, int]] = Counter()
    on_host: dict[int, list[tuple[int, int, int]]] = {}  # by side: thread, begin, end
    begin_ns = end_ns = max(graph.at_ns[end] for end in graph.ends)
    for span in _walk(graph, jumps):
        begin_ns = span.begin_ns
        if span.kind:
            sums[span.side, span.kind, span.name] += span.end_ns - span.begin_ns
        else:
            on_host.setdefault(span.side, []).append((span.thread, span.begin_ns, span.end_ns))
    for side, spans in on_host.items():
        sums.update({(side, *of): ns for of, ns in _of_host(graph, spans).items()})
    links = [Link(kind, name, ns, graph.sides[side].rank) for (side, kind, name), ns in sums.items() if ns]
    links.sort(key=lambda link: (-link.ns, link.rank, link.kind, link.name))
    met = tuple(Jump(*between, count) for between, count in jumps.most_common())
    earlier_ns, recording_ns = (max(getattr(side, key) for side in graph.sides) for key in _BEFORE)
    return Path(begin_ns, end_ns - begin_ns, graph.steps, tuple(links), met, earlier_ns, recording_ns)


def spans_of(graph: Graph) -> list[PathSpan]:
    """Return the path in order of time, with what the host does in pieces of their own; they add up to it."""
    spans = []
    for span in _walk(graph, Counter()):
        spans += [span] if span.kind else _pieces_of(graph, span)[::-1]
    return spans[::-1]


def _walk(graph: Graph, jumps: Counter[tuple[str, int, int]]) -> Iterator[PathSpan]:
    """Yield the parts of the path from its end to its begin, and count in ``jumps`` where it goes to another rank.

    Each moment belongs to one part: the walk begins at the last item and goes from each item to what it waited for
    last, over ranks too, until the begin of the first step of the rank that it has come to.
    """
    last = replay(graph, graph.own_ns, graph.length_ns)[1]
    at_ns = graph.at_ns
    item = max(graph.ends, key=lambda end: at_ns[end])
    until, collective = at_ns[item], ""
    while until > (begin_ns := graph.begin_of(item)):
        side = int(graph.side[item])
        if graph.length_ns[item]:
            # It may end after what waits for it has begun.
            begin = max(begin_ns, min(until, at_ns[item] - graph.length_ns[item]))
            if begin < until:
                yield PathSpan(side, begin, until, *_of_work(graph, item - graph.points), NONE)
            until = begin
        if item in graph.waiting:
            collective = graph.names[graph.work_name[item - graph.points]]
        earlier, why = _waited_for(graph, item, last[item])
        if earlier == NONE:  # nothing is known to come before it
            if begin_ns < until:
                yield PathSpan(side, begin_ns, until, "", "", graph.sides[side].main)
            return
        if graph.side[earlier] != side:
            jumps[collective, graph.sides[side].rank, graph.sides[int(graph.side[earlier])].rank] += 1
        begin = min(until, max(begin_ns, at_ns[earlier]))
        kind, name = _of_wait(graph, item, why) if why else ("", "")
        if begin < until:
            yield PathSpan(side, begin, until, kind, name, NONE if why else int(graph.thread[item]))
        item, until = earlier, begin


def _pieces_of(graph: Graph, span: PathSpan) -> list[PathSpan]:
    """Return what the host does in a part of the path, in order of time."""
    pieces, of = graph.pieces, graph.pieces.of(span.thread)
    first = max(0, int(np.searchsorted(pieces.begin_ns[of], span.begin_ns, side="right")) - 1)
    end = int(np.searchsorted(pieces.begin_ns[of], span.end_ns))
    found, at_ns = [], span.begin_ns
    for i in range(of.start + first, of.start + end):
        begin_ns, end_ns = max(at_ns, int(pieces.begin_ns[i])), min(span.end_ns, int(pieces.end_ns[i]))
        if end_ns <= begin_ns:
            continue
        if begin_ns > at_ns:
            found.append(replace(span, begin_ns=at_ns, end_ns=begin_ns, kind=OUTSIDE))
        name = "" if pieces.name[i] == NONE else graph.names[pieces.name[i]]
        found.append(replace(span, begin_ns=begin_ns, end_ns=end_ns, kind=KINDS[pieces.kind[i]], name=name))
        at_ns = end_ns
    return found if at_ns == span.end_ns else [*found, replace(span, begin_ns=at_ns, kind=OUTSIDE)]


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


def work_kind(graph: Graph, work: int) -> str:
    """Return what a work is."""
    return COMMUNICATION if graph.communicates[work] else COPY if graph.is_copy[work] else KERNEL


def _of_work(graph: Graph, work: int) -> tuple[str, str]:
    return work_kind(graph, work), graph.names[graph.work_name[work]]


def _of_wait(graph: Graph, item: int, why: str) -> tuple[str, str]:
    if why == RETURN:
        return SYNCHRONIZE, graph.call_names.get(item, "")
    return (OUTSIDE, why) if why == HANDOVER else (why, "")


def _of_host(graph: Graph, spans: list[tuple[int, int, int]]) -> Counter[tuple[str, str]]:
    """Return the time of the host by what it did; the time outside of its events is outside of operators."""
    sums: Counter[tuple[str, str]] = Counter()
    pieces = graph.pieces
    for thread in {thread for thread, _, _ in spans}:
        begins, ends = np.array([span[1:] for span in spans if span[0] == thread], np.int64).T
        of = pieces.of(thread)
        ns: Ints = covered(union(begins, ends), pieces.begin_ns[of], pieces.end_ns[of])
        for i in np.flatnonzero(ns).tolist():
            name = int(pieces.name[of][i])
            sums[KINDS[pieces.kind[of][i]], "" if name == NONE else graph.names[name]] += int(ns[i])
        outside = int((ends - begins).sum() - ns.sum())
        if outside:
            sums[OUTSIDE, ""] += outside
    return sums
