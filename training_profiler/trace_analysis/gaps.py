"""Why a device was idle: every gap of at least 30 us, with the activity of the host during it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from training_profiler.base.sections import CLOCK_MARK, DATA_LOADING, PROFILER
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, NOTHING, STEP_NAME, Bools, Columns, Intervals, Ints
from training_profiler.trace_analysis.events import WAITS_FOR_BATCH, OneDevice, TracedEvents, beside
from training_profiler.trace_analysis.launches import is_launched_before

# What CUPTI needs for itself (CUpti_ActivityOverheadKind), as Kineto names it. Loading a kernel is work of CUDA.
OVERHEADS: Final = ("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource", "UVM Activity Init")


def recording_time(columns: Columns, threads: Sequence[int]) -> Intervals:
    """Return when the recording, and not the program, held up these threads.

    That is the time of the sections ``(profiler)``, of what CUPTI needs for itself, and from the begin of the first
    step to the first event of the program.
    """
    is_mark = columns.named(lambda name: name.startswith((STEP_NAME, CLOCK_MARK)), "user_annotation")
    is_host = columns.is_of("cpu_op", "cuda_runtime", "user_annotation", "python_function") & ~is_mark
    rows = np.flatnonzero(is_host & np.isin(columns.thread, threads))
    own = columns.span(rows[columns.named(PROFILER.__eq__, "user_annotation")[rows]])
    of_program = rows[own.within(columns.begin_ns[rows], columns.begin_ns[rows] + 1) == 0]
    return own | _overheads(columns, of_program) | _start(columns, of_program)


def started_ns(columns: Columns, thread: int, at_ns: int) -> int:
    """Return when a recording that starts at a time lets this thread go on; that time if nothing shows its start.

    A section of the profiler, or an overhead of CUPTI, shows it. The program can also begin with a pause.
    """
    recording = recording_time(columns, [thread])
    shown = columns.named(PROFILER.__eq__, "user_annotation")
    shown |= columns.named(OVERHEADS.__contains__, "overhead")
    for begin_ns, end_ns in zip(*(ends.tolist() for ends in recording), strict=True):
        if begin_ns <= at_ns < end_ns and (shown & (columns.begin_ns < end_ns) & (columns.end_ns > at_ns)).any():
            return int(end_ns)
    return at_ns


def cut(idle: Intervals, recording: Intervals, least_ns: int) -> tuple[Intervals, Ints]:
    """Return the idle times, cut where the recording begins and ends, and which idle time each piece is of.

    What would be shorter than ``least_ns`` stays with the piece beside it.
    """
    is_long = recording.length_ns >= least_ns
    cuts = np.unique(np.concatenate([recording.begin_ns[is_long], recording.end_ns[is_long]]))
    pieces: list[tuple[int, int, int]] = []
    for i, (begin_ns, end_ns) in enumerate(zip(idle.begin_ns.tolist(), idle.end_ns.tolist(), strict=True)):
        for cut_ns in cuts[(cuts >= begin_ns + least_ns) & (cuts <= end_ns - least_ns)].tolist():
            if cut_ns - begin_ns >= least_ns:
                pieces.append((begin_ns, cut_ns, i))
                begin_ns = cut_ns
        pieces.append((begin_ns, end_ns, i))
    begins, ends, of = np.array(pieces, np.int64).reshape(-1, 3).T
    return Intervals(begins, ends), of


def _overheads(columns: Columns, of_program: Ints) -> Intervals:
    """Return the overheads during which the program begins nothing: traces do not name the thread of an overhead."""
    rows = np.flatnonzero(columns.named(OVERHEADS.__contains__, "overhead"))
    begun_ns = columns.begin_ns[of_program]  # ascending, as all rows are
    begin_ns, end_ns = columns.begin_ns[rows], columns.end_ns[rows]
    is_alone = np.searchsorted(begun_ns, begin_ns, side="right") == np.searchsorted(begun_ns, end_ns, side="left")
    return Intervals.of(begin_ns[is_alone], end_ns[is_alone])


def _start(columns: Columns, of_program: Ints) -> Intervals:
    """Return the time from the begin of the first step to the first event of the program, if none precedes that step.

    A section that is open at the begin, and may have been for long, shows the program only at its end.
    """
    steps = np.flatnonzero(columns.is_step())
    if not len(steps) or not len(of_program):
        return NOTHING
    begin_ns = columns.begin_ns[steps[0]]
    is_open = columns.is_of("user_annotation") & (columns.begin_ns == begin_ns)
    is_open &= ~columns.named(WAITS_FOR_BATCH.search, among=is_open)
    seen_ns = int(np.where(is_open, columns.end_ns, columns.begin_ns)[of_program].min())
    return Intervals.of(np.array([begin_ns]), np.array([seen_ns])) if seen_ns > begin_ns else NOTHING


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
OTHER_DEVICE: Final = "waiting for another device"  # that has its turn
STARTED_LATE: Final = "launched, started late"
IN_GRAPH: Final = "inside a graph"
LAUNCH_BOUND: Final = "launch-bound"
HOST_STALL: Final = "host stall"
UNKNOWN: Final = "unknown"
# What the host does, by the names of its events.
CALLS: Final = {
    DATA_LOADER: re.compile(rf"^enumerate\(DataLoader\)|^{DATA_LOADING}$|dataloader\.py\(\d+\): (__next__|_next_data)"),
    ALLOCATION: known_names.ALLOCATE_ANY,
    BLOCKING_COPY: known_names.COPIES,
    SYNCHRONIZE: known_names.SYNCHRONIZE,
}
# If several causes claim a moment, the first in this order gets it.
_IN_ORDER: Final = (RECORDING, OTHER_DEVICE, *CALLS, LAUNCH_BOUND, PYTHON, UNKNOWN)
_LAUNCHING: Final = ("cpu_op", "cuda_runtime")  # categories of the cause launch-bound
_SLOW_HOST: Final = (LAUNCH_BOUND, PYTHON)  # a host stall, if it is long
# A read that empties the queue can be behind these; what a loader or an allocation takes is theirs.
AFTER_READ: Final = (LAUNCH_BOUND, PYTHON, SYNCHRONIZE, BLOCKING_COPY)
_UNDIVIDED: Final = (*NO_IDLE_TIME, IN_GRAPH)  # the rest of the gap says nothing of the program either
LEAST_STALL_NS: Final = 5_000_000  # launches that are merely slow take microseconds
MOST_OF_TIME: Final = 0.5  # of an idle time
LEAST_SLOW_CALL_NS: Final = 1_000_000  # of the one call that launches: a kernel is loaded, not launched, for so long


MOST_OF_GAP: Final = 0.5


@dataclass(frozen=True, slots=True)
class Gap:
    """An idle time of a device, and the names around it; "" unknown. Rows are of the trace's columns."""

    device: int
    begin_ns: int
    end_ns: int
    cause: str  # of the largest part
    shares: tuple[tuple[str, float], ...]  # of each cause; together 1
    next_row: int  # the work that ended it; -1 for none
    is_edge: bool  # whether it is not between two works, but before the first of the steps or after the last
    at_ns: int = 0  # its begin, since that of the first device work
    next_name: str = ""  # the work that ended it
    operator: str = ""  # launched that work
    section: str = ""  # contains the launch
    step: str = ""  # contains the begin of the gap
    module: str = ""  # the innermost nn.Module that the host was in for longer than in any other
    line: str = ""  # the same for lines of the program
    module_part: float = 0.0  # of the gap, 0 to 1
    line_part: float = 0.0
    follows_read: bool = False  # whether the host was reading a value from the device when the gap began
    in_scope_ns: int = 0  # the part of the gap that lies in steps, or in the recording if it has none
    stall_by: str = ""  # the innermost event that covers most of a stall of the host; "" if no single one does
    is_first_run: bool = False  # of a kernel, which the stall is before: loading it, choosing algorithms, compiling
    stall_section: str = ""  # the innermost annotation that covers most of the stall
    is_in_operators: bool = False  # whether operators and calls cover most of it, though no single one
    stall_operators: tuple[str, ...] = ()  # the longest of these

    @property
    def length_ns(self) -> int:
        """The length of the gap."""
        return self.end_ns - self.begin_ns

    @property
    def share(self) -> float:
        """The part of the gap with its cause, 0 to 1."""
        return self.share_of(self.cause)

    def share_of(self, *causes: str) -> float:
        """Return the part of the gap with one of these causes, 0 to 1."""
        return sum(share for cause, share in self.shares if cause in causes)

    def ns_of(self, *causes: str) -> int:
        """Return how much of it lies within the scope and has one of these causes."""
        return round(self.in_scope_ns * self.share_of(*causes))

    @property
    def where(self) -> str:
        """The module and the line, as "in Linear_0 (model/net.py:41 in forward)"; "" if both are unknown.

        What has less than half of the gap has its share beside it. What the program did not cause is in no place.
        """
        if self.cause in NO_IDLE_TIME:
            return ""
        line, module = "/".join(self.line.split("/")[-2:]), self.module  # with its file and the folder of that alone
        of_line, of_module = (
            "" if part >= MOST_OF_GAP else f"{part:.0%} of it" for part in (self.line_part, self.module_part)
        )
        if not module:
            return line and f"at {line}{of_line and f' ({of_line})'}"
        inner = filter(None, (of_module, line and ", ".join(filter(None, (line, of_line)))))
        return f"in {module}{f' ({within})' if (within := '; '.join(inner)) else ''}"


class Around:
    """What the whole file shows of the time in which one of its devices is idle.

    A device does what is not recorded at the times ``unseen``. Devices that take turns have them at the times
    ``turns``: one that is idle then waits for another. The times of a thread are looked up once.
    """

    def __init__(self, events: TracedEvents, unseen: Intervals, turns: Intervals) -> None:
        self.events, self.unseen, self.turns = events, unseen, turns
        columns = self._columns = events.columns
        self._main = columns.main_thread
        self._claims: Callable[[tuple[int, ...]], list[Intervals]] = cache(lambda of: list(self._claims_of(of)))
        # When the recording held up some threads.
        self.recording: Callable[[tuple[int, ...]], Intervals] = cache(lambda of: recording_time(columns, of))

    def parts(self, threads: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return the time of each cause in ``_IN_ORDER`` within each gap; shape (causes, gaps), ns.

        ``threads`` holds for each gap the thread that launched the work after it, or -1 if unknown. The thread that
        runs the loop counts as well.
        """
        parts = np.zeros((len(_IN_ORDER), len(begin_ns)), np.int64)
        for thread in np.unique(threads).tolist():
            relevant = tuple(number for number in dict.fromkeys((thread, self._main)) if number != NONE)
            which = threads == thread
            if relevant:
                claimed_ns = [claimed.within(begin_ns[which], end_ns[which]) for claimed in self._claims(relevant)]
                parts[:, which] = np.diff([*claimed_ns, (end_ns - begin_ns)[which]], axis=0, prepend=0)
            else:
                parts[_IN_ORDER.index(UNKNOWN), which] = (end_ns - begin_ns)[which]
        return parts

    def _claims_of(self, threads: tuple[int, ...]) -> Iterator[Intervals]:
        """Yield for each cause but the last, which is unknown, what it and those before it claim of all time."""
        columns = self._columns
        on_threads = np.isin(columns.thread, threads)
        is_host = columns.is_of("cpu_op", "cuda_runtime", "user_annotation", "python_function")
        claimed = NOTHING
        for cause in _IN_ORDER[:-1]:
            if cause == RECORDING:
                claimed = self.recording(threads)
            elif cause == OTHER_DEVICE:
                claimed = claimed | self.turns
            elif cause == PYTHON:
                # Between the first and the last recorded event of these threads; outside of them the cause is unknown.
                rows = np.flatnonzero(on_threads & is_host)
                if columns.is_of("cpu_op", "python_function").any():  # else operators were not recorded: it may be one
                    first, last = columns.begin_ns[rows].min(), columns.end_ns[rows].max()
                    claimed = claimed | Intervals(np.array([first]), np.array([last]))
            else:
                which = (
                    columns.named(CALLS[cause].search, among=is_host) if cause in CALLS else columns.is_of(*_LAUNCHING)
                )
                # A thread that waits for the backward pass on another thread launches nothing.
                which = which & (columns.thread == threads[0] if cause == SYNCHRONIZE else on_threads)
                claimed = claimed | columns.span(which)
            yield claimed


@dataclass(frozen=True, slots=True)
class _Idle:
    device: int
    made: Ints  # the calls that launched each work of the device, or of all that take turns; -1 for unknown
    times: Intervals
    following: Ints  # the work that ends it; -1 for none
    calls: Ints  # that launched this work; -1 for unknown
    launched_ns: Ints  # until when the host had not launched it
    is_near: Bools  # beside a collective
    is_in_graph: Bools  # between two works of one replay


def long_gaps(around: Around, device: OneDevice) -> list[Gap]:
    """Return all gaps of at least 30 us of one device, in order of time, each with its cause."""
    events, columns = around.events, around.events.columns
    between = device.device.busy.between
    is_long = between.length_ns >= LEAST_GAP_NS
    idle = Intervals(between.begin_ns[is_long], between.end_ns[is_long])
    if not len(idle.begin_ns):
        return []
    rows = np.flatnonzero(columns.is_gpu() & (columns.device == device.index))
    preceding, following = beside(columns, rows, idle)
    near = events.communicates[following] | events.communicates[preceding]
    call = events.launches.call[following]
    in_graph = (call == events.launches.call[preceding]) & (call != NONE) & columns.is_graph_launch()[call]
    return _with_causes(around, _idle(around, device.index, idle, following, near, in_graph), is_edge=False)


def edge_gaps(around: Around, device: OneDevice) -> list[Gap]:
    """Return the idle time in steps before the first work of a device and after its last, each with its cause.

    What is under 30 us is left out. Where the recording held up the host, and where the device did what is not
    recorded, is an idle time of its own. After launches whose kernels are not recorded it is unknown whether the device
    was idle.
    """
    events, columns, busy = around.events, around.events.columns, device.device.busy
    if not len(busy.begin_ns) or not events.steps:
        return []
    within = events.scope.windows
    first = int(np.flatnonzero(columns.is_gpu() & (columns.device == device.index))[0])
    begin_ns = np.array([within.begin_ns[0], busy.end_ns[-1]], np.int64)
    end_ns = np.array([busy.begin_ns[0], within.end_ns[-1]], np.int64)
    following = np.array([first, NONE], np.int64)
    is_long = end_ns - begin_ns >= LEAST_GAP_NS
    if not is_long.any():
        return []
    edges, of = _cut(around, Intervals(begin_ns[is_long], end_ns[is_long]), following[is_long])
    following = following[is_long][of]
    neither = np.zeros(len(following), np.bool_)  # nothing on this device was waited for
    idle = _idle(around, device.index, edges, following, neither, neither)
    since_ns = events.lost.since_ns(columns)
    if since_ns is not None:
        idle.launched_ns[following == NONE] = np.clip(since_ns, *edges)[following == NONE]
    return _with_causes(around, idle, is_edge=True)


def _cut(around: Around, edges: Intervals, following: Ints) -> tuple[Intervals, Ints]:
    """Return idle times, cut where the recording holds up the host and at unseen work, and of which each piece is."""
    thread = around.events.columns.thread
    calls = around.events.launches.calls_of(following)
    threads = tuple(np.unique(np.append(thread[calls[calls != NONE]], around.events.columns.main_thread)).tolist())
    held_up = around.recording(threads)
    begin_ns, end_ns = (np.concatenate(ends) for ends in zip(held_up, around.unseen, strict=True))
    return cut(edges, Intervals(begin_ns, end_ns), LEAST_GAP_NS)


def _idle(around: Around, device: int, times: Intervals, following: Ints, is_near: Bools, is_in_graph: Bools) -> _Idle:
    """Return idle times with the calls that launched what ends them.

    After the launch the host has done its part: the rest of the time is a wait on the device. Where the launch is
    unknown, the host has its part until the end.
    """
    columns, launches, (begin_ns, end_ns) = around.events.columns, around.events.launches, times
    is_shared = around.turns.total_ns > 0  # by the devices: what the host launches on one, it does for all
    made = launches.call[columns.is_gpu() & (is_shared | (columns.device == device))]
    calls = launches.calls_of(following)
    launched_ns: Ints = np.where(calls != NONE, np.clip(columns.end_ns[calls], begin_ns, end_ns), end_ns)
    is_earlier = (following != NONE) & (calls == NONE) & is_launched_before(columns, made, following)
    launched_ns[is_earlier] = begin_ns[is_earlier]
    return _Idle(device, made, times, following, calls, launched_ns, is_near, is_in_graph)


def _with_causes(around: Around, idle: _Idle, is_edge: bool) -> list[Gap]:
    columns, (begin_ns, end_ns) = around.events.columns, idle.times
    launched_ns, following, calls = idle.launched_ns, idle.following, idle.calls
    parts = around.parts(np.where(calls >= 0, columns.thread[calls], NONE), begin_ns, launched_ns)
    # Neither operators nor Python are charged with a gap whose next work has no known launch, though other work has: it
    # may have been launched long before, as a copy that a device makes for itself.
    is_unknown = (calls == NONE) & (following != NONE) & (idle.made != NONE).any()
    for slow in _SLOW_HOST:
        parts[_IN_ORDER.index(UNKNOWN), is_unknown] += parts[_IN_ORDER.index(slow), is_unknown]
        parts[_IN_ORDER.index(slow), is_unknown] = 0
    parts = np.vstack([parts, end_ns - launched_ns])
    which = parts.argmax(axis=0)
    shares = (parts / (end_ns - begin_ns)).T.tolist()
    # No stream of this device is busy in its gap; a stream of another device may be.
    is_other_busy = 2 * around.events.device.busy.within(launched_ns, end_ns) > end_ns - launched_ns
    unseen = around.unseen.within(begin_ns, end_ns) / (end_ns - begin_ns)
    is_stall = _is_stall(columns, around, idle) | _is_slow_call(columns, idle)
    other = OTHER_DEVICE if around.turns.total_ns else OTHER_STREAM
    long = []
    for i, (main, parts_of_gap) in enumerate(zip(which.tolist(), shares, strict=True)):
        on_device = COMMUNICATION if idle.is_near[i] else other if is_other_busy[i] else STARTED_LATE
        names = (*_IN_ORDER, UNKNOWN if following[i] == NONE else on_device)
        cause = names[main]
        if end_ns[i] - begin_ns[i] <= columns.skew_ns:
            cause, parts_of_gap = UNKNOWN, [float(name == UNKNOWN) for name in _IN_ORDER] + [0.0]
        elif cause != RECORDING:
            cause = NOT_RECORDED if unseen[i] > MOST_OF_TIME else IN_GRAPH if idle.is_in_graph[i] else cause
        divided = {cause: 1.0}
        if cause not in _UNDIVIDED:
            divided = {}
            for name, share in zip(names, parts_of_gap, strict=True):
                if share:
                    divided[name] = divided.get(name, 0.0) + share
            if cause in _SLOW_HOST and is_stall[i]:
                cause, divided[HOST_STALL] = HOST_STALL, sum(divided.pop(slow, 0.0) for slow in _SLOW_HOST)
        begin, end, work = int(begin_ns[i]), int(end_ns[i]), int(following[i])
        long.append(Gap(idle.device, begin, end, cause, tuple(divided.items()), work, is_edge))
    return long


def _is_stall(columns: Columns, around: Around, idle: _Idle) -> Bools:
    """Return which gaps end a time of 5 ms or more in which no thread launched anything and this one did not wait.

    The device may have been busy during the first part of that time. If most launches are unknown, so is that.
    """
    made, calls, begin_ns = idle.made, idle.calls, idle.times.begin_ns
    known = calls != NONE
    if (made != NONE).any() and 2 * (made != NONE).sum() < len(made):
        return np.zeros(len(calls), np.bool_)
    ends_ns = np.sort(columns.end_ns[np.unique(made[made != NONE])], kind="stable")  # nearly in order
    earlier = np.searchsorted(ends_ns, np.where(known, columns.begin_ns[calls], begin_ns), side="right") - 1
    since_ns = np.append(ends_ns, np.iinfo(np.int64).max)[earlier]  # the last of them is "no launch before"
    threads = np.where(known, columns.thread[calls], NONE)
    since_ns = np.where(since_ns > idle.launched_ns, begin_ns, since_ns)
    parts = around.parts(threads, since_ns, idle.launched_ns)
    is_stall: Bools = sum(parts[_IN_ORDER.index(cause)] for cause in _SLOW_HOST) >= LEAST_STALL_NS
    return is_stall


def _is_slow_call(columns: Columns, idle: _Idle) -> Bools:
    """Return which gaps are mostly one call that launches work, and that for 1 ms or more.

    Its work can begin at once, before the gap, so the work that ends the gap may have another call. The launch
    of a graph with much work takes that long each time.
    """
    rows = np.unique(idle.made[idle.made != NONE])
    rows = rows[(columns.length_ns[rows] >= LEAST_SLOW_CALL_NS) & ~columns.is_graph_launch()[rows]]
    is_slow = np.zeros(len(idle.calls), np.bool_)
    if len(rows):
        for i, (call, begin_ns, end_ns) in enumerate(zip(idle.calls.tolist(), *idle.times, strict=True)):
            of = rows[columns.thread[rows] == columns.thread[call]] if call != NONE else rows[:0]
            inside_ns = np.minimum(columns.end_ns[of], idle.launched_ns[i]) - np.maximum(columns.begin_ns[of], begin_ns)
            longest_ns = inside_ns.max(initial=0)
            is_slow[i] = longest_ns >= LEAST_SLOW_CALL_NS and 2 * longest_ns > end_ns - begin_ns
    return is_slow
