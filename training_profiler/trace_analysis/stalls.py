"""Which operator or call holds up the host during a stall."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from training_profiler.trace_analysis.gaps import HOST_STALL, LEAST_SLOW_CALL_NS, Gap
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns
from training_profiler.trace_analysis.nesting import ROUNDING_NS
from training_profiler.trace_analysis.timeline import main_thread

MAIN_PART: Final = 0.5  # of a stall; an event that covers less is not its cause


@dataclass(frozen=True, slots=True)
class Stall:
    """The innermost event that covers most of a stall; "" if no single one does."""

    by: str
    is_first: bool  # before the first run of a kernel: loading it, choosing algorithms, compiling


NO_STALL: Final = Stall("", False)
AGAIN: Final = 0.5  # of a stall; an operator that later stalls for so long, and loads nothing then, does so each time


def stalls_of(columns: Columns, gaps: list[Gap], launches: Launches) -> list[Stall]:
    """Return for each gap what holds up the host; ``NO_STALL`` for gaps of other causes."""
    duration = columns.end_ns - columns.begin_ns
    is_host = columns.is_of("cpu_op", "cuda_runtime")
    long = np.flatnonzero(is_host & (duration >= MAIN_PART * LEAST_SLOW_CALL_NS))
    is_first_run = _is_first_run(columns, launches)
    main = main_thread(columns)
    is_operator = columns.is_of("cpu_op")[long]
    found = []
    for gap in gaps:
        if gap.cause != HOST_STALL:
            found.append(NO_STALL)
            continue
        call = NONE if gap.next_row == NONE else launches.call[gap.next_row]
        threads = [main] if call == NONE else [main, columns.thread[call]]
        inside = np.minimum(columns.end_ns[long], gap.end_ns) - np.maximum(columns.begin_ns[long], gap.begin_ns)
        is_main = np.isin(columns.thread[long], threads) & (inside >= MAIN_PART * gap.length_ns)
        if not is_main.any():
            found.append(Stall("", False))  # without an operator, nothing shows that a kernel was loaded
            continue
        most = long[is_main & is_operator] if (is_main & is_operator).any() else long[is_main]
        row = int(most[duration[most].argmin()])
        is_first = call != NONE and bool(is_first_run[gap.next_row]) and _contains(columns, row, int(call))
        found.append(Stall(columns.names[columns.name[row]], is_first))
    return _without_habits(found, gaps)


def _is_first_run(columns: Columns, launches: Launches) -> Bools:
    """Return which events are the first run of a kernel, or fill its workspace: the same operator launched both."""
    kernels = np.flatnonzero(columns.is_of("kernel"))
    is_first = np.zeros(len(columns.begin_ns), np.bool_)
    is_first[kernels[np.unique(columns.name[kernels], return_index=True)[1]]] = True  # rows are in order of time
    operators = launches.operator[is_first]
    fills = columns.is_of("gpu_memset") & np.isin(launches.operator, operators[operators != NONE])
    return is_first | fills


def _contains(columns: Columns, outer: int, call: int) -> bool:
    return bool(
        columns.thread[outer] == columns.thread[call]
        and columns.begin_ns[outer] <= columns.begin_ns[call]
        and columns.end_ns[call] <= columns.end_ns[outer] + ROUNDING_NS
    )


def _without_habits(stalls: list[Stall], gaps: list[Gap]) -> list[Stall]:
    """Return the stalls; what holds up the host again later, before a kernel that has run, does not load one."""
    longest_later_ns: dict[str, int] = {}
    kept = []
    for stall, gap in reversed(list(zip(stalls, gaps, strict=True))):
        is_habit = longest_later_ns.get(stall.by, 0) >= AGAIN * gap.length_ns
        kept.append(replace(stall, is_first=stall.is_first and not is_habit))
        if stall.by and not stall.is_first:
            longest_later_ns[stall.by] = max(longest_later_ns.get(stall.by, 0), gap.length_ns)
    return kept[::-1]
