"""The time of host threads in pieces: each moment of a thread belongs to the innermost event that is open."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.host_activity import WAITS_FOR_BATCH
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.nesting import Nesting, nearest

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
