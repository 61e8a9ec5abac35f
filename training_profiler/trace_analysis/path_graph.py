"""The graph of what waits for what in a trace: points on host threads, and pieces of device work.

A point of a host thread follows the point before it after what the thread did between them. Device work follows its
launch and the work before it. Both may also wait for other works or points, each after a delay. With the recorded
durations the graph gives exactly the recorded times; with others it gives the times that a change would bring.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import path_links
from training_profiler.trace_analysis.columns import NONE, Columns, Ints
from training_profiler.trace_analysis.completeness import not_recorded
from training_profiler.trace_analysis.events import Scope, TracedEvents
from training_profiler.trace_analysis.gaps import IN_GRAPH, started_ns
from training_profiler.trace_analysis.path_links import LONG_AGO, HostPieces, Works

MOST_WITHOUT_LAUNCH: Final = 0.05  # of device work
MOST_BEHIND: Final = 0.1  # of the time from the first step to the end of all work
MOST_BETWEEN_STEPS: Final = 0.1  # of the time from the first to the last

# Why something waits.
LAUNCH: Final = "launch delay"
STREAM: Final = "between works"
OTHER_STREAM: Final = "waiting for another stream"
GRAPH_LAUNCH: Final = "launch of a graph"
NOT_RECORDED: Final = "waiting for what is not recorded"
RETURN: Final = "return of a wait"
HANDOVER: Final = "hand-over to another thread"
OTHER_RANK: Final = "waiting for another rank"
Edge = tuple[int, int, str]  # the item that is waited for, the delay after its end, why


@dataclass(frozen=True, slots=True)
class Side:
    """The part of a graph that one trace recorded."""

    rank: int  # -1 if the graph is of one trace
    begin_ns: int  # of the path: of its first step, or later
    main: int  # the thread of the training loop
    earlier_ns: int = 0  # from its first step to where the path begins: the device did earlier work
    recording_ns: int = 0  # before that, at the begin of the first step: the recording started


@dataclass(frozen=True, slots=True, eq=False)  # one is equal to itself alone, without a look at its items
class Graph:
    """Items are points of host threads, then works, then meetings of ranks; ns since the begin of the trace."""

    names: tuple[str, ...]
    pieces: HostPieces
    works: Works
    thread: Ints  # of the points
    at_ns: list[int]  # the end of each item
    length_ns: list[int]  # of each work; 0 for points
    before: list[int]  # the point before on the thread, or the work before on the stream; -1 for none
    own_ns: list[int]  # from that to the point, or to the begin of the work
    edges: list[tuple[Edge, ...]]
    call_names: dict[int, str]  # of points at which a call that waits returns
    removable: frozenset[int]  # of these, within the steps, those whose waits for the device could be left out
    fixed: frozenset[int]  # points whose own time is not what the host did since the point before
    order: list[int]  # no item precedes what it waits for
    ends: list[int]  # items: the last of them ends the steps and the work that they launched
    steps: int  # 0: none is marked, and the graph is of the whole recording
    sides: tuple[Side, ...]
    side: Ints  # of each item: index into sides
    side_of_thread: Ints
    waiting: frozenset[int] = frozenset()  # works that begin when the last rank arrives; the first edge is their own

    @property
    def points(self) -> int:
        """The number of points; the works follow them."""
        return len(self.thread)

    @property
    def is_of_ranks(self) -> bool:
        """Whether it joins the traces of several ranks."""
        return len(self.sides) > 1


def graph_of(events: TracedEvents, doubts: Mapping[str, str]) -> Graph | str:
    """Return the graph, or why the trace does not have what it needs."""
    columns, scope = events.columns, events.scope
    main = columns.main_thread
    rows = np.flatnonzero(columns.is_gpu())
    rows = rows[np.lexsort((columns.end_ns[rows], columns.begin_ns[rows]))]
    calls = events.launches.call[rows]
    missing = _missing(columns, main, rows, calls, doubts, scope)
    if missing:
        return missing
    pieces = path_links.host_pieces(events)
    if not len(pieces.thread[pieces.of(main)]):
        return "nothing on the thread of the training loop takes time"
    works = path_links.works_of(events, rows, calls)
    bounds = _bounds(columns, pieces, main, scope)
    since_ns = _since(works, *bounds)
    if isinstance(since_ns, str):
        return since_ns
    graph = _Builder(events, pieces, works, calls, bounds).graph(since_ns)
    return graph if replayed_exactly(graph) else "its times contradict one another"


def _missing(columns: Columns, main: int, rows: Ints, calls: Ints, doubts: Mapping[str, str], scope: Scope) -> str:
    if doubts:
        return next(iter(doubts.values()))
    if main == NONE:
        return "it has no events of the host"
    if len(np.unique(columns.device[rows])) > 1:
        return "it has work of several devices: record each rank in a file of its own"
    # What runs before all work with a known launch was launched before the recording began.
    known = np.flatnonzero(calls != NONE)
    without = int((calls[known[0] if len(known) else 0 :] == NONE).sum())
    if without > MOST_WITHOUT_LAUNCH * len(rows):
        return f"the launch of {without} of {len(rows)} pieces of device work is unknown"
    begin, end = scope.parts[0].begin_ns, scope.end_ns
    apart = end - begin - scope.windows.total_ns > MOST_BETWEEN_STEPS * (end - begin)
    return "its steps do not follow one another" if scope.is_steps and apart else ""


def _since(works: Works, begin_ns: int, end_ns: int) -> int | str:
    """Return where the path begins, or why there is none.

    Work that was launched before the steps lengthens the path but belongs to no step. If it takes long, the path begins
    with the first work that the steps launched. A trace may lack that earlier work: what was launched then waits.
    """
    launched = np.flatnonzero((works.called_ns >= begin_ns) & (works.called_ns < end_ns))
    last_ns = max(end_ns, int(works.end_ns.max(initial=end_ns)))
    earlier = works.end_ns[: launched[0]] if len(launched) else works.end_ns
    unseen_ns = int(works.unseen_ns[launched[:1]].sum())
    behind_ns = max(unseen_ns, int(earlier.max(initial=begin_ns)) - begin_ns)
    since_ns = begin_ns
    if behind_ns > MOST_BEHIND * (last_ns - begin_ns):
        if not len(launched):
            return "the device did nothing but work that was launched before"
        since_ns = int(works.begin_ns[launched[0]])
    later_ns = int(works.unseen_ns[launched[1:]].sum())
    return not_recorded(later_ns) if later_ns > MOST_BEHIND * (last_ns - since_ns) else since_ns


def _bounds(columns: Columns, pieces: HostPieces, main: int, scope: Scope) -> tuple[int, int]:
    """Return begin and end of the steps, or of what the thread of the loop recorded.

    A recording that starts within the first step holds up the host there. That time is not the program's.
    """
    of = pieces.of(main)
    if scope.is_steps:
        return min(started_ns(columns, main, scope.parts[0].begin_ns), scope.end_ns - 1), scope.end_ns
    return int(pieces.begin_ns[of][0]), int(pieces.end_ns[of][-1])


class _Builder:
    """Builds the graph of works that ``calls`` launched, for a path within ``bounds``."""

    def __init__(
        self, events: TracedEvents, pieces: HostPieces, works: Works, calls: Ints, bounds: tuple[int, int]
    ) -> None:
        self._events, self._columns, self._pieces, self._works = events, events.columns, pieces, works
        self._main, self._bounds = events.columns.main_thread, bounds
        self._waits = path_links.waits_of(events.columns, works, calls)
        self._handovers = path_links.handovers_of(events.columns, events.nesting, pieces, self._main)
        self._point = self._points()
        self._thread, self._at = np.array(list(self._point), np.int64).T
        self._edges: list[list[Edge]] = [[] for _ in range(len(self._thread) + len(works.row))]

    def graph(self, since_ns: int) -> Graph:
        """Return the graph of a path that begins at ``since_ns``."""
        scope, works, points = self._events.scope, self._works, len(self._thread)
        follows = np.diff(self._thread, prepend=NONE) == 0
        before = np.where(follows, np.arange(points) - 1, NONE)
        own = np.where(follows, np.diff(self._at, prepend=0), 0)
        waits, removable = self._add_waits(own)
        fixed, rank = self._add_handovers(own)
        links_before, links_own = self._add_device()
        at = np.concatenate([self._at, works.end_ns])
        is_work = np.arange(len(at)) >= points
        order = np.lexsort((np.arange(len(at)), np.append(rank, np.zeros(len(at) - points, np.int64)), is_work, at))
        begin, end = self._bounds
        launched = (works.called_ns >= begin) & (works.called_ns < end)
        recording_ns = begin - scope.parts[0].begin_ns if scope.is_steps else 0
        return Graph(
            self._columns.names,
            self._pieces,
            works,
            self._thread,
            at.tolist(),
            [0] * points + (works.end_ns - works.begin_ns).tolist(),
            [*before.tolist(), *links_before],
            [*own.tolist(), *links_own],
            [tuple(edges) for edges in self._edges],
            waits,
            frozenset(removable),
            frozenset(fixed | waits.keys()),
            order.tolist(),
            [self._point[self._main, end], *(points + np.flatnonzero(launched)).tolist()],
            len(self._events.steps),
            (Side(NONE, since_ns, self._main, since_ns - begin, recording_ns),),
            np.zeros(len(at), np.int64),
            np.zeros(len(self._columns.threads), np.int64),
        )

    def _points(self) -> dict[tuple[int, int], int]:
        """Return the number of each point, in their order: by thread, then by time."""
        columns, works, launched = self._columns, self._works, self._works.thread != NONE
        given = {(self._main, at_ns) for at_ns in self._bounds}
        for handover in self._handovers:
            given |= {(handover.thread, handover.begin_ns), (handover.thread, handover.end_ns)}
            given |= {(self._main, handover.wait_begin_ns), (self._main, handover.wait_end_ns)}
        for wait in self._waits:
            begin_ns, end_ns = (int(of[wait.call]) for of in (columns.begin_ns, columns.end_ns))
            given |= {(int(columns.thread[wait.call]), at_ns) for at_ns in (begin_ns, end_ns)}
        given.update(zip(works.thread[launched].tolist(), works.called_ns[launched].tolist(), strict=True))
        return {point: number for number, point in enumerate(sorted(given))}

    def _add_waits(self, own: Ints) -> tuple[dict[int, str], set[int]]:
        """Add the waits for the device; return their points with the call, and those that could be left out."""
        names, removable = {}, set()
        begin, end = self._bounds
        for wait in self._waits:
            point = self._point[int(self._columns.thread[wait.call]), int(self._columns.end_ns[wait.call])]
            own[point] = min(own[point], wait.own_ns)
            self._edges[point] += [(len(self._thread) + work, delay, RETURN) for work, delay in wait.works]
            names[point] = self._columns.name_of(wait.call)
            if wait.is_removable and begin <= self._at[point] <= end:
                removable.add(point)
        return names, removable

    def _add_handovers(self, own: Ints) -> tuple[set[int], Ints]:
        """Add what threads do for each other; return these points, and the order of points at the same time."""
        fixed, rank = set(), np.zeros(len(self._thread), np.int64)
        for part in self._handovers:
            away, back = (self._point[self._main, at_ns] for at_ns in (part.wait_begin_ns, part.wait_end_ns))
            begin, end = (self._point[part.thread, at_ns] for at_ns in (part.begin_ns, part.end_ns))
            self._edges[begin].append((away, part.begin_ns - part.wait_begin_ns, HANDOVER))
            self._edges[back].append((end, part.wait_end_ns - part.end_ns, HANDOVER))
            own[begin] = own[back] = 0
            rank[begin], rank[end], rank[back] = 1, 2, 3
            fixed |= {begin, back}
        return fixed, rank

    def _add_device(self) -> tuple[list[int], list[int]]:
        """Add what works wait for; return the work before each on its stream, and the delay after it."""
        works, points = self._works, len(self._thread)
        links = path_links.device_links(works)
        for work in np.flatnonzero(works.thread != NONE).tolist():
            why = LAUNCH if works.replay[work] == NONE else GRAPH_LAUNCH
            if links.is_crowded[work]:
                why = OTHER_STREAM
            why = NOT_RECORDED if works.unseen_ns[work] else why
            point = self._point[int(works.thread[work]), int(works.called_ns[work])]
            self._edges[points + work].append((point, int(links.launch_delay_ns[work]), why))
        for work in np.flatnonzero(links.other != NONE).tolist():
            other = int(links.other[work])
            why = IN_GRAPH if works.is_in_graph(other, work) else OTHER_STREAM
            self._edges[points + work].append((points + other, int(links.other_delay_ns[work]), why))
        for work, other in path_links.event_waits(self._columns, works):
            if links.other[work] != other:
                self._edges[points + work].append((points + other, 0, OTHER_STREAM))
        before = np.where(links.before != NONE, links.before + points, NONE)
        return before.tolist(), np.where(links.before != NONE, links.before_delay_ns, 0).tolist()


def replay(
    graph: Graph,
    own_ns: Sequence[int],
    length_ns: Sequence[int],
    without: frozenset[int] = frozenset(),
    is_alone: bool = False,
    edges: Sequence[tuple[Edge, ...]] | None = None,
) -> tuple[list[int], list[int]]:
    """Return when each item ends with these durations, and which of its edges came last (-1: the item before).

    ``without`` are points that no longer wait for the device. With ``is_alone`` no rank waits for another.
    ``edges`` are those of the graph with other delays. An item that waits for nothing keeps its time.
    """
    ends, last = [0] * len(graph.at_ns), [NONE] * len(graph.at_ns)
    before, edges, at_ns = graph.before, graph.edges if edges is None else edges, graph.at_ns
    if is_alone:
        edges = [waits[:1] if item in graph.waiting else waits for item, waits in enumerate(edges)]
    for item in graph.order:
        earlier = before[item]
        waits = () if item in without else edges[item]
        if earlier != NONE:
            time = ends[earlier] + own_ns[item]
        elif waits:
            time = LONG_AGO
        else:
            ends[item] = at_ns[item] - graph.length_ns[item] + length_ns[item]
            continue
        for i, (other, delay, _) in enumerate(waits):
            other_time = ends[other] + delay
            if other_time > time:
                time, last[item] = other_time, i
        ends[item] = time + length_ns[item]
    return ends, last


def replayed_exactly(graph: Graph) -> bool:
    """Return whether the recorded durations give the recorded times."""
    return replay(graph, graph.own_ns, graph.length_ns)[0] == graph.at_ns
