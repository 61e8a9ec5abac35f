"""The critical path: from the end of the steps back to their begin, each moment given to what was waited for last."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.critical_path.graph import HANDOVER, RETURN, STREAM, Graph, replay
from training_profiler.trace_analysis.critical_path.host_pieces import KINDS, PYTHON, SYNCHRONIZE
from training_profiler.trace_analysis.intervals import Ints, covered, union
from training_profiler.trace_analysis.load.columns import NONE

KERNEL: Final = "kernel"
COMMUNICATION: Final = "communication"
COPY: Final = "copy"


@dataclass(frozen=True, slots=True)
class Link:
    """All time of the path that belongs to one thing."""

    kind: str
    name: str  # of the operator, kernel, call or annotation; "" for none
    ns: int


@dataclass(frozen=True, slots=True)
class Path:
    """The links add up to the path, which reaches from the first step to the end of what the steps launched."""

    begin_ns: int
    wall_ns: int
    steps: int  # 0 if none is marked
    links: tuple[Link, ...]  # the longest first

    @property
    def kinds_ns(self) -> dict[str, int]:
        """The time of each kind, the longest first."""
        sums: Counter[str] = Counter()
        for link in self.links:
            sums[link.kind] += link.ns
        return dict(sums.most_common())


def critical_path(graph: Graph) -> Path:
    """Return the path of the recorded steps.

    Each moment belongs to one link: the walk begins at the last item and goes from each item to what it waited for
    last, until the begin of the first step.
    """
    last = replay(graph, graph.own_ns, graph.length_ns)[1]
    at_ns, begin_ns = graph.at_ns, graph.begin_ns
    item = max(graph.ends, key=lambda end: at_ns[end])
    wall_ns = at_ns[item] - begin_ns
    sums: Counter[tuple[str, str]] = Counter()
    on_host: list[tuple[int, int, int]] = []  # thread, begin, end
    until = at_ns[item]
    while until > begin_ns:
        work = item - graph.points
        if work >= 0:
            begin = max(begin_ns, until - graph.length_ns[item])
            sums[_of_work(graph, work)] += until - begin
            until = begin
        earlier, why = _waited_for(graph, item, last[item])
        if earlier == NONE:  # nothing is known to come before it
            on_host.append((int(graph.thread[graph.ends[0]]), begin_ns, until))
            break
        begin = min(until, max(begin_ns, at_ns[earlier]))
        if why:
            sums[_of_wait(graph, item, why)] += until - begin
        else:
            on_host.append((int(graph.thread[item]), begin, until))
        item, until = earlier, begin
    sums.update(_of_host(graph, on_host))
    links = [Link(kind, name, ns) for (kind, name), ns in sums.items() if ns]
    links.sort(key=lambda link: (-link.ns, link.kind, link.name))
    return Path(begin_ns, wall_ns, graph.steps, tuple(links))


def _waited_for(graph: Graph, item: int, edge: int) -> tuple[int, str]:
    """Return the item that one waited for, and why; "" if the host was busy from one to the other."""
    if edge != NONE:
        other, _, why = graph.edges[item][edge]
        return other, why
    return graph.before[item], "" if item < graph.points else STREAM


def work_kind(graph: Graph, work: int) -> str:
    """Return what a work is."""
    return COMMUNICATION if graph.communicates[work] else COPY if graph.is_copy[work] else KERNEL


def _of_work(graph: Graph, work: int) -> tuple[str, str]:
    return work_kind(graph, work), graph.names[graph.work_name[work]]


def _of_wait(graph: Graph, item: int, why: str) -> tuple[str, str]:
    if why == RETURN:
        return SYNCHRONIZE, graph.call_names.get(item, "")
    return (PYTHON, why) if why == HANDOVER else (why, "")


def _of_host(graph: Graph, spans: list[tuple[int, int, int]]) -> Counter[tuple[str, str]]:
    """Return the time of the host by what it did; what lies outside of its events is Python code."""
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
            sums[PYTHON, ""] += outside
    return sums
