"""Why the device stood still: every gap of 30 us or more, with what the host did meanwhile."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace.columns import NONE, Bools, Columns, Ints
from training_profiler.trace.intervals import Intervals, covered, gaps, union
from training_profiler.trace.launches import Launches
from training_profiler.trace.overview import Device, is_communication

LEAST_GAP_NS: Final = 30_000
DATA_LOADER: Final = "data loader"
BLOCKING_COPY: Final = "blocking copy"
SYNCHRONIZE: Final = "synchronize"
ALLOCATION: Final = "allocation"
PYTHON: Final = "python between launches"
COMMUNICATION: Final = "waiting for communication"
OTHER_STREAM: Final = "waiting for another stream"
LAUNCH_BOUND: Final = "launch-bound"
UNKNOWN: Final = "unknown"
CAUSES: Final = (
    DATA_LOADER,
    ALLOCATION,
    BLOCKING_COPY,
    SYNCHRONIZE,
    LAUNCH_BOUND,
    PYTHON,
    COMMUNICATION,
    OTHER_STREAM,
    UNKNOWN,
)
_CALLS: Final = {
    DATA_LOADER: re.compile(r"^enumerate\(DataLoader\)|dataloader\.py\(\d+\): (__next__|_next_data)"),
    ALLOCATION: re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|MemCreate|MemMap)"),
    BLOCKING_COPY: re.compile(r"^(cuda|hip)Mem(cpy|set)|^cuMemcpy"),
    SYNCHRONIZE: re.compile(r"^(cuda|hip)\w*Synchronize$|^cu(Stream|Ctx|Event)Synchronize"),
}
_IN_ORDER: Final = (DATA_LOADER, ALLOCATION, BLOCKING_COPY, SYNCHRONIZE, LAUNCH_BOUND, PYTHON)


@dataclass(frozen=True, slots=True)
class Gap:
    """One time in which no device of the file did anything; rows are of the trace's columns, -1 for none."""

    begin_ns: int
    end_ns: int
    cause: str
    part: float  # how much of the gap the cause covers, 0 to 1
    next_row: int  # the work that ended it
    call_row: int  # the call that launched that

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns


def long_gaps(columns: Columns, device: Device, launches: Launches) -> list[Gap]:
    """Return all gaps of 30 us or more, in order of time, each with its cause."""
    between = gaps(device.busy)
    is_long = between.end_ns - between.begin_ns >= LEAST_GAP_NS
    begin_ns, end_ns = between.begin_ns[is_long], between.end_ns[is_long]
    if not len(begin_ns):
        return []
    following = _rows_that_end(columns, end_ns)
    calls = launches.call[following]
    threads = np.where(calls >= 0, columns.thread[calls], NONE)
    main = _main_thread(columns)
    # What was launched before the gap began was waited for by the device alone.
    is_queued = (calls >= 0) & (columns.end_ns[calls] <= begin_ns)
    parts = np.zeros((len(_IN_ORDER), len(begin_ns)))
    for thread in set(threads.tolist()):
        which = threads == thread
        looked_at = [one for one in dict.fromkeys((thread, main)) if one != NONE]
        parts[:, which] = _host_parts(columns, looked_at, begin_ns[which], end_ns[which])
    causes = np.argmax(parts, axis=0)
    shares = parts[causes, np.arange(len(causes))] / (end_ns - begin_ns)
    communicates = is_communication(columns)
    before = _rows_that_begin(columns, begin_ns)
    found = []
    for i in range(len(begin_ns)):
        cause, share = _IN_ORDER[causes[i]], float(shares[i])
        if is_queued[i]:
            near = communicates[following[i]] or (before[i] >= 0 and communicates[before[i]])
            cause, share = (COMMUNICATION if near else OTHER_STREAM), 1.0
        elif not share:
            cause = UNKNOWN
        found.append(Gap(int(begin_ns[i]), int(end_ns[i]), cause, share, int(following[i]), int(calls[i])))
    return found


def _rows_that_end(columns: Columns, gap_ends_ns: Ints) -> Ints:
    """Return the row of the device work with which each gap ends."""
    rows = np.flatnonzero(columns.is_gpu())
    return rows[np.searchsorted(columns.begin_ns[rows], gap_ends_ns)]


def _rows_that_begin(columns: Columns, gap_begins_ns: Ints) -> Ints:
    """Return the row of the device work after which each gap comes."""
    rows = np.flatnonzero(columns.is_gpu())
    rows = rows[np.argsort(columns.end_ns[rows], kind="stable")]
    at = np.searchsorted(columns.end_ns[rows], gap_begins_ns, side="right") - 1
    return np.where(at >= 0, rows[at], NONE)


def _main_thread(columns: Columns) -> int:
    """Return the thread with most operators, which runs the loop; -1 where there is none."""
    threads = columns.thread[columns.is_of("cpu_op", "user_annotation")]
    return int(np.bincount(threads).argmax()) if len(threads) else NONE


def _host_parts(columns: Columns, threads: list[int], begin_ns: Ints, end_ns: Ints) -> np.ndarray:
    """Return how much of each gap goes to each cause in ``_IN_ORDER``; shape (causes, gaps), ns."""
    on_thread = np.isin(columns.thread, threads)
    is_first = columns.thread == threads[0] if threads else on_thread
    is_work = columns.is_of("cpu_op", "cuda_runtime") & on_thread
    parts = np.zeros((len(_IN_ORDER), len(begin_ns)))
    taken = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    for i, cause in enumerate(_IN_ORDER):
        if cause == PYTHON:
            parts[i] = (end_ns - begin_ns) - covered(taken, begin_ns, end_ns) if threads else 0
            continue
        which = is_work if cause == LAUNCH_BOUND else columns.named(_CALLS[cause].search) & on_thread
        if cause == SYNCHRONIZE:  # the thread that waits for the backward pass of another launches nothing
            which &= is_first
        more = _grown(taken, columns, which)
        parts[i] = covered(more, begin_ns, end_ns) - covered(taken, begin_ns, end_ns)
        taken = more
    return parts


def _grown(taken: Intervals, columns: Columns, which: Bools) -> Intervals:
    return union(
        np.concatenate([taken.begin_ns, columns.begin_ns[which]]), np.concatenate([taken.end_ns, columns.end_ns[which]])
    )
