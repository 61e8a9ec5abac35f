"""Where in the code time goes, on the host, on the device and in gaps; idle times, and what holds up the host then."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from training_profiler.base.sections import CLOCK_MARK
from training_profiler.trace_analysis.columns import NONE, NOTHING, Bools, Columns, Intervals, Ints, numbered, summed
from training_profiler.trace_analysis.events import CallTimes, OneDevice, TracedEvents, bounds_of, step_at
from training_profiler.trace_analysis.gaps import (
    HOST_STALL,
    LEAST_SLOW_CALL_NS,
    NO_IDLE_TIME,
    Around,
    Gap,
    edge_gaps,
    long_gaps,
)
from training_profiler.trace_analysis.launches import ROUNDING_NS, Launches, nesting_of

_LIBRARY: Final = re.compile(r"(^|/)(?:torch|training_profiler)/")
_STANDARD: Final = re.compile(r"/lib/python3[^/]*/(?!site-packages/|dist-packages/)")
_FROZEN: Final = "<frozen "


def is_of_program(file: str) -> bool:
    """Return whether a file is the program's own or one of its libraries; torch writes paths below ``sys.path``."""
    if _LIBRARY.search(file) or _STANDARD.search(file) or file.startswith(_FROZEN):
        return False
    top = file.partition("/")[0]
    return top.removesuffix(".py") not in sys.stdlib_module_names


_MODULE: Final = "nn.Module: "
FRAME: Final = re.compile(r"(.+)\((\d+)\): (.+)")


# Where the host was in a gap for longer than in any other place ("" for none), and the part of the gap, 0 to 1, or of
# its samples if lines were sampled.
GapPlace = tuple[str, float]
NOWHERE: Final = ("", 0.0)


@dataclass(frozen=True, slots=True)
class TracedPlaces:
    """The places of one kind, the longest on the host first.

    On each thread and each device, a moment has one place: the innermost. Of works that overlap, it is the newest.
    """

    rows: tuple[CallTimes, ...] = ()
    elsewhere_idle_ns: int = 0  # of gaps, while no place was open


@dataclass(frozen=True, slots=True)
class TracedLine:
    """A line of the program, as often as our own captures sampled it on the thread of the loop."""

    name: str
    samples: int
    in_gaps: int  # of them, in gaps of 30 us or more, until the next work is launched


@dataclass(frozen=True, slots=True)
class CodePlaces:
    """The places of a trace by kind; a kind that was not recorded has no rows."""

    sections: TracedPlaces
    modules: TracedPlaces
    lines: TracedPlaces
    sampled: tuple[TracedLine, ...]  # the most frequent first


def code_places(events: TracedEvents, gaps: Sequence[Gap]) -> tuple[CodePlaces, list[Gap]]:
    """Return the places of the code, as far as the trace has annotations, modules and stacks.

    All ``gaps``, in order of time, are returned with a module and a line; the sums of the places have those between two
    works.
    """
    is_counted = np.array([not gap.is_edge and gap.cause not in NO_IDLE_TIME for gap in gaps], np.bool_)
    columns, launches = events.columns, events.launches
    ns = np.zeros(len(columns.begin_ns), np.int64)
    works = columns.is_gpu()
    for device in np.unique(columns.device[works]).tolist():
        np.add.at(ns, *columns.timeline(works & (columns.device == device)).spent())
    device_ns = ns

    def places(labels: Sequence[str], label: Ints) -> tuple[TracedPlaces, list[GapPlace]]:
        return _places(replace(columns, names=tuple(labels), name=label), launches, gaps, is_counted, device_ns)

    is_mark = columns.named(lambda name: name.startswith(CLOCK_MARK))
    of_sections = np.where(columns.is_section() & ~is_mark, columns.name, NONE)
    names = [name.removeprefix(_MODULE) if name.startswith(_MODULE) else "" for name in columns.names]
    of_script = columns.script_modules
    modules = _numbered_of_functions(columns, names) or _numbered(of_script.texts, of_script.index)
    (sections, _), (found, of_modules) = places(columns.names, of_sections), places(*modules)
    (lines, of_lines), (sampled, of_samples) = places(*_lines(columns)), _sampled(columns, launches, gaps, is_counted)
    nowhere = [NOWHERE] * len(gaps)
    both = zip(gaps, of_modules or nowhere, of_lines or of_samples or nowhere, strict=True)
    placed = [
        replace(gap, module=module, module_part=part, line=line, line_part=line_part)
        for gap, (module, part), (line, line_part) in both
    ]
    return CodePlaces(sections, found, lines, sampled), placed


def _sampled(
    columns: Columns, launches: Launches, gaps: Sequence[Gap], is_counted: Bools
) -> tuple[tuple[TracedLine, ...], list[GapPlace]]:
    at_ns, line = columns.samples.at_ns, columns.samples.line
    if not len(at_ns):
        return (), []
    begin_ns, launched_ns = _host_part(columns, launches, gaps)
    first, end = np.searchsorted(at_ns, begin_ns), np.searchsorted(at_ns, launched_ns)
    names = columns.samples.lines
    of_gaps = []
    for at, until in zip(first.tolist(), end.tolist(), strict=True):
        counts = np.bincount(line[at:until], minlength=1)
        most = int(counts.argmax())
        of_gaps.append((names[most], int(counts[most]) / (until - at)) if at < until else NOWHERE)
    is_in_gap = Intervals.of(begin_ns[is_counted], launched_ns[is_counted]).within(at_ns, at_ns + 1) > 0
    samples = np.bincount(line, minlength=len(names)).tolist()
    in_gaps = np.bincount(line[is_in_gap], minlength=len(names)).tolist()
    rows = [TracedLine(*row) for row in zip(names, samples, in_gaps, strict=True)]
    return tuple(sorted(rows, key=lambda row: (-row.samples, row.name))), of_gaps


def _host_part(columns: Columns, launches: Launches, gaps: Sequence[Gap]) -> tuple[Ints, Ints]:
    """Return the part of each gap until the end of the call that launches the next work; all of it if unknown."""
    begin_ns, end_ns = bounds_of(gaps)
    call = launches.calls_of(np.array([gap.next_row for gap in gaps], np.int64))
    return begin_ns, np.where(call == NONE, end_ns, np.clip(columns.end_ns[call], begin_ns, end_ns))


def _lines(columns: Columns) -> tuple[list[str], Ints]:
    found = _numbered_of_functions(columns, [line_of(name) for name in columns.names])
    if found is not None:
        return found
    # The innermost frame comes first.
    texts = [next(filter(None, map(line_of, stack.split(";"))), "") for stack in columns.call_stacks.texts]
    is_known = columns.is_of("cpu_op") | columns.is_section()  # a step has the line that ended the one before
    return _numbered(texts, np.where(is_known, columns.call_stacks.index, NONE))


def line_of(frame: str) -> str:
    """Return a frame as "train.py:41 in main"; "" if it is not of the program.

    Of a function, a trace has the line of its definition; of operators with a call stack, the line that runs.
    """
    match = FRAME.fullmatch(frame)
    if match is None:
        return ""
    file = match[1].replace("\\", "/")
    return f"{file}:{match[2]} in {match[3]}" if is_of_program(file) else ""


def _numbered_of_functions(columns: Columns, texts: Sequence[str]) -> tuple[list[str], Ints] | None:
    is_function = columns.is_of("python_function")
    labels, label = _numbered(texts, np.where(is_function, columns.name, NONE))
    return (labels, label) if (label != NONE).any() else None


def _numbered(texts: Sequence[str], text: Ints) -> tuple[list[str], Ints]:
    """Return the distinct texts, and the index of that of each event; an empty text is none."""
    labels, index = numbered(texts)
    index = np.where([bool(label) for label in labels], np.arange(len(labels)), NONE)[index] if len(labels) else index
    return labels, np.append(index, NONE)[text]


def _places(
    columns: Columns, launches: Launches, gaps: Sequence[Gap], is_counted: Bools, device_ns: Ints
) -> tuple[TracedPlaces, list[GapPlace]]:
    """Return the times of the places, and the place of each gap; ``columns`` has places instead of names."""
    which = columns.name != NONE
    if not which.any():
        return TracedPlaces(), []
    stacks = _Stacks(columns, which)
    size = len(columns.names)
    # A place within itself is one whatever it is: an operator in an annotation on the same line, for example.
    nesting = nesting_of(replace(columns, category=np.full_like(columns.category, NONE)), which)
    by = launches.by
    works = np.flatnonzero((device_ns > 0) & (by != NONE))
    at = stacks.at(columns.thread[by[works]], columns.begin_ns[by[works]])
    own_ns = summed(at[at != NONE], device_ns[works][at != NONE], len(device_ns))
    total_ns = nesting.with_children(own_ns)
    rows = np.flatnonzero(which)
    outer = rows[nesting.outermost(columns.name)[rows]]
    of_gaps, idle_ns, elsewhere_ns = _idle(columns, stacks, launches, gaps, is_counted)
    own_places, spent_ns = (
        np.concatenate(both) for both in zip(*(line.spent() for line in stacks.timelines.values()), strict=True)
    )
    sums = (
        summed(columns.name[own_places], spent_ns, size),
        *(
            summed(columns.name[of], values[of], size)
            for of, values in ((outer, columns.length_ns), (rows, own_ns), (outer, total_ns))
        ),
        idle_ns,
    )
    calls = np.bincount(columns.name[rows], minlength=size).tolist()
    listed = [
        CallTimes(columns.names[i], calls[i], *values)
        for i, values in enumerate(zip(*(values.tolist() for values in sums), strict=True))
        if calls[i]
    ]
    listed.sort(key=lambda place: (-place.host_total_ns, place.name))
    return TracedPlaces(tuple(listed), elsewhere_ns), of_gaps


class _Stacks:
    def __init__(self, columns: Columns, which: Bools) -> None:
        self._main = columns.main_thread
        self.timelines = {
            thread: columns.timeline(which & (columns.thread == thread))
            for thread in {self._main, *columns.thread[which].tolist()}
        }

    def at(self, threads: Ints, at_ns: Ints) -> Ints:
        """Return the row of the place, else of that on the thread of the loop, which waits for others; -1 for none."""
        row = self.timelines[self._main].at(at_ns)
        for thread, timeline in self.timelines.items():
            is_on = threads == thread
            inner = timeline.at(at_ns[is_on])
            row[is_on] = np.where(inner != NONE, inner, row[is_on])
        return row

    def changes_ns(self, thread: int) -> Ints:
        """Return when the place may change on that thread or on the thread of the loop."""
        timelines = (self.timelines.get(number) for number in (thread, self._main))
        return np.concatenate([timeline.begin_ns for timeline in timelines if timeline is not None])


def _idle(
    columns: Columns, stacks: _Stacks, launches: Launches, gaps: Sequence[Gap], is_counted: Bools
) -> tuple[list[GapPlace], Ints, int]:
    """Return the place of most of each gap, the idle time of each place in those that count, and that of none.

    A gap belongs to the places that the host is in until the end of the call that launches the next work, and from then
    on to the place of that call.
    """
    size = len(columns.names)
    gap, row, ns = _pieces(columns, stacks, launches, gaps)
    label = np.where(row == NONE, NONE, columns.name[row])
    idle_ns = summed(label, np.where(is_counted[gap], ns, 0), size + 1)  # the last is of no place
    places: list[Counter[int]] = [Counter() for _ in gaps]
    for which, place, length_ns in zip(gap.tolist(), label.tolist(), ns.tolist(), strict=True):
        places[which][place] += length_ns
    of_gaps = []
    for found in places:
        place, most_ns = max(found.items(), key=lambda item: item[::-1], default=(NONE, 0))
        of_gaps.append(NOWHERE if place == NONE else (columns.names[place], most_ns / found.total()))
    return of_gaps, idle_ns[:-1], int(idle_ns[-1])


def _pieces(columns: Columns, stacks: _Stacks, launches: Launches, gaps: Sequence[Gap]) -> tuple[Ints, Ints, Ints]:
    end_ns, device, following = (
        np.array([(gap.end_ns, gap.device, gap.next_row) for gap in gaps], np.int64).reshape(-1, 3).T
    )
    begin_ns, launched_ns = _host_part(columns, launches, gaps)
    call = launches.calls_of(following)
    thread = np.where(call == NONE, NONE, columns.thread[call])
    rest = np.flatnonzero(launched_ns < end_ns)
    pieces = [(rest, stacks.at(thread[rest], columns.begin_ns[call[rest]]), (end_ns - launched_ns)[rest])]
    for on_thread, on_device in sorted(set(zip(thread.tolist(), device.tolist(), strict=True))):
        which = np.flatnonzero((thread == on_thread) & (device == on_device))  # these do not overlap
        begins, ends = begin_ns[which], launched_ns[which]
        cuts = np.unique(np.concatenate([stacks.changes_ns(on_thread), begins, ends]))
        cut_ns, length_ns = cuts[:-1], np.diff(cuts)
        inside = np.searchsorted(begins, cut_ns, side="right") - 1
        is_idle = (inside >= 0) & (cut_ns < ends[inside])
        at = stacks.at(np.full(int(is_idle.sum()), on_thread), cut_ns[is_idle])
        pieces.append((which[inside[is_idle]], at, length_ns[is_idle]))
    gap, row, ns = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return gap, row, ns


MAIN_PART: Final = 0.5  # of a stall; an event that covers less is not its cause
MOST_OPERATORS: Final = 2
AGAIN: Final = 0.5  # of a stall; an operator that later stalls for so long, and loads nothing then, does so each time


def _with_stalls(events: TracedEvents, gaps: list[Gap]) -> list[Gap]:
    """Return the gaps, with what holds up the host for each whose cause is a stall."""
    columns, calls = events.columns, events.launches.call
    is_long = columns.length_ns >= MAIN_PART * LEAST_SLOW_CALL_NS
    long = np.flatnonzero(columns.is_of("cpu_op", "cuda_runtime") & is_long)
    main = columns.main_thread
    sections = np.flatnonzero(columns.is_section() & is_long & (columns.thread == main))
    is_first_run = _is_first_run(events)

    @cache
    def active(threads: tuple[int, ...]) -> Intervals:
        return columns.span(columns.is_of("cpu_op", "cuda_runtime") & np.isin(columns.thread, threads))

    found: list[Gap] = []
    longest_later_ns: Counter[str] = Counter()
    for gap in reversed(gaps):
        if gap.cause != HOST_STALL:
            found.append(gap)
            continue
        call = NONE if gap.next_row == NONE else int(calls[gap.next_row])
        threads = (main,) if call == NONE else (main, int(columns.thread[call]))
        on_threads = long[np.isin(columns.thread[long], threads)]
        row = _innermost(columns, on_threads, gap)
        by, is_first = columns.name_of(row), False
        if row != NONE and call != NONE:  # without an operator, nothing shows that a kernel was loaded
            is_first = bool(
                is_first_run[gap.next_row]
                and columns.thread[row] == columns.thread[call]
                and columns.begin_ns[row] <= columns.begin_ns[call]
                and columns.end_ns[call] <= columns.end_ns[row] + ROUNDING_NS
            )
        if by and not is_first:
            longest_later_ns[by] = max(longest_later_ns[by], gap.length_ns)
        # What holds up the host again later, before a kernel that has run, does not load one.
        is_first &= longest_later_ns[by] < AGAIN * gap.length_ns
        names = None if row != NONE else _operators_in(columns, on_threads, active(threads), gap)
        section = columns.name_of(_innermost(columns, sections, gap))
        stall = replace(gap, stall_by=by, is_first_run=is_first, stall_section=section)
        found.append(replace(stall, is_in_operators=names is not None, stall_operators=names or ()))
    return found[::-1]


def _inside(columns: Columns, rows: Ints, gap: Gap) -> Ints:
    inside: Ints = np.minimum(columns.end_ns[rows], gap.end_ns) - np.maximum(columns.begin_ns[rows], gap.begin_ns)
    return inside


def _innermost(columns: Columns, rows: Ints, gap: Gap) -> int:
    """Return the shortest event that covers most of the gap, operators before calls; -1 for none."""
    main = rows[_inside(columns, rows, gap) >= MAIN_PART * gap.length_ns]
    is_operator = columns.is_of("cpu_op")[main]
    most = main[is_operator] if is_operator.any() else main
    return int(most[columns.length_ns[most].argmin()]) if len(most) else NONE


def _operators_in(columns: Columns, long: Ints, active: Intervals, gap: Gap) -> tuple[str, ...] | None:
    """Return the longest operators in a gap that no single event covers; None if all of them cover little of it.

    ``long`` are the longer operators and calls.
    """
    active_ns = active.within(np.array([gap.begin_ns]), np.array([gap.end_ns]))[0]
    if active_ns < MAIN_PART * gap.length_ns:
        return None
    outer: Counter[str] = Counter()
    until_ns = gap.begin_ns
    for row in long[_inside(columns, long, gap) > 0].tolist():  # in order of time
        if columns.end_ns[row] > until_ns:
            begin_ns, end_ns = max(until_ns, int(columns.begin_ns[row])), min(gap.end_ns, int(columns.end_ns[row]))
            outer[columns.name_of(row)] += max(0, end_ns - begin_ns)
            until_ns = int(columns.end_ns[row])
    return tuple(name for name, ns in outer.most_common(MOST_OPERATORS) if ns)


def _is_first_run(events: TracedEvents) -> Bools:
    """Return which events are the first run of a kernel, or fill its workspace: the same operator launched both."""
    columns, operator = events.columns, events.launches.operator
    kernels = np.flatnonzero(columns.is_of("kernel"))
    is_first = np.zeros(len(columns.begin_ns), np.bool_)
    is_first[kernels[np.unique(columns.name[kernels], return_index=True)[1]]] = True  # rows are in order of time
    operators = operator[is_first]
    fills = columns.is_of("gpu_memset") & np.isin(operator, operators[operators != NONE])
    return is_first | fills


def idle_times(
    events: TracedEvents, devices: tuple[OneDevice, ...], unseen: Intervals, reads: Ints, *, takes_turns: bool
) -> tuple[list[Gap], CodePlaces]:
    """Return the idle times of all devices with the names around them, in order of time, and where time goes.

    ``unseen`` is when a device did what is not recorded; ``reads`` are the operators that read from the device.
    """
    around = Around(events, unseen, events.device.busy if takes_turns else NOTHING)
    found = [gap for device in devices for find in (long_gaps, edge_gaps) for gap in find(around, device)]
    found.sort(key=lambda gap: (gap.begin_ns, gap.device))
    columns, launches, scope = events.columns, events.launches, events.scope
    begins, ends = bounds_of(found)
    order = np.argsort(columns.end_ns[reads])
    read = np.searchsorted(columns.end_ns[reads][order], begins, side="right")  # the first that ends after the begin
    follows = np.append(columns.begin_ns[reads][order], np.iinfo(np.int64).max)[read] <= begins
    steps, in_scope_ns = step_at(scope.parts, begins), scope.windows.within(begins, ends)
    named = []
    for gap, step, is_after, within_ns in zip(
        found, steps.tolist(), follows.tolist(), in_scope_ns.tolist(), strict=True
    ):
        work = gap.next_row
        by, section = (NONE if work == NONE else int(of[work]) for of in (launches.operator, launches.section))
        named.append(
            replace(
                gap,
                at_ns=gap.begin_ns - events.extent[0],
                next_name=columns.name_of(work),
                operator=columns.name_of(by),
                section=columns.name_of(section),
                step="" if step == NONE else scope.parts[step].name,
                follows_read=is_after,
                in_scope_ns=within_ns,
            )
        )
    code, placed = code_places(events, _with_stalls(events, named))
    return placed, code
