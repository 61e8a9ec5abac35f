"""What host threads do between events of the trace, and where they wait for the device and for each other."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, Bools, Columns, Intervals, Ints
from training_profiler.trace_analysis.completeness import LEAST_UNSEEN_NS
from training_profiler.trace_analysis.events import WAITS_FOR_BATCH, TracedEvents
from training_profiler.trace_analysis.host_activity import BACKWARD, FORWARD, MARKS, PHASES, phase_of
from training_profiler.trace_analysis.launches import Nesting

NEAR_NS: Final = 20_000  # work that waits for an event of another stream begins within that time of it
OVERLAP_NS: Final = 2_000  # by which work may begin before what it waits for has ended, as the device records it
BUSY: Final = 0.5  # of the time between its launch and its begin, for work to wait for others on the device
SLIGHTLY_LATE_NS: Final = 50_000  # a blocking copy may end on the device after its call has returned
SLIGHTLY_LATE: Final = 0.2  # of the copy
LONG_AGO: Final = -(2**62)
KERNEL: Final = "kernel"
COMMUNICATION: Final = "communication"
COPY: Final = "copy"


@dataclass(frozen=True, slots=True)
class Works:
    """Device work in order of its begin; ``called_ns`` is the begin of the call that launched it."""

    row: Ints
    begin_ns: Ints
    end_ns: Ints
    stream: Ints  # a number for each stream of each device
    called_ns: Ints  # ``LONG_AGO`` if the call is unknown
    call_ns: Ints  # the length of the call
    thread: Ints  # of the call; -1 unknown
    replay: Ints  # the row of the call that replayed the graph with it; -1 for none
    unseen_ns: Ints  # waited after its launch, though nothing recorded runs; 0 below 1 ms
    communicates: Bools
    is_copy: Bools
    name: Ints  # index into the names of the trace
    phase: Ints  # of its launch: index into PHASES; -1 for none

    @property
    def kind(self) -> NDArray[np.str_]:
        """What each work is."""
        return np.select([self.communicates, self.is_copy], [COMMUNICATION, COPY], KERNEL)

    def is_in_graph(self, one: int, other: int) -> bool:
        """Return whether both works belong to one replay of a graph."""
        return bool(self.replay[one] != NONE and self.replay[one] == self.replay[other])

    def streams(self) -> list[Ints]:
        """Return for each stream where its works are."""
        order = np.argsort(self.stream, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.stream))[:-1]) if len(order) else []


def works_of(events: TracedEvents, rows: Ints, calls: Ints) -> Works:
    """Return the device work of these rows, in order of its begin, which these calls launched."""
    columns, communicates = events.columns, events.communicates[rows]
    begin_ns, end_ns = columns.begin_ns[rows], columns.end_ns[rows]
    call_begin_ns, call_end_ns = columns.begin_ns[calls], columns.end_ns[calls]
    is_launched = (calls != NONE) & (call_begin_ns <= begin_ns)
    replay = np.where(is_launched & columns.is_graph_launch()[calls], calls, NONE)
    # How long each waits after its launch though nothing recorded runs. What communicates waits for other ranks, and
    # what a graph waits for between its works need not be device work.
    before_ns = np.append(LONG_AGO, np.maximum.accumulate(end_ns)[:-1]) if len(end_ns) else end_ns
    waits_ns = np.where(is_launched, begin_ns - np.maximum(call_end_ns, before_ns), 0)
    is_other = communicates | np.append(False, communicates[:-1])[: len(rows)]
    is_other |= (replay != NONE) & (np.append(NONE, replay[:-1])[: len(replay)] == replay)
    works = Works(
        rows,
        begin_ns,
        end_ns,
        np.unique(np.stack([columns.device[rows], columns.stream[rows]]), axis=1, return_inverse=True)[1].reshape(-1),
        np.where(is_launched, call_begin_ns, LONG_AGO),
        np.where(is_launched, call_end_ns - call_begin_ns, 0),
        np.where(is_launched, columns.thread[calls], NONE),
        replay,
        np.where(is_other | (waits_ns < LEAST_UNSEEN_NS), 0, waits_ns),
        communicates,
        ~columns.is_of("kernel")[rows],
        columns.name[rows],
        _phases(events, calls),
    )
    return _with_fitted_ends(works, call_begin_ns, call_end_ns, columns.is_of("gpu_memcpy")[rows])


def _phases(events: TracedEvents, rows: Ints) -> Ints:
    """Return the phase of host events; -1 for none. A forward pass without a mark is what operators and calls do."""
    phase = phase_of(events, rows)
    is_active = events.columns.is_of("cpu_op", "cuda_runtime")[rows] | (phase != PHASES.index(FORWARD))
    has_backward = (phase[rows != NONE] == PHASES.index(BACKWARD)).any()
    return np.where(is_active & (rows != NONE) & has_backward, phase, NONE)


def _with_fitted_ends(works: Works, call_begin_ns: Ints, call_end_ns: Ints, is_copy: Bools) -> Works:
    """Return the works with the ends that what waits for them shows, where they are recorded a moment later.

    The clocks of host and device differ by microseconds: a blocking copy may end after its call has returned. And a
    kernel may begin while the last blocks of the one before it on its stream end.
    """
    ends = works.end_ns.copy()
    late = ends - call_end_ns
    is_within = (works.called_ns != LONG_AGO) & (works.begin_ns >= call_begin_ns) & (works.begin_ns < call_end_ns - 1)
    is_slight = (late >= 0) & (late <= SLIGHTLY_LATE_NS) & (late <= SLIGHTLY_LATE * (ends - works.begin_ns))
    is_waited = is_copy & is_within & is_slight
    ends[is_waited] = call_end_ns[is_waited] - 1
    for of_stream in works.streams():
        before, after = of_stream[:-1], of_stream[1:]
        begins = works.begin_ns[after]
        overlap = ends[before] - begins
        is_slight = (overlap > 0) & (overlap <= NEAR_NS) & (works.begin_ns[before] < begins) & (begins < ends[after])
        ends[before[is_slight]] = begins[is_slight]
    return replace(works, end_ns=ends)


@dataclass(frozen=True, slots=True)
class DeviceLinks:
    """What each work waits for before it begins; -1 and any delay for nothing."""

    before: Ints  # the work before it on its stream
    before_delay_ns: Ints
    launch_delay_ns: Ints  # from the begin of its call
    other: Ints  # the work of another stream whose end it awaited, or which precedes it in its graph
    other_delay_ns: Ints
    is_crowded: Bools  # late, while kernels of other streams that end after it keep the device busy


def device_links(works: Works) -> DeviceLinks:
    """Return the links of all works: the latest of what a work waits for, with its delay, is exactly its begin.

    A work that began late, right after work of another stream had ended, waited for that stream. So did a kernel that
    began late while kernels of other streams kept the device busy. A work of a graph waits for the work of its replay
    that ended last before it. Otherwise the time that nothing explains belongs to the link that came last.
    """
    before = _before(works)
    has_before, has_call = before != NONE, works.called_ns != LONG_AGO
    before_end = np.where(has_before, works.end_ns[before], LONG_AGO)
    since_call, since_before = works.begin_ns - works.called_ns, works.begin_ns - before_end
    in_graph = _before_in_graph(works)
    # Work that began right after another stream had ended, or that waited for what is not recorded, says nothing of the
    # usual delays.
    is_alone = _other(works, np.maximum(works.called_ns, before_end)) == NONE
    is_alone &= ((in_graph == NONE) | (in_graph == before)) & (works.unseen_ns == 0)
    is_free = has_call & (before_end <= works.called_ns) & is_alone & (in_graph == NONE)
    launch = _usual_launch(since_call, works.replay != NONE, is_free, has_call & is_alone)
    is_queued = has_before & has_call & (works.called_ns + launch <= before_end) & is_alone
    after = np.minimum(since_before, _median(since_before[is_queued], np.zeros(1, np.int64)))
    by_launch = np.where(has_call, works.called_ns + launch, LONG_AGO)
    by_stream = np.where(has_before, before_end + after, LONG_AGO)
    ready = np.maximum(by_launch, by_stream)
    other = _other(works, ready)
    other = np.where((other == NONE) & (works.end_ns[in_graph] > before_end), in_graph, other)
    late = np.flatnonzero((other == NONE) & ~works.is_copy & (ready != LONG_AGO) & (works.begin_ns - ready > NEAR_NS))
    begin_ns = ready[late]
    end_ns = works.begin_ns[late]
    busy = Intervals.of(works.begin_ns[~works.is_copy], works.end_ns[~works.is_copy])
    is_busy: Bools = busy.within(begin_ns, end_ns) >= BUSY * (end_ns - begin_ns)
    late = late[is_busy]
    # It may begin while the last blocks of another kernel run.
    last = _ended_last(works, late, works.begin_ns[late] + NEAR_NS)
    other[late] = np.where(works.end_ns[last] > ready[late], last, NONE)
    is_crowded = np.isin(np.arange(len(other)), late[other[late] == NONE])
    rest = np.where(other == NONE, works.begin_ns - ready, 0)
    is_by_launch = by_launch >= by_stream
    return DeviceLinks(
        before,
        after + np.where(is_by_launch, 0, rest),
        launch + np.where(is_by_launch, rest, 0),
        other,
        works.begin_ns - works.end_ns[other],
        is_crowded,
    )


def _usual_launch(since_call_ns: Ints, is_of_graph: Bools, is_free: Bools, is_other: Bools) -> Ints:
    """Return what of the time since its call the launch of each work takes. That of a graph takes longer.

    Where each waits for other work, it is the least of these times, and not more than work begins late.
    """
    usual_ns = np.zeros(len(since_call_ns), np.int64)
    for which in (is_of_graph, ~is_of_graph):
        usual_ns[which] = _median(since_call_ns[which & is_free], np.minimum(since_call_ns[which & is_other], NEAR_NS))
    return np.minimum(since_call_ns, usual_ns)


def _median(values: Ints, otherwise: Ints) -> int:
    if len(values):
        return int(np.median(values))
    return int(otherwise.min()) if len(otherwise) else 0


def _before(works: Works) -> Ints:
    before = np.full(len(works.row), NONE, np.int64)
    for of_stream in works.streams():
        before[of_stream[1:]] = of_stream[:-1]
    overlaps = (before != NONE) & (works.end_ns[before] > works.begin_ns)
    before[overlaps] = NONE
    return before


def _other(works: Works, ready_ns: Ints) -> Ints:
    """Return the work of another stream that ended last before each work that began late; -1 for none."""
    last = _ended_last(works, np.arange(len(works.row)), works.begin_ns + OVERLAP_NS)
    ends = works.end_ns[last]
    is_awaited = (last != NONE) & (ends > ready_ns) & (works.begin_ns - ends <= NEAR_NS) & (ready_ns != LONG_AGO)
    return np.where(is_awaited, last, NONE)


def _ended_last(works: Works, which: Ints, until_ns: Ints) -> Ints:
    """Return the work of another stream that ended last until these times and before each work; -1 for none."""
    last = np.full(len(which), NONE, np.int64)
    last_ns = np.full(len(which), LONG_AGO)
    until_ns = np.minimum(until_ns, works.end_ns[which] - 1)
    for of_stream in works.streams():
        found = _last_of(works, of_stream, until_ns)
        is_other = (found != NONE) & (works.stream[which] != works.stream[of_stream[0]])
        is_later = is_other & (works.end_ns[found] > last_ns)
        last[is_later], last_ns[is_later] = found[is_later], works.end_ns[found[is_later]]
    return last


def _last_of(works: Works, of: Ints, until_ns: Ints) -> Ints:
    """Return which of these works ended last until these times; -1 for none."""
    by_end = of[np.argsort(works.end_ns[of], kind="stable")]
    return np.append(NONE, by_end)[np.searchsorted(works.end_ns[by_end], until_ns, side="right")]


def _before_in_graph(works: Works) -> Ints:
    """Return the work of the same replay that ended last before each work of a graph; -1 for none."""
    before = np.full(len(works.row), NONE, np.int64)
    order = np.flatnonzero(works.replay != NONE)
    order = order[np.argsort(works.replay[order], kind="stable")]
    for of in np.split(order, np.flatnonzero(np.diff(works.replay[order])) + 1):
        before[of] = _last_of(works, of, np.minimum(works.begin_ns[of] + OVERLAP_NS, works.end_ns[of] - 1))
    return before


def event_waits(columns: Columns, works: Works) -> list[tuple[int, int]]:
    """Return pairs of works (waits, for) for calls that make a stream wait for an event.

    The trace does not say which event. The next launch of the thread waits for what was launched last on each other
    stream before the call, if that had ended when it began.
    """
    pairs = []
    call = columns.named(known_names.WAIT_FOR_EVENT.search, "cuda_runtime")
    thread, at_ns = columns.thread[call], columns.begin_ns[call]
    streams = [(of[0], of, np.maximum.accumulate(works.called_ns[of])) for of in works.streams()]
    for one in np.unique(thread).tolist():
        launched = np.flatnonzero((works.thread == one) & (works.called_ns != LONG_AGO))
        launched = launched[np.argsort(works.called_ns[launched], kind="stable")]
        times = at_ns[thread == one]
        following = np.searchsorted(works.called_ns[launched], times, side="left")
        for time, place in zip(times.tolist(), following.tolist(), strict=True):
            if place == len(launched):
                continue
            work = int(launched[place])
            for first, of, called in streams:
                i = int(np.searchsorted(called, time)) - 1
                end_ns = works.end_ns[of[i]]
                is_over = end_ns <= works.begin_ns[work] and end_ns < works.end_ns[work]
                if works.stream[first] != works.stream[work] and i >= 0 and is_over:
                    pairs.append((work, int(of[i])))
    return pairs


DATA_LOADING: Final = "data loading"
OPERATOR: Final = "operator"
SYNCHRONIZE: Final = "synchronize"
CALL: Final = "call of the runtime"
ALLOCATION: Final = "allocation"  # of an operator that calls it, only for the first time as a rule
# Python code, or an extension without operators of its own, which may also wait for the device.
OUTSIDE: Final = "outside of operators"
KINDS: Final = (DATA_LOADING, SYNCHRONIZE, ALLOCATION, OPERATOR, CALL, OUTSIDE)


@dataclass(frozen=True, slots=True)
class HostPieces:
    """Pieces of host threads, by thread and time; those of a thread follow one another without a gap."""

    thread: Ints
    begin_ns: Ints
    end_ns: Ints
    row: Ints  # the innermost event; -1 for none
    kind: Ints  # index into KINDS
    name: Ints  # index into the names of the trace: of the operator, call or section; -1 for none
    phase: Ints  # index into PHASES; -1 for none

    def of(self, thread: int) -> slice:
        """Return where the pieces of a thread are."""
        first, last = np.searchsorted(self.thread, [thread, thread + 1]).tolist()
        return slice(first, last)


def host_pieces(events: TracedEvents) -> HostPieces:
    """Return the pieces of all threads, from the first to the last event of each."""
    columns, nesting = events.columns, events.nesting
    depth = np.zeros(len(columns.begin_ns), np.int64)
    for number, level in enumerate(nesting.levels):
        depth[level] = number
    is_long = columns.end_ns > columns.begin_ns
    rows = np.concatenate([level[is_long[level]] for level in nesting.levels] or [np.empty(0, np.int64)])
    inner_ends_ns = columns.end_ns.copy()  # an event ends with the one around it at the latest
    for level in nesting.levels[1:]:
        inner_ends_ns[level] = np.minimum(inner_ends_ns[level], inner_ends_ns[nesting.parent[level]])
    at_ns = np.concatenate([columns.begin_ns[rows], inner_ends_ns[rows]])
    opens = np.repeat([1, 0], len(rows))
    row = np.concatenate([rows, nesting.parent[rows]])
    thread = np.tile(columns.thread[rows], 2)
    # At one time, inner events end before outer ones, and begin after them.
    rank = np.concatenate([depth[rows], -depth[rows]])
    order = np.lexsort((rank, opens, at_ns, thread))
    thread, at_ns, row = thread[order], at_ns[order], row[order]
    is_last = (np.diff(thread, append=NONE) != 0) | (np.diff(at_ns, append=NONE) != 0)  # of its time
    thread, at_ns, row = thread[is_last], at_ns[is_last], row[is_last]
    has_next = np.diff(thread, append=NONE) == 0
    begin = np.flatnonzero(has_next)
    row = row[begin]
    labels = *_labels(columns, nesting, row), _phases(events, row)
    return HostPieces(thread[begin], at_ns[begin], at_ns[begin + 1], row, *labels)


def _labels(columns: Columns, nesting: Nesting, row: Ints) -> tuple[Ints, Ints]:
    operator = nesting.nearest(columns.is_of("cpu_op"))
    loads = nesting.nearest(columns.named(WAITS_FOR_BATCH.search, "user_annotation"))
    is_call = columns.is_of("cuda_runtime")
    waits = columns.named(known_names.SYNCHRONIZE.search, among=is_call)
    allocates = columns.named(known_names.ALLOCATE_ANY.search, among=is_call)
    known = row != NONE

    def at(values: Ints | Bools) -> Ints:
        return np.where(known, values[row], NONE)

    loaded, within = at(loads) != NONE, at(operator) != NONE
    waiting, allocating, called = (at(which) == 1 for which in (waits, allocates, is_call))
    kind = np.select([loaded, waiting, allocating, within, called], range(len(KINDS) - 1), len(KINDS) - 1)
    named = np.select([loaded, waiting | allocating, within], [at(loads), row, at(operator)], row)
    is_step = columns.is_step()
    return kind, np.where(known & ~is_step[named], columns.name[named], NONE)


FULL_QUEUE: Final = 1000  # launched works that have not ended; the next launch then waits for room


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that returns only after device work has ended."""

    call: int  # row
    own_ns: int  # what it takes without waiting
    works: tuple[tuple[int, int], ...]  # each with the delay from its end to the return of the call
    is_removable: bool  # a launch into a full queue is not


@dataclass(frozen=True, slots=True)
class Handover:
    """Work of another thread during which the training thread waits: the backward pass on a thread of autograd."""

    thread: int
    begin_ns: int
    end_ns: int
    wait_begin_ns: int  # on the training thread
    wait_end_ns: int


def waits_of(columns: Columns, works: Works, calls: Ints) -> list[Wait]:
    """Return the calls that wait for the device; ``calls`` are those that launched the works."""
    duration = columns.length_ns
    is_call = columns.is_of("cuda_runtime")
    least = np.full(len(columns.names), np.iinfo(np.int64).max)
    np.minimum.at(least, columns.name[is_call], duration[is_call])
    found: dict[int, tuple[list[int], bool]] = {}
    sync = columns.named(
        lambda name: known_names.SYNCHRONIZE.search(name) or known_names.FREE.search(name), among=is_call
    )
    rows = np.flatnonzero(sync & (duration > 0))
    for of_stream in works.streams():
        for row, work in zip(rows.tolist(), _awaited(columns, works, of_stream, rows).tolist(), strict=True):
            if work != NONE:
                found.setdefault(row, ([], True))[0].append(work)
    within: Bools = columns.is_of("gpu_memcpy")[works.row] & (works.end_ns < columns.end_ns[calls])
    for work in np.flatnonzero((calls != NONE) & within).tolist():
        found.setdefault(int(calls[work]), ([], True))[0].append(work)
    for row, work in _full_queue(columns, works, calls):
        found.setdefault(row, ([work], False))
    waits = []
    for row, (awaited, is_removable) in found.items():
        begin, end = int(columns.begin_ns[row]), int(columns.end_ns[row])
        ends = [int(works.end_ns[work]) for work in awaited]
        # Of a call that waits, the time after the wait is its own; one that finds everything done does not wait.
        delay, own = 0, end - begin
        if max(ends) > begin:
            delay = end - max(ends)
            own = min(int(least[columns.name[row]]), delay)
        delays = [min(delay, end - work_end) for work_end in ends]
        waits.append(Wait(row, own, tuple(zip(awaited, delays, strict=True)), is_removable))
    return waits


def _awaited(columns: Columns, works: Works, of_stream: Ints, rows: Ints) -> Ints:
    """Return the work of one stream that each call of ``rows`` waits for, or finds done; -1 for none.

    The trace does not say which streams a call waits for: it is all whose work is done when the call returns.
    """
    called = np.maximum.accumulate(works.called_ns[of_stream])
    ends = np.maximum.accumulate(works.end_ns[of_stream])
    launched = np.searchsorted(called, columns.begin_ns[rows], side="right") - 1
    ended = np.searchsorted(ends, columns.end_ns[rows], side="left") - 1
    last = np.minimum(launched, ended)
    place = np.maximum(last, 0)
    is_done = (launched <= ended) | (ends[place] > columns.begin_ns[rows])
    is_awaited = (last >= 0) & is_done & (works.end_ns[of_stream[place]] < columns.end_ns[rows])
    return np.where(is_awaited & (called[place] != LONG_AGO), of_stream[place], NONE)


def _full_queue(columns: Columns, works: Works, calls: Ints) -> list[tuple[int, int]]:
    rows = np.unique(calls[calls != NONE])
    begins = columns.begin_ns[rows]
    by_end = np.argsort(works.end_ns, kind="stable")
    ends = works.end_ns[by_end]
    launched = np.searchsorted(np.sort(works.called_ns), begins)
    rows = rows[launched - np.searchsorted(ends, begins) >= FULL_QUEUE]
    last = np.searchsorted(ends, columns.end_ns[rows]) - 1
    is_meanwhile = (last >= 0) & (ends[last] > columns.begin_ns[rows])
    return list(zip(rows[is_meanwhile].tolist(), by_end[last[is_meanwhile]].tolist(), strict=True))


def handovers_of(columns: Columns, nesting: Nesting, pieces: HostPieces, main: int) -> list[Handover]:
    """Return where the training thread records nothing while a thread of autograd works."""
    is_backward = columns.named(MARKS[BACKWARD].search, "cpu_op", "user_annotation")
    of = pieces.of(main)
    is_empty = pieces.kind[of] == KINDS.index(OUTSIDE)
    begins, ends = pieces.begin_ns[of][is_empty], pieces.end_ns[of][is_empty]
    if not len(begins) or not nesting.levels:
        return []
    is_host = columns.is_of("cpu_op", "cuda_runtime", "user_annotation") & (columns.end_ns > columns.begin_ns)
    outermost = nesting.levels[0]
    outermost = outermost[columns.end_ns[outermost] > columns.begin_ns[outermost]]
    found = []
    for thread in np.unique(columns.thread[is_backward]).tolist():
        if thread == main:
            continue
        on_thread = is_host & (columns.thread == thread)
        rows = outermost[columns.thread[outermost] == thread]
        within = np.searchsorted(begins, columns.begin_ns[rows], side="right") - 1
        gaps, first = np.unique(within, return_index=True)
        first_ns, ends_ns = columns.begin_ns[rows[first]], np.sort(columns.end_ns[on_thread])
        # A thread of autograd may tidy up after it has handed over.
        last = np.searchsorted(ends_ns, ends[gaps], side="right") - 1
        for gap, begin, end in zip(
            gaps.tolist(), first_ns.tolist(), ends_ns[np.maximum(last, 0)].tolist(), strict=True
        ):
            if gap >= 0 and begin < end <= ends[gap]:
                found.append(Handover(thread, begin, end, int(begins[gap]), int(ends[gap])))
    return found
