"""What host threads do between events of the trace, and where they wait for the device and for each other."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.critical_path.device_links import LONG_AGO, Works
from training_profiler.trace_analysis.host_activity import WAITS_FOR_BATCH
from training_profiler.trace_analysis.launches import Nesting, nearest
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.phases import BACKWARD, MARKS

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

    def of(self, thread: int) -> slice:
        """Return where the pieces of a thread are."""
        first, last = np.searchsorted(self.thread, [thread, thread + 1]).tolist()
        return slice(first, last)


def host_pieces(columns: Columns, nesting: Nesting) -> HostPieces:
    """Return the pieces of all threads, from the first to the last event of each."""
    depth = np.zeros(len(columns.begin_ns), np.int64)
    for level, rows in enumerate(nesting.levels):
        depth[rows] = level
    is_long = columns.end_ns > columns.begin_ns
    rows = np.concatenate([level[is_long[level]] for level in nesting.levels] or [np.empty(0, np.int64)])
    ends_ns = _ends_within_parents(columns, nesting)
    at_ns = np.concatenate([columns.begin_ns[rows], ends_ns[rows]])
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
    return HostPieces(thread[begin], at_ns[begin], at_ns[begin + 1], row[begin], *_labels(columns, nesting, row[begin]))


def _ends_within_parents(columns: Columns, nesting: Nesting) -> Ints:
    ends_ns = columns.end_ns.copy()
    for rows in nesting.levels[1:]:
        ends_ns[rows] = np.minimum(ends_ns[rows], ends_ns[nesting.parent[rows]])
    return ends_ns


def _labels(columns: Columns, nesting: Nesting, row: Ints) -> tuple[Ints, Ints]:
    """Return the kind and the name of the pieces whose innermost events are given."""
    operator = nearest(nesting, columns.is_of("cpu_op"))
    loads = nearest(nesting, columns.named(WAITS_FOR_BATCH.search, columns.is_of("user_annotation")))
    is_call = columns.is_of("cuda_runtime")
    waits = columns.named(runtime_calls.SYNCHRONIZE.search, is_call)
    allocates = columns.named(runtime_calls.ALLOCATE_ANY.search, is_call)
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
    duration = columns.end_ns - columns.begin_ns
    is_call = columns.is_of("cuda_runtime")
    least = np.full(len(columns.names), np.iinfo(np.int64).max)
    np.minimum.at(least, columns.name[is_call], duration[is_call])
    found: dict[int, tuple[list[int], bool]] = {}
    sync = columns.named(
        lambda name: runtime_calls.SYNCHRONIZE.search(name) or runtime_calls.FREE.search(name), is_call
    )
    rows = np.flatnonzero(sync & (duration > 0))
    for of_stream in works.streams():
        for row, work in zip(rows.tolist(), _awaited(columns, works, of_stream, rows).tolist(), strict=True):
            if work != NONE:
                found.setdefault(row, ([], True))[0].append(work)
    for work in np.flatnonzero((calls != NONE) & _is_copied_within(columns, works, calls)).tolist():
        found.setdefault(int(calls[work]), ([], True))[0].append(work)
    for row, work in _full_queue(columns, works, calls):
        found.setdefault(row, ([work], False))
    return [
        _wait(columns, works, row, int(least[columns.name[row]]), awaited, is_removable)
        for row, (awaited, is_removable) in found.items()
    ]


def _wait(columns: Columns, works: Works, row: int, least_ns: int, awaited: list[int], is_removable: bool) -> Wait:
    begin, end = int(columns.begin_ns[row]), int(columns.end_ns[row])
    last = max(int(works.end_ns[work]) for work in awaited)
    # Of a call that waits, the time after the wait is its own; one that finds everything done does not wait.
    own, delay = (min(least_ns, end - last), end - last) if last > begin else (end - begin, 0)
    return Wait(row, own, tuple((work, min(delay, end - int(works.end_ns[work]))) for work in awaited), is_removable)


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


def _is_copied_within(columns: Columns, works: Works, calls: Ints) -> Bools:
    """Return which works are copies that ended before the call that asked for them returned."""
    within: Bools = columns.is_of("gpu_memcpy")[works.row] & (works.end_ns < columns.end_ns[calls])
    return within


def _full_queue(columns: Columns, works: Works, calls: Ints) -> list[tuple[int, int]]:
    """Return the calls that launched into a full queue, each with the last work that ended meanwhile."""
    rows = distinct(calls[calls != NONE])
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
    is_backward = columns.named(MARKS[BACKWARD].search, columns.is_of("cpu_op", "user_annotation"))
    of = pieces.of(main)
    is_empty = pieces.kind[of] == KINDS.index(OUTSIDE)
    begins, ends = pieces.begin_ns[of][is_empty], pieces.end_ns[of][is_empty]
    if not len(begins) or not nesting.levels:
        return []
    is_host = columns.is_of("cpu_op", "cuda_runtime", "user_annotation") & (columns.end_ns > columns.begin_ns)
    outermost = nesting.levels[0]
    outermost = outermost[columns.end_ns[outermost] > columns.begin_ns[outermost]]
    found = []
    for thread in distinct(columns.thread[is_backward]).tolist():
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
