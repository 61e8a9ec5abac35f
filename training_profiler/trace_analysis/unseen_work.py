"""When the device had work that the trace lacks: what was launched waits, and nothing recorded runs."""

from typing import Final

import numpy as np

from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.graphs import is_graph_launch
from training_profiler.trace_analysis.host_activity import TO_HOST
from training_profiler.trace_analysis.intervals import NOTHING, Intervals, gaps, together, union
from training_profiler.trace_analysis.launches import Launches, is_launched_before
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns

LEAST_UNSEEN_NS: Final = 1_000_000  # kernels begin microseconds after their launch


def unseen_work(columns: Columns, launches: Launches, communicates: Bools) -> Intervals:
    """Return when the device did what the trace lacks, 1 ms or more each.

    A device starts what was launched at once, unless it does something else: what was launched before a recording
    began, or was filtered out of it.
    """
    rows = np.flatnonzero(columns.is_gpu())
    if not len(rows):
        return NOTHING
    busy = union(columns.begin_ns[rows], columns.end_ns[rows])
    idle = gaps(busy)
    following = rows[np.searchsorted(columns.begin_ns[rows], idle.end_ns)]
    by_end = rows[np.argsort(columns.end_ns[rows], kind="stable")]
    preceding = by_end[np.searchsorted(columns.end_ns[by_end], idle.begin_ns, side="right") - 1]
    call = launches.call[following]
    is_earlier = (call == NONE) & is_launched_before(columns, launches.call[rows], following)
    launched_ns = np.where(is_earlier, idle.begin_ns, np.maximum(idle.begin_ns, columns.end_ns[call]))
    is_unseen = ((call != NONE) | is_earlier) & (idle.end_ns - launched_ns >= LEAST_UNSEEN_NS)
    is_unseen &= ~communicates[following] & ~communicates[preceding]
    is_unseen &= ~(is_graph_launch(columns)[call] & (launches.call[preceding] == call))
    later = union(launched_ns[is_unseen], idle.end_ns[is_unseen])
    return together(later, unseen_at_begin(columns, launches))


def unseen_at_begin(columns: Columns, launches: Launches) -> Intervals:
    """Return when the device had other work before its first recorded one: for 1 ms or more, what was launched waits.

    Or the host waits for the device. A recording can begin while the device is at work, and leave out that work.
    """
    rows = np.flatnonzero(columns.is_gpu())
    if not len(rows):
        return NOTHING
    first_ns = int(columns.begin_ns[rows[0]])
    waits = columns.named(runtime_calls.SYNCHRONIZE.search, columns.is_of("cuda_runtime"))
    is_read = columns.named(TO_HOST.search, columns.is_of("gpu_memcpy")) & (launches.call != NONE)
    waits[launches.call[is_read]] = True
    call = launches.call[rows[0]]
    launched_ns = first_ns if call == NONE else columns.end_ns[call]
    if is_launched_before(columns, launches.call[rows], rows[:1])[0]:
        launched_ns = columns.begin_ns.min()
    begin_ns = np.append(columns.begin_ns[waits], launched_ns)
    end_ns = np.minimum(np.append(columns.end_ns[waits], first_ns), first_ns)
    is_long = end_ns - begin_ns >= LEAST_UNSEEN_NS
    return union(begin_ns[is_long], end_ns[is_long])
