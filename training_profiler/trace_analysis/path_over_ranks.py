"""One graph for the traces of several ranks: a collective begins to transfer when the last of them has reached it.

Program activity graphs over processes: Yang and Miller, "Critical path analysis for the execution of parallel and
distributed programs", ICDCS 1988. The path goes from a wait to what delayed the last one: Boehme, Wolf, de Supinski,
Schulz and Geimer, "Scalable critical-path based performance analysis", IPDPS 2012.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from training_profiler.trace_analysis.columns import NONE, Ints, distinct
from training_profiler.trace_analysis.communication import Runs, RunsOf, matched_runs
from training_profiler.trace_analysis.path_graph import OTHER_RANK, Edge, Graph, replayed_exactly
from training_profiler.trace_analysis.path_links import LONG_AGO, HostPieces, Works

# All ranks leave these at about the same time: none has its result before the last one has sent.
LEFT_TOGETHER: Final = frozenset(("all_reduce", "reduce_scatter", "all_gather", "all_to_all"))
MOST_APART_NS: Final = 100_000  # that a rank leaves such a collective before the last one has reached it
MOST_FALSE: Final = 0.1  # of the collectives; with more they are not the same on all ranks


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective: the works of the ranks that are a part of it."""

    sides: Ints
    works: Ints  # of each of these sides, in its own graph


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
        sides = np.array([ranks.index(rank) for rank in members])
        works = np.stack(
            [
                [work_of_row[side][row] for row in runs[rank][of].row[at].tolist()]
                for side, rank, at in zip(sides.tolist(), members, place, strict=True)
            ]
        )
        found.setdefault(of.kind, []).extend(Meeting(sides, column) for column in works.T)
    return found


def _clock_shifts(graphs: Sequence[Graph], meetings: Sequence[Meeting]) -> list[int] | None:
    """Return what to add to the times of each side; None if not all of them are connected by meetings."""
    apart: dict[tuple[int, int], list[int]] = {}
    for meeting in meetings:
        first, *others = zip(meeting.sides.tolist(), meeting.works.tolist(), strict=True)
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
    pairs = list(zip(meeting.sides.tolist(), meeting.works.tolist(), strict=True))
    begins = [int(graphs[side].works.begin_ns[work]) + shift[side] for side, work in pairs]
    ends = [int(graphs[side].works.end_ns[work]) + shift[side] for side, work in pairs]
    return np.array(begins, np.int64), np.array(ends, np.int64)


class _Join:
    def __init__(self, ranks: Sequence[int], graphs: Sequence[Graph], shift: Sequence[int]) -> None:
        self._ranks, self._graphs, self._shift = ranks, graphs, shift
        points, works = [graph.points for graph in graphs], [len(graph.works.row) for graph in graphs]
        firsts = zip(np.cumsum([0, *points]).tolist(), np.cumsum([sum(points), *works]).tolist(), strict=True)
        self._places = [  # of the items of each graph
            [*range(point, point + points[side]), *range(work, work + works[side])]
            for side, (point, work) in zip(range(len(graphs)), firsts, strict=False)
        ]
        count = sum(points) + sum(works)
        self._at, self._length, self._before, self._own = ([0] * count for _ in range(4))
        self._edges: list[tuple[Edge, ...]] = [()] * count
        self._side = [0] * count
        # Items at one time are in this order: kind of item, then place in the order of their own graph.
        self._rank_at_once = [(0, 0)] * count
        self._waiting: set[int] = set()

    def graph(self, meetings: Sequence[Meeting]) -> Graph:
        for side in range(len(self._graphs)):
            self._add(side)
        for meeting in meetings:
            self._meet(meeting)
        graphs, shift = self._graphs, self._shift
        threads = np.cumsum([0, *(len(graph.side_of_thread) for graph in graphs)]).tolist()
        names = np.cumsum([0, *(len(graph.names) for graph in graphs)]).tolist()
        items = range(len(self._at))
        return Graph(
            tuple(name for graph in graphs for name in graph.names),
            HostPieces(
                _joined([graph.pieces.thread + first for graph, first in zip(graphs, threads, strict=False)]),
                _joined([graph.pieces.begin_ns + ns for graph, ns in zip(graphs, shift, strict=True)]),
                _joined([graph.pieces.end_ns + ns for graph, ns in zip(graphs, shift, strict=True)]),
                _joined([graph.pieces.row for graph in graphs]),
                _joined([graph.pieces.kind for graph in graphs]),
                _joined([_moved(graph.pieces.name, first) for graph, first in zip(graphs, names, strict=False)]),
            ),
            self._joined_works(threads),
            np.concatenate([graph.communicates for graph in graphs]),
            _joined([graph.work_name + first for graph, first in zip(graphs, names, strict=False)]),
            np.concatenate([graph.is_copy for graph in graphs]),
            _joined([graph.thread + first for graph, first in zip(graphs, threads, strict=False)]),
            self._at,
            self._length,
            self._before,
            self._own,
            self._edges,
            {
                self._places[side][item]: name
                for side, graph in enumerate(graphs)
                for item, name in graph.call_names.items()
            },
            frozenset(self._places[side][item] for side, graph in enumerate(graphs) for item in graph.removable),
            frozenset(self._places[side][item] for side, graph in enumerate(graphs) for item in graph.fixed),
            sorted(items, key=lambda item: (self._at[item], self._rank_at_once[item])),
            [self._places[side][item] for side, graph in enumerate(graphs) for item in graph.ends],
            graphs[0].steps,
            _joined(
                [graph.phase[: len(graph.pieces.thread)] for graph in graphs]
                + [graph.phase[len(graph.pieces.thread) :] for graph in graphs]
            ),
            tuple(
                replace(side, rank=rank, begin_ns=side.begin_ns + ns, main=side.main + first)
                for rank, graph, ns, first in zip(self._ranks, graphs, shift, threads, strict=False)
                for side in graph.sides
            ),
            np.array(self._side, np.int64),
            np.repeat(np.arange(len(graphs)), [len(graph.side_of_thread) for graph in graphs]),
            frozenset(self._waiting),
        )

    def _add(self, side: int) -> None:
        graph, shift, places = self._graphs[side], self._shift[side], self._places[side]
        for place, item in enumerate(graph.order):
            to = places[item]
            self._at[to], self._length[to] = graph.at_ns[item] + shift, graph.length_ns[item]
            before = graph.before[item]
            self._before[to] = NONE if before == NONE else places[before]
            self._own[to] = graph.own_ns[item]
            self._edges[to] = tuple((places[other], delay, why) for other, delay, why in graph.edges[item])
            self._side[to] = side
            self._rank_at_once[to] = (int(item >= graph.points), place)

    def _meet(self, meeting: Meeting) -> None:
        """Let the works of a meeting begin when the last side has reached it.

        A side that left before others came did not wait for these.
        """
        begins, ends = _times(self._graphs, self._shift, meeting)
        works = [
            self._places[side][self._graphs[side].points + work]
            for side, work in zip(meeting.sides.tolist(), meeting.works.tolist(), strict=True)
        ]
        taking = np.flatnonzero(ends > begins)  # a work without a length cannot wait
        arrivals = {}
        for i in taking.tolist():  # the begin of each work is a new item, which waits for what the work waited for
            arrivals[i] = at = self._new(int(begins[i]), self._side[works[i]], 2)
            for values in (self._before, self._own, self._edges):
                values[at] = values[works[i]]
        sorted_ns = np.sort(begins[taking])
        latest_ns = sorted_ns[np.searchsorted(sorted_ns, ends[taking]) - 1]
        for met_ns in distinct(latest_ns).tolist():
            came = [i for i in taking.tolist() if begins[i] <= met_ns]
            met = self._new(met_ns, self._side[works[came[int(np.argmax(begins[came]))]]], 3)
            self._edges[met] = tuple((arrivals[i], 0, OTHER_RANK) for i in came)
            for i in taking[latest_ns == met_ns].tolist():
                self._waiting.add(works[i])
                self._before[works[i]], self._own[works[i]] = NONE, 0
                self._length[works[i]] = int(ends[i]) - met_ns
                self._edges[works[i]] = ((arrivals[i], 0, OTHER_RANK), (met, 0, OTHER_RANK))

    def _new(self, at_ns: int, side: int, kind: int) -> int:
        for values, value in ((self._at, at_ns), (self._length, 0), (self._before, NONE), (self._own, 0)):
            values.append(value)
        self._edges.append(())
        self._side.append(side)
        self._rank_at_once.append((kind, len(self._at)))
        return len(self._at) - 1

    def _joined_works(self, threads: Sequence[int]) -> Works:
        sides = list(zip((graph.works for graph in self._graphs), self._shift, threads, strict=False))
        streams = np.cumsum([0, *(int(works.stream.max(initial=-1)) + 1 for works, _, _ in sides)]).tolist()
        return Works(
            _joined([works.row for works, _, _ in sides]),
            _joined([works.begin_ns + ns for works, ns, _ in sides]),
            _joined([works.end_ns + ns for works, ns, _ in sides]),
            _joined([works.stream + first for (works, _, _), first in zip(sides, streams, strict=False)]),
            _joined([np.where(works.called_ns == LONG_AGO, LONG_AGO, works.called_ns + ns) for works, ns, _ in sides]),
            _joined([works.call_ns for works, _, _ in sides]),
            _joined([_moved(works.thread, first) for works, _, first in sides]),
            _joined([works.replay for works, _, _ in sides]),
            _joined([works.unseen_ns for works, _, _ in sides]),
        )


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts)


def _moved(index: Ints, by: int) -> Ints:
    """Return indices into a longer list; -1 stays."""
    return np.where(index == NONE, NONE, index + by)
