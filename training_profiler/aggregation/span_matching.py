"""Matches a thread's enters and exits to spans, and finds the section that owns each moment."""

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.recording.event_codes import DISCARDED, SECTION_MASK, TIME_ONLY
from training_profiler.statistics.arrays import Bools, Ints

Flat = Any  # integers: a list, or memory of the recorder in C
Rename = Callable[[int, int], int]  # (outer section, id) -> id
MAX_OPEN = 1000  # open sections of a thread; beyond it the oldest is dropped and counted


class Events(NamedTuple):
    """A thread's enters (code = section id) and exits (code = -id) in time order."""

    times_ns: Ints
    codes: Ints  # may carry TIME_ONLY


_NO_EVENTS: Final = Events(np.empty(0, np.int64), np.empty(0, np.int64))


class Spans(NamedTuple):
    """Executions of sections, one row each, in no particular order."""

    ids: Ints
    begin_ns: Ints
    end_ns: Ints
    parents: Ints  # section id of the enclosing span, 0 for none
    outer_ids: Ints  # id of the outermost enclosing section outside steps, which may be the span's own; 0 for none
    is_counted: Bools  # False for spans that add to the time of their section, but not to its count


class OutsideSections(NamedTuple):
    """Sections outside training steps, such as validation."""

    table: Bools  # by section id
    exists: bool  # whether any is in the table
    rename: Rename  # gives sections inside them an id of their own, e.g. the forward pass of validation


class LeafSpans(NamedTuple):
    """Spans without other spans inside, in time order. Most spans are, and they need no matching."""

    ids: Ints
    begin_ns: Ints
    durations_ns: Ints
    is_counted: Bools  # see Spans.is_counted


class MatchedSpans(NamedTuple):
    """The result of one pass over a thread's events."""

    leaf_spans: LeafSpans
    spans: Spans  # all others that ended
    times_ns: Ints  # of the events outside leaf spans, ascending
    owners: Ints  # owners[i] owns the time from event i on, 0 for none; the time of leaf spans is subtracted
    owner_outer_ids: Ints  # of that section, see Spans.outer_ids
    still_open: Events
    dropped: int  # exits without an enter, and enters beyond MAX_OPEN


def read_events(flat: Flat) -> Events:
    """Return the recorder's times and codes, which lie in turns, as two arrays."""
    if isinstance(flat, list):
        integers: Ints = np.fromiter(flat, np.int64, len(flat))
    else:  # of the recorder in C: read in place
        integers = np.frombuffer(flat, np.int64)
    pairs = integers.reshape(-1, 2)
    # A clock may step back between cores, which would give negative durations.
    return Events(np.maximum.accumulate(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))


def no_events() -> Events:
    """Return an empty stream of events."""
    return _NO_EVENTS


def match_spans(events: Events, still_open: Events, cuts_ns: Ints, outside: OutsideSections) -> MatchedSpans:
    """Match enters with exits and find the owner of the time after each event.

    Time belongs to the section entered last of those still open. So each moment has one owner, and self times add up
    exactly.

    Args:
        events: events of one thread, in time order.
        still_open: ``MatchedSpans.still_open`` of the thread's previous call.
        cuts_ns: times that no leaf span may cross, ascending.
        outside: the sections outside training steps.
    """
    (times_ns, codes), still_open = without_discarded(events, still_open)
    leaf_spans, times_ns, codes = _drain_leaf_spans(times_ns, codes, cuts_ns)
    if len(still_open.codes):
        times_ns = np.concatenate([still_open.times_ns, times_ns])
        codes = np.concatenate([still_open.codes, codes])
    nested = _match_nested(leaf_spans, times_ns, codes, outside)
    if nested is not None and len(nested.still_open.codes) <= MAX_OPEN:
        return nested
    return _match_any_order(leaf_spans, times_ns, codes, outside)


def _drain_leaf_spans(times_ns: Ints, codes: Ints, cuts_ns: Ints) -> tuple[LeafSpans, Ints, Ints]:
    """Return the spans whose exit directly follows their enter, and the remaining events."""
    rows = np.flatnonzero((codes[:-1] + codes[1:] == 0) & (codes[:-1] > 0))
    begin_ns = times_ns[rows]
    durations_ns = times_ns[rows + 1] - begin_ns
    if len(cuts_ns) and len(rows):
        at = np.searchsorted(begin_ns, cuts_ns) - 1
        crossing = at[(at >= 0) & (begin_ns[at] + durations_ns[at] > cuts_ns)]
        if len(crossing):
            rows, begin_ns = np.delete(rows, crossing), np.delete(begin_ns, crossing)
            durations_ns = np.delete(durations_ns, crossing)
    leaf_spans = LeafSpans(codes[rows] & SECTION_MASK, begin_ns, durations_ns, (codes[rows] & TIME_ONLY) == 0)
    if 2 * len(rows) == len(codes):
        return leaf_spans, times_ns[:0], codes[:0]
    remains = np.ones(len(codes), np.bool_)
    remains[rows] = remains[rows + 1] = False
    return leaf_spans, times_ns[remains], codes[remains]


def _match_nested(leaf_spans: LeafSpans, times_ns: Ints, codes: Ints, outside: OutsideSections) -> MatchedSpans | None:
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
    spans = Spans(named[enters], times_ns[enters], times_ns[exits], parent_ids[enters], outer_ids[enters], is_counted)
    still_open = Events(times_ns[open_rows], codes[open_rows])
    return MatchedSpans(leaf_spans, spans, times_ns, owners, owner_outer_ids, still_open, 0)


def _enclosing(
    codes: Ints, is_enter: Bools, level: NDArray[np.int16], order: NDArray[np.intp], outside: OutsideSections
) -> tuple[NDArray[np.intp], Ints]:
    """Return for each enter the row of the enclosing enter (-1 for none) and its outer id (see Spans.outer_ids)."""
    parent = np.full(len(codes), -1, np.intp)
    outer_ids = np.zeros(len(codes), np.int64)
    if outside.exists:
        outer_ids = np.where(outside.table[np.maximum(codes, 0)], codes, 0)
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


def _renamed(codes: Ints, outer_ids: Ints, rename: Rename) -> Ints:
    """Return the codes, with the ids that sections have inside their outer section."""
    rows = np.flatnonzero((outer_ids > 0) & (codes > 0) & (outer_ids != codes))
    if not len(rows):
        return codes
    named = codes.copy()
    pairs, inverse = np.unique(outer_ids[rows] << 24 | codes[rows], return_inverse=True)
    named[rows] = np.array([rename(pair >> 24, pair & 0xFFFFFF) for pair in pairs.tolist()], np.int64)[inverse]
    return named


def rename_leaf_spans(leaf_spans: LeafSpans, outer_ids: Ints, rename: Rename) -> LeafSpans:
    """Return the leaf spans with the ids they have inside ``outer_ids``, one entry a span, 0 for none."""
    return leaf_spans._replace(ids=_renamed(leaf_spans.ids, outer_ids, rename))


def without_discarded(events: Events, still_open: Events) -> tuple[Events, Events]:
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
    return _where(keep_events, events), _where(keep_open, still_open)


def _where(keep: Bools, events: Events) -> Events:
    return Events(events.times_ns[keep], events.codes[keep])


class _OpenSpans(NamedTuple):
    code: int
    id: int
    begin_ns: int
    parent: int
    outer: int


def _match_any_order(leaf_spans: LeafSpans, times_ns: Ints, codes: Ints, outside: OutsideSections) -> MatchedSpans:
    """Return the spans of events in any order, such as those of async tasks, one event at a time.

    An exit ends the span of its name that was entered last. An exit of a name that is not open is
    dropped and counted.
    """
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
            outer = outer or (plain if outside.table[plain] else 0)
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
    ended_spans = Spans(table[0], table[1], table[2], table[3], table[4], table[5].astype(np.bool_))
    still_open = Events(
        np.array([entry.begin_ns for entry in stack], np.int64),
        np.array([entry.code for entry in stack], np.int64),
    )
    return MatchedSpans(leaf_spans, ended_spans, times_ns, owners, owner_outer_ids, still_open, dropped)


class Stretches(NamedTuple):
    """Consecutive stretches that together cover the time of a batch; no stretch crosses a cut."""

    begin_ns: Ints
    durations_ns: Ints
    owners: Ints  # section id, 0 for none
    outer_ids: Ints  # of the owner, see Spans.outer_ids

    def count_leaf_spans(self, leaf_spans: LeafSpans) -> Ints:
        """Return the number of leaf spans in each stretch."""
        if len(self.begin_ns) == 1:
            return np.array([len(leaf_spans.ids)])
        first = np.searchsorted(leaf_spans.begin_ns, self.begin_ns)
        first[0] = 0
        return np.diff(first, append=len(leaf_spans.ids))

    def sum_leaf_spans(self, durations_ns: Ints, leaves_per_stretch: Ints) -> Ints:
        """Return the time of leaf spans in each stretch, in ns."""
        until = np.concatenate([[0], np.cumsum(durations_ns)])
        end = np.cumsum(leaves_per_stretch)
        return np.asarray(until[end] - until[end - leaves_per_stretch], np.int64)


def stretches_between(result: MatchedSpans, cuts_ns: Ints, from_ns: int, until_ns: int) -> Stretches:
    """Return the stretches from ``from_ns`` to ``until_ns``; each event and each cut begins one."""
    owners = np.concatenate([[0], result.owners])
    outer_ids = np.concatenate([[0], result.owner_outer_ids])
    begin_ns = np.concatenate([[from_ns], np.maximum(result.times_ns, from_ns)])
    if len(cuts_ns):
        at = np.searchsorted(result.times_ns, cuts_ns, side="right")
        owners = np.insert(owners, at + 1, owners[at])
        outer_ids = np.insert(outer_ids, at + 1, outer_ids[at])
        begin_ns = np.insert(begin_ns, at + 1, np.maximum(cuts_ns, from_ns))
    durations_ns = np.maximum(np.diff(begin_ns, append=until_ns), 0)
    return Stretches(begin_ns, durations_ns, owners, outer_ids)


def moments_in(times_ns: Ints, leaf_spans: LeafSpans, stretches: Stretches) -> tuple[Ints, Ints]:
    """Return the stretch of each moment, and the leaf span that it lies in, -1 for none."""
    # A moment may be known only after the drain it belongs to; it then counts at the begin of this one.
    at_ns = np.maximum(times_ns, stretches.begin_ns[0])
    stretch = np.maximum(np.searchsorted(stretches.begin_ns, at_ns, side="right") - 1, 0)
    if not len(leaf_spans.ids):
        return stretch, np.full(len(times_ns), -1)
    leaf = np.maximum(np.searchsorted(leaf_spans.begin_ns, times_ns, side="right") - 1, 0)
    since_ns = times_ns - leaf_spans.begin_ns[leaf]
    return stretch, np.where((since_ns >= 0) & (since_ns < leaf_spans.durations_ns[leaf]), leaf, -1)
