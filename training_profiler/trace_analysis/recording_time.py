"""When the recording itself holds up the host: at its start, for its buffers, and for the profiler's own sections."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from training_profiler.tables.sections import CLOCK_MARK, PROFILER
from training_profiler.trace_analysis.host_activity import WAITS_FOR_BATCH
from training_profiler.trace_analysis.load.columns import STEP_NAME, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.timeline import NOTHING, Intervals, covered, together, union

# What CUPTI needs for itself (CUpti_ActivityOverheadKind), as Kineto names it. Loading a kernel is work of CUDA.
OVERHEADS: Final = ("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource", "UVM Activity Init")


def recording_time(columns: Columns, threads: Sequence[int]) -> Intervals:
    """Return when the recording, and not the program, held up these threads.

    That is the time of the sections ``(profiler)``, of what CUPTI needs for itself, and from the begin of the first
    step to the first event of the program.
    """
    rows = np.flatnonzero(_is_host(columns) & np.isin(columns.thread, threads))
    is_own = columns.named(PROFILER.__eq__, columns.is_of("user_annotation"))[rows]
    own = union(columns.begin_ns[rows[is_own]], columns.end_ns[rows[is_own]])
    of_program = rows[covered(own, columns.begin_ns[rows], columns.begin_ns[rows] + 1) == 0]
    return together(together(own, _overheads(columns, of_program)), _start(columns, of_program))


def started_ns(columns: Columns, thread: int, at_ns: int) -> int:
    """Return when a recording that starts at a time lets this thread go on; that time if nothing shows its start.

    A section of the profiler, or an overhead of CUPTI, shows it. The program can also begin with a pause.
    """
    recording = recording_time(columns, [thread])
    shown = columns.named(PROFILER.__eq__, columns.is_of("user_annotation"))
    shown |= columns.named(OVERHEADS.__contains__, columns.is_of("overhead"))
    for begin_ns, end_ns in zip(*(ends.tolist() for ends in recording), strict=True):
        if begin_ns <= at_ns < end_ns and (shown & (columns.begin_ns < end_ns) & (columns.end_ns > at_ns)).any():
            return int(end_ns)
    return at_ns


def cut(idle: Intervals, recording: Intervals, least_ns: int) -> tuple[Intervals, Ints]:
    """Return the idle times, cut where the recording begins and ends, and which idle time each piece is of.

    What would be shorter than ``least_ns`` stays with the piece beside it.
    """
    is_long = recording.end_ns - recording.begin_ns >= least_ns
    cuts = distinct(np.concatenate([recording.begin_ns[is_long], recording.end_ns[is_long]]))
    begins, ends, of = [], [], []
    for i, (begin_ns, end_ns) in enumerate(zip(idle.begin_ns.tolist(), idle.end_ns.tolist(), strict=True)):
        for cut_ns in cuts[(cuts >= begin_ns + least_ns) & (cuts <= end_ns - least_ns)].tolist():
            if cut_ns - begin_ns >= least_ns:
                begins.append(begin_ns)
                ends.append(cut_ns)
                of.append(i)
                begin_ns = cut_ns
        begins.append(begin_ns)
        ends.append(end_ns)
        of.append(i)
    return Intervals(np.array(begins, np.int64), np.array(ends, np.int64)), np.array(of, np.int64)


def _is_host(columns: Columns) -> Bools:
    """Return which events of the host are not marks of the recording."""
    is_host = columns.is_of("cpu_op", "cuda_runtime", "user_annotation", "python_function")
    return is_host & ~columns.named(_is_mark, columns.is_of("user_annotation"))


def _is_mark(name: str) -> bool:
    return name.startswith((STEP_NAME, CLOCK_MARK))


def _overheads(columns: Columns, of_program: Ints) -> Intervals:
    """Return the overheads during which the program begins nothing: traces do not name the thread of an overhead."""
    rows = np.flatnonzero(columns.named(OVERHEADS.__contains__, columns.is_of("overhead")))
    begun_ns = columns.begin_ns[of_program]  # ascending, as all rows are
    begin_ns, end_ns = columns.begin_ns[rows], columns.end_ns[rows]
    is_alone = np.searchsorted(begun_ns, begin_ns, side="right") == np.searchsorted(begun_ns, end_ns, side="left")
    return union(begin_ns[is_alone], end_ns[is_alone])


def _start(columns: Columns, of_program: Ints) -> Intervals:
    """Return the time from the begin of the first step to the first event of the program, if none precedes that step.

    A section that is open at the begin, and may have been for long, shows the program only at its end.
    """
    steps = np.flatnonzero(columns.is_step())
    if not len(steps) or not len(of_program):
        return NOTHING
    begin_ns = columns.begin_ns[steps[0]]
    is_open = columns.is_of("user_annotation") & (columns.begin_ns == begin_ns)
    is_open &= ~columns.named(WAITS_FOR_BATCH.search, is_open)
    seen_ns = int(np.where(is_open, columns.end_ns, columns.begin_ns)[of_program].min())
    return union(np.array([begin_ns]), np.array([seen_ns])) if seen_ns > begin_ns else NOTHING
