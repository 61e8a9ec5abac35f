"""Which operator or call holds up the host during a stall."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.gaps import HOST_STALL, LEAST_SLOW_CALL_NS, Gap
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Columns
from training_profiler.trace_analysis.timeline import main_thread

MAIN_PART: Final = 0.5  # of a stall; an event that covers less is not its cause


@dataclass(frozen=True, slots=True)
class Stall:
    """The innermost event that covers most of a stall; "" if no single one does."""

    by: str
    is_first: bool  # before the first run of a kernel: loading it, choosing algorithms, compiling


NO_STALL: Final = Stall("", False)


def stalls_of(columns: Columns, gaps: list[Gap], launches: Launches) -> list[Stall]:
    """Return for each gap what holds up the host; ``NO_STALL`` for gaps of other causes."""
    duration = columns.end_ns - columns.begin_ns
    is_host = columns.is_of("cpu_op", "cuda_runtime")
    long = np.flatnonzero(is_host & (duration >= MAIN_PART * LEAST_SLOW_CALL_NS))
    works = np.flatnonzero(columns.is_gpu())
    first = np.full(len(columns.names), len(columns.begin_ns), np.int64)
    np.minimum.at(first, columns.name[works], works)  # rows are in order of time
    main = main_thread(columns)
    is_operator = columns.is_of("cpu_op")[long]
    found = []
    for gap in gaps:
        if gap.cause != HOST_STALL:
            found.append(NO_STALL)
            continue
        is_first = gap.next_row != NONE and bool(first[columns.name[gap.next_row]] == gap.next_row)
        call = NONE if gap.next_row == NONE else launches.call[gap.next_row]
        threads = [main] if call == NONE else [main, columns.thread[call]]
        inside = np.minimum(columns.end_ns[long], gap.end_ns) - np.maximum(columns.begin_ns[long], gap.begin_ns)
        is_main = np.isin(columns.thread[long], threads) & (inside >= MAIN_PART * gap.length_ns)
        if not is_main.any():
            # All work is new to a recording that begins: without an operator, nothing shows that it was loaded.
            is_begin = bool(gap.next_row == works[0])
            found.append(Stall("", is_first and not is_begin))
            continue
        most = long[is_main & is_operator] if (is_main & is_operator).any() else long[is_main]
        row = int(most[duration[most].argmin()])
        found.append(Stall(columns.names[columns.name[row]], is_first))
    return found
