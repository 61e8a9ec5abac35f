"""One graph for the traces of several ranks: a collective begins to transfer when the last of them has reached it.

Program activity graphs over processes: Yang and Miller, "Critical path analysis for the execution of parallel and
distributed programs", ICDCS 1988. The path goes from a wait to what delayed the last one: Boehme, Wolf, de Supinski,
Schulz and Geimer, "Scalable critical-path based performance analysis", IPDPS 2012.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, Final, TypeVar

import numpy as np

from training_profiler.trace_analysis.columns import NONE, Ints
from training_profiler.trace_analysis.communication import Runs, RunsOf, matched_runs
from training_profiler.trace_analysis.path_graph import OTHER_RANK, Edge, Graph, replayed_exactly
from training_profiler.trace_analysis.path_links import LONG_AGO, HostPieces, Works

# All ranks leave these at about the same time: none has its result before the last one has sent.
LEFT_TOGETHER: Final = frozenset(("all_reduce", "reduce_scatter", "all_gather", "all_to_all"))
MOST_APART_NS: Final = 100_000  # that a rank leaves such a collective before the last one has reached it
MOST_FALSE: Final = 0.1  # of the collectives; with more they are not the same on all ranks


# One collective: the sides that are a part of it, each with its work in its own graph.
Meeting = Sequence[tuple[int, int]]


def joined_graph(graphs: Mapping[int, Graph | str | None], runs: Mapping[int, Mapping[RunsOf, Runs]]) -> Graph | str:
    """Return the graph over ranks, or why there is none.

    The clock of each rank is moved so that ranks leave collectives at the same time, in the median.
    """
    ranks = sorted(graphs)
    found = []
    for rank in ranks:
        graph = graphs[rank]
        if graph is None or isinstance(graph, str):
            return f"of rank {rank}, {graph or 'it was not computed'}"
        if any(side.earlier_ns for side in graph.sides):
            return f"when the recording of rank {rank} began, its device had earlier work to do"
        found.append(graph)
    if len({graph.steps for graph in found}) > 1:
        return "the ranks recorded different numbers of steps"
    meetings = {kind: together for kind, together in _meetings(ranks, found, runs).items() if together}
    known = [meeting for kind, of in meetings.items() if kind in LEFT_TOGETHER for meeting in of]
    shift = _clock_shifts(found, known or [meeting for of in meetings.values() for meeting in of])
    if shift is None:
        return "the collectives of some ranks match those of no other"
    times = [_times(found, shift, meeting) for meeting in known]
    false = sum(bool(begins.max() > ends.min() + MOST_APART_NS) for begins, ends in times)
    if false > MOST_FALSE * len(known):
        return f"{false} of {len(known)} collectives ended on one rank before another had reached them"
    joined = _Join(ranks, found, shift).graph([meeting for of in meetings.values() for meeting in of])
    return joined if replayed_exactly(joined) else "the times of the ranks contradict one another"


def _meetings(
    ranks: Sequence[int], graphs: Sequence[Graph], runs: Mapping[int, Mapping[RunsOf, Runs]]
) -> dict[str, list[Meeting]]:
    found: dict[str, list[Meeting]] = {}
    work_of_row = [dict(zip(graph.works.row.tolist(), range(len(graph.works.row)), strict=True)) for graph in graphs]
    for of, members, place in matched_runs(runs):
        of_sides = [
            [(side, work_of_row[side][row]) for row in runs[rank][of].row[at].tolist()]
            for side, rank, at in zip(map(ranks.index, members), members, place, strict=True)
        ]
        found.setdefault(of.kind, []).extend(zip(*of_sides, strict=True))
    return found


def _clock_shifts(graphs: Sequence[Graph], meetings: Sequence[Meeting]) -> list[int] | None:
    """Return what to add to the times of each side; None if not all of them are connected by meetings."""
    apart: dict[tuple[int, int], list[int]] = {}
    for meeting in meetings:
        first, *others = meeting
        for side, work in others:
            first_ns, end_ns = (int(graphs[of].works.end_ns[at]) for of, at in (first, (side, work)))
            apart.setdefault((first[0], side), []).append(first_ns - end_ns)
    shift = {0: 0}
    while len(shift) < len(graphs):
        reached = len(shift)
        for (one, other), differences in apart.items():
            between = round(float(np.median(differences)))
            if one in shift:
                shift.setdefault(other, shift[one] + between)
            elif other in shift:
                shift[one] = shift[other] - between
        if len(shift) == reached:
            return None
    return [shift[side] for side in range(len(graphs))]


def _times(graphs: Sequence[Graph], shift: Sequence[int], meeting: Meeting) -> tuple[Ints, Ints]:
    begins = [int(graphs[side].works.begin_ns[work]) + shift[side] for side, work in meeting]
    ends = [int(graphs[side].works.end_ns[work]) + shift[side] for side, work in meeting]
    return np.array(begins, np.int64), np.array(ends, np.int64)


@dataclass(frozen=True, slots=True)
class _Item:
    """A point, a work or a meeting as lists of a graph have it; items at one time are in order of ``rank``."""

    at_ns: int
    side: int
    rank: tuple[int, int]
    length_ns: int = 0
    before: int = NONE
    own_ns: int = 0
    edges: tuple[Edge, ...] = ()


class _Join:
    def __init__(self, ranks: Sequence[int], graphs: Sequence[Graph], shift: Sequence[int]) -> None:
        self._ranks, self._graphs, self._shift = ranks, graphs, shift
        points, works = [graph.points for graph in graphs], [len(graph.works.row) for graph in graphs]
        firsts = zip(_firsts(points), _firsts([sum(points), *works])[1:], strict=True)
        self._places = [  # of the items of each graph
            [*range(point, point + points[side]), *range(work, work + works[side])]
            for side, (point, work) in enumerate(firsts)
        ]
        items = {}
        for side, (graph, places) in enumerate(zip(graphs, self._places, strict=True)):
            for place, item in enumerate(graph.order):
                before = graph.before[item]
                items[places[item]] = _Item(
                    graph.at_ns[item] + shift[side],
                    side,
                    (int(item >= graph.points), place),
                    graph.length_ns[item],
                    NONE if before == NONE else places[before],
                    graph.own_ns[item],
                    tuple((places[other], delay, why) for other, delay, why in graph.edges[item]),
                )
        self._items = [items[place] for place in range(len(items))]
        self._waiting: set[int] = set()

    def graph(self, meetings: Sequence[Meeting]) -> Graph:
        for meeting in meetings:
            self._meet(meeting)
        graphs, shift, items = self._graphs, self._shift, self._items
        threads = _firsts([len(graph.side_of_thread) for graph in graphs])
        moves = {"begin_ns": shift, "end_ns": shift, "called_ns": shift, "thread": threads}
        moves["name"] = _firsts([len(graph.names) for graph in graphs])
        moves["stream"] = _firsts([int(graph.works.stream.max(initial=-1)) + 1 for graph in graphs])
        call_names = [name for graph in graphs for name in graph.call_names.values()]
        return Graph(
            tuple(name for graph in graphs for name in graph.names),
            _joined([graph.pieces for graph in graphs], moves),
            _joined([graph.works for graph in graphs], moves),
            np.concatenate([graph.thread + first for graph, first in zip(graphs, threads, strict=True)]),
            [item.at_ns for item in items],
            [item.length_ns for item in items],
            [item.before for item in items],
            [item.own_ns for item in items],
            [item.edges for item in items],
            dict(zip(self._moved("call_names"), call_names, strict=True)),
            frozenset(self._moved("removable")),
            frozenset(self._moved("fixed")),
            sorted(range(len(items)), key=lambda item: (items[item].at_ns, items[item].rank)),
            self._moved("ends"),
            graphs[0].steps,
            tuple(
                replace(side, rank=rank, begin_ns=side.begin_ns + ns, main=side.main + first)
                for rank, graph, ns, first in zip(self._ranks, graphs, shift, threads, strict=True)
                for side in graph.sides
            ),
            np.array([item.side for item in items], np.int64),
            np.repeat(np.arange(len(graphs)), [len(graph.side_of_thread) for graph in graphs]),
            frozenset(self._waiting),
        )

    def _moved(self, field: str) -> list[int]:
        """Return where the items are that a field of each graph lists."""
        both = zip(self._graphs, self._places, strict=True)
        return [places[item] for graph, places in both for item in getattr(graph, field)]

    def _meet(self, meeting: Meeting) -> None:
        """Let the works of a meeting begin when the last side has reached it.

        A side that left before others came did not wait for these.
        """
        begins, ends = _times(self._graphs, self._shift, meeting)
        works = [self._places[side][self._graphs[side].points + work] for side, work in meeting]
        taking = np.flatnonzero(ends > begins)  # a work without a length cannot wait
        arrivals = {}
        for i in taking.tolist():  # the begin of each work is a new item, which waits for what the work waited for
            work = self._items[works[i]]
            arrivals[i] = self._new(
                int(begins[i]), work.side, 2, before=work.before, own_ns=work.own_ns, edges=work.edges
            )
        sorted_ns = np.sort(begins[taking])
        latest_ns = sorted_ns[np.searchsorted(sorted_ns, ends[taking]) - 1]
        for met_ns in np.unique(latest_ns).tolist():
            came = [i for i in taking.tolist() if begins[i] <= met_ns]
            last = self._items[works[came[int(np.argmax(begins[came]))]]]
            met = self._new(met_ns, last.side, 3, edges=tuple((arrivals[i], 0, OTHER_RANK) for i in came))
            for i in taking[latest_ns == met_ns].tolist():
                self._waiting.add(works[i])
                edges = (arrivals[i], 0, OTHER_RANK), (met, 0, OTHER_RANK)
                work = self._items[works[i]]
                self._items[works[i]] = _Item(work.at_ns, work.side, work.rank, int(ends[i]) - met_ns, edges=edges)

    def _new(self, at_ns: int, side: int, kind: int, **waits: Any) -> int:
        self._items.append(_Item(at_ns, side, (kind, len(self._items)), **waits))
        return len(self._items) - 1


def _firsts(counts: Sequence[int]) -> list[int]:
    """Return where each of several parts begins, if they have so many items and follow one another."""
    return list(accumulate(counts[:-1], initial=0))


Part = TypeVar("Part", HostPieces, Works)


def _joined(parts: Sequence[Part], moves: Mapping[str, Sequence[int]]) -> Part:
    """Return the columns of all parts, with what has to be added to those of each part; what is missing stays so."""

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if name in moves:
            missing = LONG_AGO if name.endswith("_ns") else NONE
            values = [np.where(of == missing, of, of + by) for of, by in zip(values, moves[name], strict=True)]
        return np.concatenate(values)

    return type(parts[0])(**{field.name: column(field.name) for field in fields(parts[0])})
