"""The spans of one thread's events, who owns each moment, and the time of each step.

The time axis of the training thread is cut into steps and the time outside them. Enters and exits of a thread are
matched to spans; each moment belongs to the section entered last of those still open.
"""

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from training_profiler.base.sections import OUTSIDE_SECTIONS, PROFILER, WITHIN, SectionNames
from training_profiler.recording.event_codes import (
    DISCARDED,
    EPOCH_BEGIN,
    EPOCH_END,
    LOOP_BEGIN,
    SECTION_MASK,
    STEP_END,
    TIME_ONLY,
)
from training_profiler.statistics.arrays import Bools, Ints, sums_by

_Columns = TypeVar("_Columns", bound=tuple[Any, ...])
Flat = Any  # integers: a list, or memory of the recorder in C
MAX_OPEN = 1000  # open sections of a thread; beyond it the oldest is dropped and counted
OUTSIDE = -1


class Events(NamedTuple):
    """A thread's enters (code = section id) and exits (code = -id) in time order."""

    times_ns: Ints
    codes: Ints  # may carry TIME_ONLY

    def where(self, rows: Ints | Bools) -> "Events":
        """Return some of the events."""
        return Events(self.times_ns[rows], self.codes[rows])


NO_EVENTS: Final = Events(np.empty(0, np.int64), np.empty(0, np.int64))


class Cuts(NamedTuple):
    """Consecutive pieces of time: piece i ends at ``ends_ns[i]`` and belongs to step ``steps[i]``."""

    ends_ns: Ints
    steps: Ints  # number of the step, counted from 0; OUTSIDE for none
    not_steps: list[int]  # pieces at whose end the open step turns out not to be one
    last_end: int  # the last piece that a step or its epoch ends with; -1 for none


class StepTimeline:
    """Assigns each moment to a training step, or to the time outside steps.

    A step lasts from the end of the previous step to its own end. The first begins with its epoch, or without epochs
    with the first section, so that building the model is not part of it; a mark that the loop begins may come again,
    because the model was called while it was built. Time after the last step of an epoch is outside steps.
    """

    def __init__(self) -> None:
        self.steps = 0  # complete steps
        self._is_inside = False
        self.has_begun = False
        self.begun_ns: int | None = None  # when the first step began
        self._may_begin_later = False  # it began with a section, which may not be part of it

    def cut(self, marks: Events, first_section_ns: int | None, until_ns: int) -> Cuts:
        """Return the pieces up to ``until_ns``.

        Args:
            marks: in time order; their codes are their kinds.
            first_section_ns: begin of the training thread's first section in this stretch.
            until_ns: end of the last piece.
        """
        # One step follows another, as in most batches, of which each may have thousands.
        if self._is_inside and (marks.codes == STEP_END).all():
            ends = np.append(marks.times_ns, until_ns)
            self.steps += len(marks.codes)
            ended = len(marks.codes)
            return Cuts(ends, np.arange(self.steps - ended, self.steps + 1, dtype=np.int64), [], ended - 1)
        ends_ns: list[int] = []
        steps: list[int] = []
        not_steps: list[int] = []
        last_end = -1

        def end_piece(end_ns: int) -> None:
            ends_ns.append(end_ns)
            steps.append(self.steps if self._is_inside else OUTSIDE)

        kinds: list[int | None] = [*marks.codes.tolist(), None]
        for kind, mark_ns in zip(kinds, [*marks.times_ns.tolist(), until_ns], strict=True):
            if not self.has_begun and first_section_ns is not None and first_section_ns <= mark_ns:
                end_piece(first_section_ns)
                self._is_inside = self.has_begun = True
                self.begun_ns = first_section_ns
                self._may_begin_later = True
            if kind == STEP_END:
                self._is_inside = self.has_begun = True
            end_piece(mark_ns)
            if kind == LOOP_BEGIN and self._may_begin_later:
                not_steps.append(len(ends_ns) - 1)
                self.begun_ns = mark_ns
            self._may_begin_later = kind in (None, LOOP_BEGIN) and (self._may_begin_later or kind == LOOP_BEGIN)
            if self.begun_ns is None and kind in (LOOP_BEGIN, EPOCH_BEGIN):
                self.begun_ns = mark_ns
            if kind == LOOP_BEGIN:
                self._is_inside = self.has_begun = True
            elif kind == STEP_END:
                self.steps += 1
            elif kind in (EPOCH_BEGIN, EPOCH_END):
                if self._is_inside:
                    not_steps.append(len(ends_ns) - 1)
                self._is_inside = kind == EPOCH_BEGIN
                self.has_begun = True
            if kind == STEP_END or (kind == EPOCH_END and self.steps):
                last_end = len(ends_ns) - 1
        return Cuts(np.array(ends_ns, np.int64), np.array(steps, np.int64), not_steps, last_end)


class SectionKinds:
    """A number for each section, also of names that are added later.

    Args:
        names: of the sections by their ids.
        kind_of: returns the number for a name; that of no section is "".
    """

    def __init__(self, names: SectionNames, kind_of: Callable[[str], int]) -> None:
        self._names, self._kind_of = names, kind_of
        self._kinds = np.zeros(0, np.int64)
        self._known = 0  # number of names in the table

    def of(self, ids: Ints) -> Ints:
        """Return the numbers of these sections, in a new array."""
        if self._known != len(self._names.names):
            known = list(self._names.names.items())  # the training thread may add names meanwhile
            self._known = len(known)
            self._kinds = np.zeros(max(id for id, _ in known) + 1, np.int64)
            for id, name in known:
                self._kinds[id] = self._kind_of(name)
        return self._kinds[ids]


class OutsideSections(SectionKinds):
    """Which sections are outside training steps, such as validation."""

    def __init__(self, names: SectionNames) -> None:
        super().__init__(names, OUTSIDE_SECTIONS.__contains__)

    def rename(self, outer: int, id: int) -> int:
        """Return the id for section ``id`` inside section ``outer``, such as the forward pass of validation."""
        names = self._names.names
        return id if names[id] == PROFILER else self._names.id_of(names[outer] + WITHIN + names[id])


class EndedSpans(NamedTuple):
    """The spans that ended, one row each: first most of those without others inside, then all others."""

    ids: Ints
    begin_ns: Ints
    end_ns: Ints
    durations_ns: Ints
    parents: Ints  # section id of the enclosing span, 0 for none
    pieces: Ints  # the piece of time that each begins in, see ``Cuts``
    is_outside: Bools  # whether it is a section outside training steps, or inside one
    is_counted: Bools  # False for spans that add to the time of their section, but not to its count

    def first_ns(self, ids: Ints) -> int | None:
        """Return the duration of the first span of these sections; None without any."""
        rows = np.concatenate([np.flatnonzero(self.ids == id) for id in ids.tolist()] or [ids])
        if not len(rows):
            return None
        return int(self.durations_ns[rows[np.lexsort((self.durations_ns[rows], self.begin_ns[rows]))[0]]])


class OwnTime(NamedTuple):
    """Whose time it is: all of a batch, one row for a part of it that lies in one piece, or some moments."""

    owners: Ints  # section id, 0 for none
    is_outside: Bools  # whether the owner is a section outside training steps, or inside one
    pieces: Ints  # of time, see ``Cuts``
    durations_ns: Ints


class Stretches(NamedTuple):
    """Consecutive stretches that together cover the time of a batch, with leaves in them; none crosses a cut."""

    begin_ns: Ints
    own: OwnTime  # without leaves
    leaves: EndedSpans

    def at(self, times_ns: Ints) -> OwnTime:
        """Return who owns each moment; one that is known too late counts at the begin of the batch."""
        times_ns = np.maximum(times_ns, self.begin_ns[0])
        at = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        found = OwnTime(*(each[at] for each in self.own))  # type: ignore[arg-type] # as they come
        leaf = np.searchsorted(self.leaves.begin_ns, times_ns, side="right") - 1
        rows = np.flatnonzero(times_ns < np.append(self.leaves.end_ns, np.iinfo(np.int64).min)[leaf])
        found.owners[rows], found.is_outside[rows] = self.leaves.ids[leaf[rows]], self.leaves.is_outside[leaf[rows]]
        return found


class ThreadBlock(NamedTuple):
    """The spans of one thread in a batch, and who owns each moment of it."""

    spans: EndedSpans
    own: OwnTime
    stretches: Stretches
    still_open: Events
    dropped: int  # exits without an enter, and enters beyond MAX_OPEN


_Table = tuple[Ints, Ints, Ints, Ints, Ints, Bools]  # of spans: ids, begins, ends, parents, outer ids, counted


class _Matched(NamedTuple):
    """The result of matching the events outside leaves."""

    table: _Table
    owners: Ints  # owners[i] owns the time from event i on but for leaves, 0 for none
    owner_outer_ids: Ints  # id of the owner's outermost section outside steps, which may be its own; 0 for none
    still_open: Events
    dropped: int


def read_events(flat: Flat) -> Events:
    """Return the recorder's times and codes, which lie in turns, as two arrays."""
    if isinstance(flat, list):
        integers: Ints = np.fromiter(flat, np.int64, len(flat))
    else:  # of the recorder in C: read in place
        integers = np.frombuffer(flat, np.int64)
    pairs = integers.reshape(-1, 2)
    times_ns, codes = np.ascontiguousarray(pairs.T)
    # A clock may step back between cores, which would give negative durations. To look is a fraction of the work.
    if (times_ns[1:] < times_ns[:-1]).any():
        times_ns = np.maximum.accumulate(times_ns)
    return Events(times_ns, codes)


def attribute(events: Events, still_open: Events, ends_ns: Ints, from_ns: int, outside: OutsideSections) -> ThreadBlock:
    """Return the spans of a block of one thread's events, in time order, and who owns each moment.

    Time belongs to the section entered last of those still open. So each moment has one owner, and self times add up
    exactly.

    Args:
        events: of the block, in time order.
        still_open: that of the thread's block before.
        ends_ns: ends of the pieces of time since ``from_ns``.
        from_ns: begin of the first piece.
        outside: the sections outside training steps.
    """
    (times_ns, codes), still_open = _without_discarded(events, still_open)
    # An exit that directly follows its enter ends a leaf, a span without others inside. Most are, and need no matching.
    is_leaf = np.zeros(len(codes) + 1, np.bool_)  # what the row before enters
    np.logical_and(codes[:-1] + codes[1:] == 0, codes[:-1] > 0, out=is_leaf[1 : len(codes)])
    is_leaf[np.searchsorted(times_ns, ends_ns[:-1])] = False  # it may cross a cut
    enters = np.flatnonzero(is_leaf) - 1
    nested = _joined(still_open, Events(times_ns, codes).where(np.flatnonzero(~(is_leaf[1:] | is_leaf[:-1]))))
    matched = _match_nested(*nested, outside)
    if matched is None or len(matched.still_open.codes) > MAX_OPEN:
        matched = _match_any_order(*nested, outside)
    owners, outer_ids = (np.concatenate([[0], each]) for each in (matched.owners, matched.owner_outer_ids))
    latest = len(still_open.codes) + enters - 2 * np.arange(len(enters))  # event outside leaves, counted from 1
    plain, outers = codes[enters] & SECTION_MASK, outer_ids[latest]
    leaves = _spans(
        (
            _renamed(plain, outers, outside.rename),
            times_ns[enters],
            times_ns[enters + 1],
            owners[latest],
            outers | outside.of(plain),
            (codes[enters] & TIME_ONLY) == 0,
        ),
        ends_ns,
    )
    spans = _joined(leaves, _spans(matched.table, ends_ns))
    begin_ns, event, pieces = _stretches(nested.times_ns, ends_ns, from_ns)
    in_leaves_ns = np.maximum(leaves.end_ns, from_ns) - np.maximum(leaves.begin_ns, from_ns)
    until_ns = max(ends_ns[-1:].tolist() + times_ns[-1:].tolist())
    durations_ns = np.diff(begin_ns, append=until_ns) - sums_by(latest + leaves.pieces, in_leaves_ns, len(pieces))
    apart = OwnTime(owners[event], outer_ids[event] > 0, pieces, durations_ns)
    own = _joined(OwnTime(leaves.ids, leaves.is_outside, leaves.pieces, in_leaves_ns), apart)
    return ThreadBlock(spans, own, Stretches(begin_ns, apart, leaves), matched.still_open, matched.dropped)


def _joined(first: _Columns, second: _Columns) -> _Columns:
    return type(first)(*map(np.concatenate, zip(first, second, strict=True)))


def _spans(table: _Table, ends_ns: Ints) -> EndedSpans:
    ids, begin_ns, end_ns, parents, outer_ids, is_counted = table
    pieces = np.minimum(np.searchsorted(ends_ns, begin_ns, side="right"), len(ends_ns) - 1)
    return EndedSpans(ids, begin_ns, end_ns, end_ns - begin_ns, parents, pieces, outer_ids > 0, is_counted)


def _stretches(times_ns: Ints, ends_ns: Ints, from_ns: int) -> tuple[Ints, Ints, Ints]:
    """Return the begins of stretches, the event that each begins with or follows (0 is none), and their pieces."""
    in_pieces = np.diff(np.searchsorted(times_ns, ends_ns[:-1]), prepend=0, append=len(times_ns))  # events
    pieces = np.repeat(np.arange(len(ends_ns)), in_pieces + 1)  # each event begins a stretch, and so does each piece
    event = np.arange(len(pieces)) - pieces
    begin_ns = np.concatenate([[0], times_ns])[event]
    begin_ns[np.cumsum(in_pieces + 1) - in_pieces - 1] = [from_ns, *ends_ns[:-1].tolist()]
    return np.maximum(begin_ns, from_ns), event, pieces


def _match_nested(times_ns: Ints, codes: Ints, outside: OutsideSections) -> _Matched | None:
    """Return the spans of properly nested events; None if an exit does not end the innermost section."""
    is_enter = codes > 0
    depth = np.cumsum(np.where(is_enter, 1, -1))
    if len(depth) and (depth.min() < 0 or depth.max() > 30_000):
        return None
    level = (depth + ~is_enter).astype(np.int16)  # numpy sorts 16-bit integers by radix, in linear time
    # Depth changes by one, so enters and exits alternate within a level: neighbours are a span.
    order = np.argsort(level, kind="stable")
    exit_rows = np.flatnonzero(~is_enter[order])
    exits, enters = order[exit_rows], order[exit_rows - 1]
    if not np.array_equal(codes[enters], -codes[exits]):
        return None

    plain = np.where(is_enter, codes & SECTION_MASK, codes)
    parent, outer_ids = _enclosing(plain, is_enter, level, order, outside)
    named = _renamed(plain, outer_ids, outside.rename)
    has_parent = parent >= 0
    parent_ids = np.where(has_parent, named[parent], 0)
    parent_outer_ids = np.where(has_parent, outer_ids[parent], 0)
    owners = np.where(is_enter, named, 0)
    owner_outer_ids = outer_ids.copy()
    owners[exits], owner_outer_ids[exits] = parent_ids[enters], parent_outer_ids[enters]

    open_rows = is_enter.copy()
    open_rows[enters] = False
    is_counted = (codes[enters] & TIME_ONLY) == 0
    table = (named[enters], times_ns[enters], times_ns[exits], parent_ids[enters], outer_ids[enters], is_counted)
    return _Matched(table, owners, owner_outer_ids, Events(times_ns, codes).where(open_rows), 0)


def _enclosing(
    codes: Ints, is_enter: Bools, level: NDArray[np.int16], order: NDArray[np.intp], outside: OutsideSections
) -> tuple[NDArray[np.intp], Ints]:
    """Return for each enter the row of the enclosing enter (-1 for none) and its outer id (see _Matched)."""
    parent = np.full(len(codes), -1, np.intp)
    outer_ids = np.where(outside.of(np.maximum(codes, 0)), codes, 0)
    ends = np.cumsum(np.bincount(level)) if len(level) else np.empty(0, np.int64)
    outer: NDArray[np.intp] = np.empty(0, np.intp)
    for level_begin, level_end in itertools.pairwise(ends):
        rows = order[level_begin:level_end]
        rows = rows[is_enter[rows]]
        if len(outer):
            parent[rows] = outer[np.searchsorted(outer, rows) - 1]
            around = outer_ids[parent[rows]]
            outer_ids[rows] = np.where(around > 0, around, outer_ids[rows])
        outer = rows
    return parent, outer_ids


def _renamed(codes: Ints, outer_ids: Ints, rename: Callable[[int, int], int]) -> Ints:
    """Return the codes, with the ids that sections have inside their outer section."""
    rows = np.flatnonzero(outer_ids > 0)
    rows = rows[(codes[rows] > 0) & (outer_ids[rows] != codes[rows])]
    if not len(rows):
        return codes
    named = codes.copy()
    pairs, inverse = np.unique(outer_ids[rows] << 24 | codes[rows], return_inverse=True)
    named[rows] = np.array([rename(pair >> 24, pair & 0xFFFFFF) for pair in pairs.tolist()], np.int64)[inverse]
    return named


def _without_discarded(events: Events, still_open: Events) -> tuple[Events, Events]:
    """Return both without the spans whose exit is marked as discarded; they may have begun in an earlier batch."""
    if not len(events.codes) or events.codes.min() >= -DISCARDED:
        return events, still_open
    codes = np.concatenate([still_open.codes, events.codes])
    keep = np.ones(len(codes), np.bool_)
    stacks: dict[int, list[int]] = {}
    for row, code in enumerate(codes.tolist()):
        if code > 0:
            stacks.setdefault(code, []).append(row)
        elif code >= -DISCARDED:
            if stacks.get(-code):
                stacks[-code].pop()
        elif stacks.get(-code - DISCARDED):
            keep[[stacks[-code - DISCARDED].pop(), row]] = False
        else:
            keep[row] = False
    keep_open, keep_events = np.split(keep, [len(still_open.codes)])
    return events.where(keep_events), still_open.where(keep_open)


class _OpenSpans(NamedTuple):
    code: int
    id: int
    begin_ns: int
    parent: int
    outer: int


def _match_any_order(times_ns: Ints, codes: Ints, outside: OutsideSections) -> _Matched:
    """Return the spans of events in any order, as of async tasks: an exit ends the last open span of its name."""
    stack: list[_OpenSpans] = []
    spans: list[tuple[int, int, int, int, int, int]] = []
    owners = np.zeros(len(codes), np.int64)
    owner_outer_ids = np.zeros(len(codes), np.int64)
    dropped = 0
    for row, (time_ns, code) in enumerate(zip(times_ns.tolist(), codes.tolist(), strict=True)):
        if code > 0:
            parent, outer = (stack[-1].id, stack[-1].outer) if stack else (0, 0)
            plain = code & SECTION_MASK
            id = outside.rename(outer, plain) if outer and outer != plain else plain
            outer = outer or (plain if outside.of(plain) else 0)
            stack.append(_OpenSpans(code, id, time_ns, parent, outer))
            if len(stack) > MAX_OPEN:
                del stack[0]
                dropped += 1
        else:
            at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].code == -code), None)
            if at is None:
                dropped += 1
            else:
                ended = stack.pop(at)
                is_counted = not ended.code & TIME_ONLY
                spans.append((ended.id, ended.begin_ns, time_ns, ended.parent, ended.outer, is_counted))
        if stack:
            owners[row], owner_outer_ids[row] = stack[-1].id, stack[-1].outer
    table = np.array(spans, np.int64).reshape(-1, 6).T
    times_ns, codes = np.array([(span.begin_ns, span.code) for span in stack], np.int64).reshape(-1, 2).T
    columns = (table[0], table[1], table[2], table[3], table[4], table[5].astype(np.bool_))
    return _Matched(columns, owners, owner_outer_ids, Events(times_ns, codes), dropped)


class StepTimes(NamedTuple):
    """The time of a block in steps. Row i of a table is the i-th complete step, the row after these goes on."""

    self_ns: Ints  # (steps + 2, sections): exclusive time; the last row is time outside steps
    total_ns: Ints  # (2, sections): spans in complete steps, and in the step that goes on; nested ones are included
    rows: Ints  # of each span: its step; -1 outside of steps, and for a span inside another of its section


def sum_time(block: ThreadBlock, step_rows: Ints, complete: int, rows: int) -> StepTimes:
    """Return the time of each section in each step.

    Args:
        block: with the spans and moments.
        step_rows: the row of the step of each piece, -1 for none.
        complete: number of complete steps.
        rows: number of sections.
    """
    spans, own = block.spans, block.own
    step_row = step_rows[own.pieces]
    row = np.where(own.is_outside | (step_row < 0), complete + 1, step_row)
    sums = sums_by(row * rows + own.owners, own.durations_ns, (complete + 2) * rows)
    span_row = np.where(spans.is_outside | (spans.parents == spans.ids), -1, step_rows[spans.pieces])
    goes_on = span_row == complete
    totals = sums_by(goes_on * rows + spans.ids, np.where(span_row >= 0, spans.durations_ns, 0), 2 * rows)
    return StepTimes(sums.reshape(-1, rows), totals.reshape(2, rows), span_row)
