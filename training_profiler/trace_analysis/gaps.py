"""Why a device was idle: every gap of at least 30 us, with the activity of the host during it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.tables.sections import DATA_LOADING
from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.graphs import is_graph_launch
from training_profiler.trace_analysis.launches import Launches, LostLaunches, is_launched_before
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.recording_time import cut, recording_time
from training_profiler.trace_analysis.timeline import NOTHING, Intervals, covered, gaps, main_thread, together, union

LEAST_GAP_NS: Final = 30_000
RECORDING: Final = "recording"
NOT_RECORDED: Final = "work not recorded"
NO_IDLE_TIME: Final = (RECORDING, NOT_RECORDED)  # of the program: the recording causes it, or the device is busy
DATA_LOADER: Final = "data loader"
BLOCKING_COPY: Final = "blocking copy"
SYNCHRONIZE: Final = "synchronize"
ALLOCATION: Final = "allocation"
PYTHON: Final = "python between launches"
COMMUNICATION: Final = "waiting for communication"
OTHER_STREAM: Final = "waiting for another stream"
STARTED_LATE: Final = "launched, started late"
IN_GRAPH: Final = "inside a graph"
LAUNCH_BOUND: Final = "launch-bound"
HOST_STALL: Final = "host stall"
UNKNOWN: Final = "unknown"
_CALLS: Final = {
    DATA_LOADER: re.compile(rf"^enumerate\(DataLoader\)|^{DATA_LOADING}$|dataloader\.py\(\d+\): (__next__|_next_data)"),
    ALLOCATION: runtime_calls.ALLOCATE_ANY,
    BLOCKING_COPY: runtime_calls.COPIES,
    SYNCHRONIZE: runtime_calls.SYNCHRONIZE,
}
# If several causes claim a moment, the first in this order gets it.
_IN_ORDER: Final = (RECORDING, DATA_LOADER, ALLOCATION, BLOCKING_COPY, SYNCHRONIZE, LAUNCH_BOUND, PYTHON, UNKNOWN)
_LAUNCHING: Final = ("cpu_op", "cuda_runtime")  # categories of the cause launch-bound
_SLOW_HOST: Final = (LAUNCH_BOUND, PYTHON)  # a host stall, if it is long
_UNDIVIDED: Final = (*NO_IDLE_TIME, IN_GRAPH)  # the rest of the gap says nothing of the program either
CAUSES: Final = (
    *_IN_ORDER[1:-1],
    HOST_STALL,
    COMMUNICATION,
    OTHER_STREAM,
    STARTED_LATE,
    IN_GRAPH,
    *NO_IDLE_TIME,
    UNKNOWN,
)
LEAST_STALL_NS: Final = 5_000_000  # launches that are merely slow take microseconds
MOST_OF_TIME: Final = 0.5  # of an idle time
LEAST_SLOW_CALL_NS: Final = 1_000_000  # of the one call that launches: a kernel is loaded, not launched, for so long


@dataclass(frozen=True, slots=True)
class Gap:
    """An idle time of a device between two pieces of work; rows are of the trace's columns."""

    device: int
    begin_ns: int
    end_ns: int
    cause: str  # of the largest part
    shares: tuple[tuple[str, float], ...]  # of each cause; together 1
    next_row: int  # the work that ended it; -1 for none

    @property
    def length_ns(self) -> int:
        """The length of the gap."""
        return self.end_ns - self.begin_ns

    def share_of(self, *causes: str) -> float:
        """Return the part of the gap with one of these causes, 0 to 1."""
        return sum(share for cause, share in self.shares if cause in causes)


class HostTime:
    """What the host did meanwhile, by cause. The times of a thread are looked up once."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._main = main_thread(columns)
        self._claims: dict[tuple[int, ...], tuple[Intervals, ...]] = {}
        self._recording: dict[tuple[int, ...], Intervals] = {}

    def parts(self, threads: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return the time of each cause in ``_IN_ORDER`` within each gap; shape (causes, gaps), ns.

        ``threads`` holds for each gap the thread that launched the work after it, or -1 if unknown. The thread that
        runs the loop counts as well.
        """
        parts = np.zeros((len(_IN_ORDER), len(begin_ns)), np.int64)
        for thread in distinct(threads).tolist():
            relevant = tuple(number for number in dict.fromkeys((thread, self._main)) if number != NONE)
            which = threads == thread
            if relevant:
                parts[:, which] = self._parts_of(relevant, begin_ns[which], end_ns[which])
            else:
                parts[_IN_ORDER.index(UNKNOWN), which] = (end_ns - begin_ns)[which]
        return parts

    def recording(self, threads: tuple[int, ...]) -> Intervals:
        """Return when the recording held up these threads."""
        if threads not in self._recording:
            self._recording[threads] = recording_time(self._columns, threads)
        return self._recording[threads]

    def _parts_of(self, threads: tuple[int, ...], begin_ns: Ints, end_ns: Ints) -> Ints:
        if threads not in self._claims:
            self._claims[threads] = tuple(self._claims_of(threads))
        claims = self._claims[threads]
        claimed_ns = np.stack([covered(claimed, begin_ns, end_ns) for claimed in claims] + [end_ns - begin_ns])
        return np.diff(claimed_ns, axis=0, prepend=0)

    def _claims_of(self, threads: tuple[int, ...]) -> Iterator[Intervals]:
        """Yield for each cause but the last, which is unknown, what it and those before it claim of all time."""
        columns = self._columns
        on_threads = np.isin(columns.thread, threads)
        is_host = columns.is_of("cpu_op", "cuda_runtime", "user_annotation", "python_function")
        claimed = NOTHING
        for cause in _IN_ORDER[:-1]:
            if cause == RECORDING:
                claimed = self.recording(threads)
            elif cause == PYTHON:
                # Between the first and the last recorded event of these threads; outside of them the cause is unknown.
                rows = np.flatnonzero(on_threads & is_host)
                if columns.is_of("cpu_op", "python_function").any():  # else operators were not recorded: it may be one
                    first, last = columns.begin_ns[rows].min(), columns.end_ns[rows].max()
                    claimed = together(claimed, Intervals(np.array([first]), np.array([last])))
            else:
                which = columns.named(_CALLS[cause].search, is_host) if cause in _CALLS else columns.is_of(*_LAUNCHING)
                # A thread that waits for the backward pass on another thread launches nothing.
                which = which & (columns.thread == threads[0] if cause == SYNCHRONIZE else on_threads)
                rows = np.flatnonzero(which)
                claimed = together(claimed, union(columns.begin_ns[rows], columns.end_ns[rows]))
            yield claimed


@dataclass(frozen=True, slots=True)
class Around:
    """What the whole file shows of the time in which one of its devices is idle."""

    busy: Intervals  # any device
    unseen: Intervals  # a device does what is not recorded
    host: HostTime


@dataclass(frozen=True, slots=True)
class _Idle:
    """Idle times of one device, with an entry for each."""

    device: int
    times: Intervals
    following: Ints  # the work that ends it; -1 for none
    is_near: Bools  # beside a collective
    is_in_graph: Bools  # between two works of one replay
    launched_ns: Ints  # when what ends it was launched


def long_gaps(
    columns: Columns, busy: Intervals, around: Around, launches: Launches, communicates: Bools, device: int
) -> list[Gap]:
    """Return all gaps of at least 30 us of one device, in order of time, each with its cause.

    ``busy`` is when that device was busy.
    """
    between = gaps(busy)
    is_long = between.end_ns - between.begin_ns >= LEAST_GAP_NS
    begin_ns, end_ns = between.begin_ns[is_long], between.end_ns[is_long]
    if not len(begin_ns):
        return []
    rows = np.flatnonzero(columns.is_gpu() & (columns.device == device))
    following = rows[np.searchsorted(columns.begin_ns[rows], end_ns)]
    by_end = rows[np.argsort(columns.end_ns[rows], kind="stable")]
    preceding = by_end[np.searchsorted(columns.end_ns[by_end], begin_ns, side="right") - 1]
    near = communicates[following] | communicates[preceding]
    call, before = launches.calls_of(following), launches.calls_of(preceding)
    in_graph = (call == before) & (call != NONE) & is_graph_launch(columns)[call]
    times = Intervals(begin_ns, end_ns)
    launched_ns = _launched_ns(columns, launches, device, times, following)
    return _with_causes(columns, around, launches, _Idle(device, times, following, near, in_graph, launched_ns))


def edge_gaps(
    columns: Columns,
    busy: Intervals,
    around: Around,
    launches: Launches,
    lost: LostLaunches,
    device: int,
    within: Intervals,
) -> list[Gap]:
    """Return the idle time before the first work of a device and after its last, each with its cause.

    ``within`` are the steps: their idle time is not only between works. What is under 30 us is left out. Where the
    recording held up the host, and where the device did what is not recorded, is an idle time of its own. After
    launches whose kernels are not recorded it is unknown whether the device was idle.
    """
    if not len(busy.begin_ns) or not len(within.begin_ns):
        return []
    rows = np.flatnonzero(columns.is_gpu() & (columns.device == device))
    begin_ns = np.array([within.begin_ns[0], busy.end_ns[-1]], np.int64)
    end_ns = np.array([busy.begin_ns[0], within.end_ns[-1]], np.int64)
    following = np.array([rows[0], NONE], np.int64)
    is_long = end_ns - begin_ns >= LEAST_GAP_NS
    edges = Intervals(begin_ns[is_long], end_ns[is_long])
    if not len(edges.begin_ns):
        return []
    edges, following = _cut(columns, launches, around, edges, following[is_long])
    launched_ns = _launched_ns(columns, launches, device, edges, following)
    since_ns = lost.since_ns(columns)
    if since_ns is not None:
        launched_ns = np.where(following == NONE, np.clip(since_ns, *edges), launched_ns)
    neither = np.zeros(len(following), np.bool_)  # nothing on this device was waited for
    return _with_causes(columns, around, launches, _Idle(device, edges, following, neither, neither, launched_ns))


def _cut(
    columns: Columns, launches: Launches, around: Around, edges: Intervals, following: Ints
) -> tuple[Intervals, Ints]:
    """Return idle times with the work that ends each, cut where the recording holds up the host and at unseen work."""
    calls = launches.calls_of(following)
    threads = tuple(distinct(np.append(columns.thread[calls[calls != NONE]], main_thread(columns))).tolist())
    held_up = around.host.recording(threads)
    begin_ns, end_ns = (np.concatenate(ends) for ends in zip(held_up, around.unseen, strict=True))
    pieces, of = cut(edges, Intervals(begin_ns, end_ns), LEAST_GAP_NS)
    return pieces, following[of]


def _launched_ns(columns: Columns, launches: Launches, device: int, times: Intervals, following: Ints) -> Ints:
    """Return until when the host had not launched what ends each idle time; the end of it where that is unknown.

    After the launch the host has done its part: the rest of the time is a wait on the device.
    """
    begin_ns, end_ns = times
    calls = launches.calls_of(following)
    launched_ns: Ints = np.where(calls != NONE, np.clip(columns.end_ns[calls], begin_ns, end_ns), end_ns)
    is_earlier = (following != NONE) & (calls == NONE)
    is_earlier &= is_launched_before(columns, _made(columns, launches, device), following)
    launched_ns[is_earlier] = begin_ns[is_earlier]
    return launched_ns


def _made(columns: Columns, launches: Launches, device: int) -> Ints:
    """Return the calls that launched each work of the device; -1 for unknown."""
    return launches.call[np.flatnonzero(columns.is_gpu() & (columns.device == device))]


def _with_causes(columns: Columns, around: Around, launches: Launches, idle: _Idle) -> list[Gap]:
    """Return idle times with their causes."""
    begin_ns, end_ns = idle.times
    launched_ns, following = idle.launched_ns, idle.following
    calls = launches.calls_of(following)
    made = _made(columns, launches, idle.device)
    parts = around.host.parts(np.where(calls >= 0, columns.thread[calls], NONE), begin_ns, launched_ns)
    _leave_unknown(parts, (calls == NONE) & (following != NONE) & (made != NONE).any())
    parts = np.vstack([parts, end_ns - launched_ns])
    which = parts.argmax(axis=0)
    shares = (parts / (end_ns - begin_ns)).T.tolist()
    # No stream of this device is busy in its gap; a stream of another device may be.
    is_other_busy = 2 * covered(around.busy, launched_ns, end_ns) > end_ns - launched_ns
    unseen = covered(around.unseen, begin_ns, end_ns) / (end_ns - begin_ns)
    is_stall = _is_stall(columns, around.host, made, calls, begin_ns, launched_ns)
    is_stall |= _is_slow_call(columns, made, calls, begin_ns, launched_ns, end_ns)
    long = []
    for i, (main, parts_of_gap) in enumerate(zip(which.tolist(), shares, strict=True)):
        on_device = COMMUNICATION if idle.is_near[i] else OTHER_STREAM if is_other_busy[i] else STARTED_LATE
        names = (*_IN_ORDER, UNKNOWN if following[i] == NONE else on_device)
        cause = names[main]
        if cause != RECORDING:
            cause = NOT_RECORDED if unseen[i] > MOST_OF_TIME else IN_GRAPH if idle.is_in_graph[i] else cause
        divided = {cause: 1.0}
        if cause not in _UNDIVIDED:
            divided = _divided(names, parts_of_gap)
            if cause in _SLOW_HOST and is_stall[i]:
                cause, divided[HOST_STALL] = HOST_STALL, sum(divided.pop(slow, 0.0) for slow in _SLOW_HOST)
        long.append(
            Gap(idle.device, int(begin_ns[i]), int(end_ns[i]), cause, tuple(divided.items()), int(following[i]))
        )
    return long


def _divided(names: Sequence[str], shares: Sequence[float]) -> dict[str, float]:
    divided: dict[str, float] = {}
    for name, share in zip(names, shares, strict=True):
        if share:
            divided[name] = divided.get(name, 0.0) + share
    return divided


def _leave_unknown(parts: Ints, which: Bools) -> None:
    """Charge neither operators nor Python with gaps whose next work has no known launch, though other work has.

    It may have been launched long before, as a copy that a device makes for itself.
    """
    for cause in _SLOW_HOST:
        parts[_IN_ORDER.index(UNKNOWN), which] += parts[_IN_ORDER.index(cause), which]
        parts[_IN_ORDER.index(cause), which] = 0


def _by_host(parts: Ints) -> Ints:
    total: Ints = sum(parts[_IN_ORDER.index(cause)] for cause in _SLOW_HOST)
    return total


def _is_stall(columns: Columns, host: HostTime, made: Ints, calls: Ints, begin_ns: Ints, end_ns: Ints) -> Bools:
    """Return which gaps end a time of 5 ms or more in which no thread launched anything and this one did not wait.

    ``made`` are the calls that launched each work of the device, ``calls`` those that ended the gaps; -1 for unknown.
    The device may have been busy during the first part of that time. If most launches are unknown, so is that.
    """
    known = calls != NONE
    if (made != NONE).any() and 2 * (made != NONE).sum() < len(made):
        return np.zeros(len(calls), np.bool_)
    threads = np.where(known, columns.thread[calls], NONE)
    launched = np.zeros(len(columns.end_ns), np.bool_)
    launched[made[made != NONE]] = True
    ends_ns = np.sort(columns.end_ns[launched], kind="stable")  # nearly in order
    earlier = np.searchsorted(ends_ns, np.where(known, columns.begin_ns[calls], begin_ns), side="right") - 1
    since_ns = np.append(ends_ns, np.iinfo(np.int64).max)[earlier]  # the last of them is "no launch before"
    return _by_host(host.parts(threads, np.minimum(begin_ns, since_ns), end_ns)) >= LEAST_STALL_NS


def _is_slow_call(columns: Columns, made: Ints, calls: Ints, begin_ns: Ints, launched_ns: Ints, end_ns: Ints) -> Bools:
    """Return which gaps are mostly one call that launches work, and that for 1 ms or more.

    Its work can begin at once, before the gap, so the work that ends the gap may have another call. The launch
    of a graph with much work takes that long each time.
    """
    rows = made[made != NONE]
    rows = distinct(rows[columns.end_ns[rows] - columns.begin_ns[rows] >= LEAST_SLOW_CALL_NS])
    rows = rows[~is_graph_launch(columns)[rows]]
    is_slow = np.zeros(len(calls), np.bool_)
    threads = np.where(calls != NONE, columns.thread[calls], NONE)
    for thread in distinct(columns.thread[rows]).tolist():
        of_thread = rows[columns.thread[rows] == thread]  # one after another
        middle_ns = (begin_ns + end_ns) // 2  # what takes most of a gap is in its middle
        at = of_thread[np.maximum(np.searchsorted(columns.begin_ns[of_thread], middle_ns, side="right") - 1, 0)]
        inside_ns = np.minimum(columns.end_ns[at], launched_ns) - np.maximum(columns.begin_ns[at], begin_ns)
        is_long = (inside_ns >= LEAST_SLOW_CALL_NS) & (2 * inside_ns > end_ns - begin_ns)
        is_slow |= is_long & (threads == thread)
    return is_slow
