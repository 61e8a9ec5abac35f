"""Where in the code time goes: by section, nn.Module and line, on the host, on the device and in gaps."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from training_profiler.base.sections import CLOCK_MARK
from training_profiler.trace_analysis.columns import NONE, Bools, Columns, Intervals, Ints, numbered, summed
from training_profiler.trace_analysis.events import TracedEvents, bounds_of
from training_profiler.trace_analysis.gaps import Gap
from training_profiler.trace_analysis.launches import Launches, nesting_of

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


@dataclass(frozen=True, slots=True)
class PlaceTimes:
    """One place of the code; ns. On each thread and each device, a moment has one place: the innermost."""

    name: str
    calls: int
    host_self_ns: int  # in no inner place; the sum over threads
    host_total_ns: int  # a place within itself counts once
    device_self_ns: int  # of work launched there; where works overlap, of the newest
    device_total_ns: int
    idle_ns: int  # of the gaps of 30 us or more


class GapPlace(NamedTuple):
    """Where the host was in a gap for longer than in any other place."""

    name: str  # "" for no place
    part: float  # of the gap, 0 to 1; of its samples, if lines were sampled


NOWHERE: Final = GapPlace("", 0.0)


@dataclass(frozen=True, slots=True)
class TracedPlaces:
    """The places of one kind, the longest on the host first."""

    rows: tuple[PlaceTimes, ...] = ()
    of_gaps: tuple[GapPlace, ...] = ()
    elsewhere_idle_ns: int = 0  # of gaps, while no place was open


@dataclass(frozen=True, slots=True)
class TracedLine:
    """A line of the program, as often as it was sampled on the thread of the loop."""

    name: str
    samples: int
    in_gaps: int  # of them, in gaps of 30 us or more, until the next work is launched


@dataclass(frozen=True, slots=True)
class SampledLines:
    """Lines as our own captures sample them, the most frequent first."""

    rows: tuple[TracedLine, ...] = ()
    of_gaps: tuple[GapPlace, ...] = ()  # sampled most often in each gap


@dataclass(frozen=True, slots=True)
class CodePlaces:
    """The places of a trace by kind; a kind that was not recorded has no rows."""

    sections: TracedPlaces
    modules: TracedPlaces
    lines: TracedPlaces
    sampled: SampledLines


def code_places(events: TracedEvents, gaps: Sequence[Gap], is_counted: Bools) -> CodePlaces:
    """Return the places of the code, as far as the trace has annotations, modules and stacks.

    All ``gaps``, in order of time, have a place; those of ``is_counted`` are in the sums of the places.
    """
    columns, launches = events.columns, events.launches
    ns = np.zeros(len(columns.begin_ns), np.int64)
    works = columns.is_gpu()
    for device in np.unique(columns.device[works]).tolist():
        np.add.at(ns, *columns.timeline(works & (columns.device == device)).spent())
    device_ns = ns

    def places(labels: Sequence[str], label: Ints) -> TracedPlaces:
        return _places(replace(columns, names=tuple(labels), name=label), launches, gaps, is_counted, device_ns)

    is_mark = columns.named(lambda name: name.startswith(CLOCK_MARK))
    of_sections = np.where(columns.is_section() & ~is_mark, columns.name, NONE)
    names = [name.removeprefix(_MODULE) if name.startswith(_MODULE) else "" for name in columns.names]
    of_script = columns.script_modules
    modules = _numbered_of_functions(columns, names) or _numbered(of_script.texts, of_script.index)
    return CodePlaces(
        places(columns.names, of_sections),
        places(*modules),
        places(*_lines(columns)),
        _sampled(columns, launches, gaps, is_counted),
    )


def _sampled(columns: Columns, launches: Launches, gaps: Sequence[Gap], is_counted: Bools) -> SampledLines:
    at_ns, line = columns.samples.at_ns, columns.samples.line
    if not len(at_ns):
        return SampledLines()
    begin_ns, launched_ns = _host_part(columns, launches, gaps)
    first, end = np.searchsorted(at_ns, begin_ns), np.searchsorted(at_ns, launched_ns)
    names = columns.samples.lines
    of_gaps = tuple(
        _sampled_most(names, line[at:until]) if at < until else NOWHERE
        for at, until in zip(first.tolist(), end.tolist(), strict=True)
    )
    is_in_gap = Intervals.of(begin_ns[is_counted], launched_ns[is_counted]).within(at_ns, at_ns + 1) > 0
    samples = np.bincount(line, minlength=len(names)).tolist()
    in_gaps = np.bincount(line[is_in_gap], minlength=len(names)).tolist()
    rows = [TracedLine(*row) for row in zip(names, samples, in_gaps, strict=True)]
    return SampledLines(tuple(sorted(rows, key=lambda row: (-row.samples, row.name))), of_gaps)


def _sampled_most(names: Sequence[str], line: Ints) -> GapPlace:
    counts = np.bincount(line)
    return GapPlace(names[int(counts.argmax())], int(counts.max()) / len(line))


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


def shortened_line(line: str) -> str:
    """Return a line with its file and the folder of that alone."""
    return "/".join(line.split("/")[-2:])


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
) -> TracedPlaces:
    """Return the times of the places; ``columns`` has them in place of names."""
    which = columns.name != NONE
    if not which.any():
        return TracedPlaces()
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
        PlaceTimes(columns.names[i], calls[i], *values)
        for i, values in enumerate(zip(*(values.tolist() for values in sums), strict=True))
        if calls[i]
    ]
    listed.sort(key=lambda place: (-place.host_total_ns, place.name))
    return TracedPlaces(tuple(listed), of_gaps, elsewhere_ns)


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
) -> tuple[tuple[GapPlace, ...], Ints, int]:
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
        of_gaps.append(NOWHERE if place == NONE else GapPlace(columns.names[place], most_ns / found.total()))
    return tuple(of_gaps), idle_ns[:-1], int(idle_ns[-1])


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
