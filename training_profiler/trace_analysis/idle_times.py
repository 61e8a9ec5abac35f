"""The idle times of devices: their causes, the names around them, and what holds up the host in a stall."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from training_profiler.trace_analysis import gaps
from training_profiler.trace_analysis.code_places import NOWHERE, CodePlaces, code_places, shortened_line
from training_profiler.trace_analysis.columns import NONE, NOTHING, Bools, Columns, Intervals, Ints
from training_profiler.trace_analysis.events import OneDevice, TracedEvents, bounds_of, step_at
from training_profiler.trace_analysis.gaps import HOST_STALL, LEAST_SLOW_CALL_NS, NO_IDLE_TIME, Gap
from training_profiler.trace_analysis.launches import ROUNDING_NS

MAIN_PART: Final = 0.5  # of a stall; an event that covers less is not its cause


@dataclass(frozen=True, slots=True)
class Stall:
    """The innermost event that covers most of a stall; "" if no single one does."""

    by: str
    is_first: bool  # before the first run of a kernel: loading it, choosing algorithms, compiling
    section: str = ""  # the innermost annotation that covers most of it
    in_operators: bool = False  # whether operators and calls do, though no single one
    operators: tuple[str, ...] = ()  # the longest of these


NO_STALL: Final = Stall("", False)
MOST_OPERATORS: Final = 2
AGAIN: Final = 0.5  # of a stall; an operator that later stalls for so long, and loads nothing then, does so each time


def stalls_of(events: TracedEvents, gaps: list[Gap]) -> list[Stall]:
    """Return for each gap what holds up the host; ``NO_STALL`` for gaps of other causes."""
    columns, calls = events.columns, events.launches.call
    is_long = columns.length_ns >= MAIN_PART * LEAST_SLOW_CALL_NS
    long = np.flatnonzero(columns.is_of("cpu_op", "cuda_runtime") & is_long)
    main = columns.main_thread
    sections = np.flatnonzero(columns.is_section() & is_long & (columns.thread == main))
    is_first_run = _is_first_run(events)

    @cache
    def active(threads: tuple[int, ...]) -> Intervals:
        return columns.span(columns.is_of("cpu_op", "cuda_runtime") & np.isin(columns.thread, threads))

    found = []
    for gap in gaps:
        if gap.cause != HOST_STALL:
            found.append(NO_STALL)
            continue
        call = NONE if gap.next_row == NONE else int(calls[gap.next_row])
        threads = (main,) if call == NONE else (main, int(columns.thread[call]))
        on_threads = long[np.isin(columns.thread[long], threads)]
        section = columns.name_of(_innermost(columns, sections, gap))
        row = _innermost(columns, on_threads, gap)
        if row == NONE:  # without an operator, nothing shows that a kernel was loaded
            found.append(_of_several(columns, on_threads, active(threads), gap, section))
            continue
        is_first = (
            call != NONE
            and bool(is_first_run[gap.next_row])
            and bool(
                columns.thread[row] == columns.thread[call]
                and columns.begin_ns[row] <= columns.begin_ns[call]
                and columns.end_ns[call] <= columns.end_ns[row] + ROUNDING_NS
            )
        )
        found.append(Stall(columns.name_of(row), is_first, section))
    return _without_habits(found, gaps)


def _inside(columns: Columns, rows: Ints, gap: Gap) -> Ints:
    inside: Ints = np.minimum(columns.end_ns[rows], gap.end_ns) - np.maximum(columns.begin_ns[rows], gap.begin_ns)
    return inside


def _innermost(columns: Columns, rows: Ints, gap: Gap) -> int:
    """Return the shortest event that covers most of the gap, operators before calls; -1 for none."""
    main = rows[_inside(columns, rows, gap) >= MAIN_PART * gap.length_ns]
    is_operator = columns.is_of("cpu_op")[main]
    most = main[is_operator] if is_operator.any() else main
    return int(most[columns.length_ns[most].argmin()]) if len(most) else NONE


def _of_several(columns: Columns, long: Ints, active: Intervals, gap: Gap, section: str) -> Stall:
    """Return the stall of a gap that no single event covers; ``long`` are the longer operators and calls."""
    active_ns = active.within(np.array([gap.begin_ns]), np.array([gap.end_ns]))[0]
    if active_ns < MAIN_PART * gap.length_ns:
        return Stall("", False, section)
    outer: Counter[str] = Counter()
    until_ns = gap.begin_ns
    for row in long[_inside(columns, long, gap) > 0].tolist():  # in order of time
        if columns.end_ns[row] > until_ns:
            begin_ns, end_ns = max(until_ns, int(columns.begin_ns[row])), min(gap.end_ns, int(columns.end_ns[row]))
            outer[columns.name_of(row)] += max(0, end_ns - begin_ns)
            until_ns = int(columns.end_ns[row])
    names = tuple(name for name, ns in outer.most_common(MOST_OPERATORS) if ns)
    return Stall("", False, section, True, names)


def _is_first_run(events: TracedEvents) -> Bools:
    """Return which events are the first run of a kernel, or fill its workspace: the same operator launched both."""
    columns, operator = events.columns, events.launches.operator
    kernels = np.flatnonzero(columns.is_of("kernel"))
    is_first = np.zeros(len(columns.begin_ns), np.bool_)
    is_first[kernels[np.unique(columns.name[kernels], return_index=True)[1]]] = True  # rows are in order of time
    operators = operator[is_first]
    fills = columns.is_of("gpu_memset") & np.isin(operator, operators[operators != NONE])
    return is_first | fills


def _without_habits(stalls: list[Stall], gaps: list[Gap]) -> list[Stall]:
    """Return the stalls; what holds up the host again later, before a kernel that has run, does not load one."""
    longest_later_ns: dict[str, int] = {}
    kept = []
    for stall, gap in reversed(list(zip(stalls, gaps, strict=True))):
        is_habit = longest_later_ns.get(stall.by, 0) >= AGAIN * gap.length_ns
        kept.append(replace(stall, is_first=False) if stall.is_first and is_habit else stall)
        if stall.by and not stall.is_first:
            longest_later_ns[stall.by] = max(longest_later_ns.get(stall.by, 0), gap.length_ns)
    return kept[::-1]


MOST_OF_GAP: Final = 0.5


@dataclass(frozen=True, slots=True)
class AttributedGap:
    """A gap with the names around it; "" unknown."""

    gap: Gap
    next_name: str  # the work that ended it
    operator: str  # launched that work
    section: str  # contains the launch
    step: str  # contains the begin of the gap
    module: str  # the innermost nn.Module that the host was in for longer than in any other
    line: str  # the same for lines of the program
    module_part: float  # of the gap, 0 to 1
    line_part: float
    follows_read: bool  # whether the host was reading a value from the device when the gap began
    in_scope_ns: int  # the part of the gap that lies in steps, or in the recording if it has none
    stall: Stall

    def ns_of(self, *causes: str) -> int:
        """Return how much of it lies within the scope and has one of these causes."""
        return round(self.in_scope_ns * self.gap.share_of(*causes))

    @property
    def where(self) -> str:
        """The module and the line, as "in Linear_0 (model/net.py:41 in forward)"; "" if both are unknown.

        What has less than half of the gap has its share beside it. What the program did not cause is in no place.
        """
        if self.gap.cause in NO_IDLE_TIME:
            return ""
        line, module = shortened_line(self.line), self.module
        of_line, of_module = (
            "" if part >= MOST_OF_GAP else f"{part:.0%} of it" for part in (self.line_part, self.module_part)
        )
        if not module:
            return line and f"at {line}{of_line and f' ({of_line})'}"
        inner = filter(None, (of_module, line and ", ".join(filter(None, (line, of_line)))))
        return f"in {module}{f' ({within})' if (within := '; '.join(inner)) else ''}"


class IdleTimes(NamedTuple):
    """The idle times of all devices, and where in the code time goes."""

    gaps: tuple[AttributedGap, ...]  # those of at least 30 us, in order of time
    edges: tuple[AttributedGap, ...]  # the same before a device's first work in steps and after its last
    ns_by_cause: dict[str, int]  # of both within the scope; of several devices the sum
    code: CodePlaces


def idle_times(
    events: TracedEvents, devices: tuple[OneDevice, ...], unseen: Intervals, reads: Ints, *, takes_turns: bool
) -> IdleTimes:
    """Return the idle times of all devices with the names around them.

    ``unseen`` is when a device did what is not recorded; ``reads`` are the operators that read from the device.
    """
    around = gaps.Around(events, unseen, events.device.busy if takes_turns else NOTHING)
    idle: list[tuple[Gap, bool]] = []  # each with whether it is between two works
    for device in devices:
        idle += [(gap, True) for gap in gaps.long_gaps(around, device)]
        idle += [(edge, False) for edge in gaps.edge_gaps(around, device)]
    idle.sort(key=lambda found: (found[0].begin_ns, found[0].device))
    is_counted = np.array([is_between and gap.cause not in NO_IDLE_TIME for gap, is_between in idle], np.bool_)
    columns, launches, scope = events.columns, events.launches, events.scope
    long = [gap for gap, _ in idle]
    code = code_places(events, long, is_counted)
    begins, ends = bounds_of(long)
    order = np.argsort(columns.end_ns[reads])
    read = np.searchsorted(columns.end_ns[reads][order], begins, side="right")  # the first that ends after the begin
    follows = np.append(columns.begin_ns[reads][order], np.iinfo(np.int64).max)[read] <= begins
    labels = ("", *(step.name for step in scope.parts))
    nowhere = (NOWHERE,) * len(long)
    found: dict[bool, list[AttributedGap]] = {True: [], False: []}
    by_cause: Counter[str] = Counter()
    for (gap, is_between), step, module, line, is_after, within_ns, stall in zip(
        idle,
        step_at(scope.parts, begins).tolist(),
        code.modules.of_gaps or nowhere,
        code.lines.of_gaps or code.sampled.of_gaps or nowhere,
        follows.tolist(),
        scope.windows.within(begins, ends).tolist(),
        stalls_of(events, long),
        strict=True,
    ):
        for cause, share in gap.shares:
            by_cause[cause] += round(share * within_ns)
        work = gap.next_row
        by, section = (NONE if work == NONE else int(of[work]) for of in (launches.operator, launches.section))
        names = columns.name_of(work), columns.name_of(by), columns.name_of(section), labels[step + 1]
        where = module.name, line.name, module.part, line.part
        found[is_between].append(AttributedGap(gap, *names, *where, is_after, within_ns, stall))
    return IdleTimes(tuple(found[True]), tuple(found[False]), dict(by_cause), code)
