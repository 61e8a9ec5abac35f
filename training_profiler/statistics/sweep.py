"""From a thread's enters and exits to its spans, and to the section that owns each moment."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training_profiler.record.section import CANCELLED
from training_profiler.statistics.histogram import Ints

Bools = NDArray[np.bool_]
MAX_OPEN = 1000  # sections open at once on a thread; beyond it the oldest is given up and counted


class Events(NamedTuple):
    """A thread's enters (code = section id) and exits (code = -id) in time order."""

    times_ns: Ints
    codes: Ints


class Spans(NamedTuple):
    """Executions of sections, one row each, in no particular order."""

    ids: Ints
    begin_ns: Ints
    end_ns: Ints
    parents: Ints  # section id of the enclosing span, 0 for none
    is_apart: Bools  # whether the span, or one around it, is no part of a training step


class Leaves(NamedTuple):
    """Spans in which no other began, in time order: most spans are, and they need no matching."""

    ids: Ints
    begin_ns: Ints
    durations_ns: Ints


class Sweep(NamedTuple):
    """What one pass over a thread's events finds."""

    leaves: Leaves
    spans: Spans  # all others that ended
    times_ns: Ints  # of the events around the leaves, ascending
    owners: Ints  # owners[i]: section that owns the time from event i on, 0 for none; leaves take theirs from it
    owner_is_apart: Bools  # whether that section, or one around it, is no part of a training step
    still_open: Events
    dropped: int  # exits without an enter, and enters given up


def read_events(flat: list[int]) -> Events:
    """Return the recorder's flat list of times and codes as two arrays."""
    pairs = np.fromiter(flat, np.int64, len(flat)).reshape(-1, 2)
    # A clock may step back between cores; a time before its predecessor's would make a negative share.
    return Events(np.maximum.accumulate(pairs[:, 0]), pairs[:, 1])


def no_events() -> Events:
    """Return no events at all."""
    return Events(np.empty(0, np.int64), np.empty(0, np.int64))


def sweep(events: Events, still_open: Events, apart_ids: Ints, cuts_ns: Ints) -> Sweep:
    """Match enters with exits and say who owns the time after each event.

    Time belongs to the section entered last of those still open, so each moment has one owner and
    self times add up exactly. ``still_open`` are the enters that the sweep before left open.

    Args:
        events: events of one thread, in time order.
        still_open: ``Sweep.still_open`` of the same thread's sweep before.
        apart_ids: sections that are no part of a training step, such as validation.
        cuts_ns: times that no leaf may reach across, ascending.
    """
    times_ns, codes = events
    if len(codes) and codes.min() < -CANCELLED:
        times_ns, codes = _without_cancelled(times_ns, codes)
    leaves, times_ns, codes = _take_leaves(times_ns, codes, cuts_ns)
    if len(still_open.codes):
        times_ns = np.concatenate([still_open.times_ns, times_ns])
        codes = np.concatenate([still_open.codes, codes])
    nested = _sweep_nested(leaves, times_ns, codes, apart_ids)
    if nested is not None and len(nested.still_open.codes) <= MAX_OPEN:
        return nested
    return _sweep_any_order(leaves, times_ns, codes, apart_ids)


def _take_leaves(times_ns: Ints, codes: Ints, cuts_ns: Ints) -> tuple[Leaves, Ints, Ints]:
    """Return the spans whose exit follows their enter at once, and the events that remain."""
    rows = np.flatnonzero((codes[:-1] + codes[1:] == 0) & (codes[:-1] > 0))
    begin_ns = times_ns[rows]
    durations_ns = times_ns[rows + 1] - begin_ns
    if len(cuts_ns) and len(rows):
        at = np.searchsorted(begin_ns, cuts_ns) - 1
        crossing = at[(at >= 0) & (begin_ns[at] + durations_ns[at] > cuts_ns)]
        if len(crossing):
            rows, begin_ns = np.delete(rows, crossing), np.delete(begin_ns, crossing)
            durations_ns = np.delete(durations_ns, crossing)
    leaves = Leaves(codes[rows], begin_ns, durations_ns)
    if 2 * len(rows) == len(codes):
        return leaves, times_ns[:0], codes[:0]
    remains = np.ones(len(codes), np.bool_)
    remains[rows] = remains[rows + 1] = False
    return leaves, times_ns[remains], codes[remains]


def _sweep_nested(leaves: Leaves, times_ns: Ints, codes: Ints, apart_ids: Ints) -> Sweep | None:
    """Return the sweep of properly nested events; None where an exit is not the innermost section's."""
    is_enter = codes > 0
    depth = np.cumsum(np.where(is_enter, 1, -1))
    if len(depth) and (depth.min() < 0 or depth.max() > 30_000):
        return None
    level = (depth + ~is_enter).astype(np.int16)  # 16 bits: numpy sorts them by radix, in linear time
    # Within a level enters and exits alternate, for depth changes by one: neighbours are a span.
    order = np.argsort(level, kind="stable")
    exit_rows = np.flatnonzero(~is_enter[order])
    exits, enters = order[exit_rows], order[exit_rows - 1]
    ids = codes[enters]
    if not np.array_equal(ids, -codes[exits]):
        return None

    parent, is_apart = _enclosing(codes, is_enter, level, order, apart_ids)
    parent_ids = np.where(parent >= 0, codes[parent], 0)
    owners = np.where(is_enter, codes, 0)
    owner_is_apart = is_apart.copy()
    owners[exits] = parent_ids[enters]
    owner_is_apart[exits] = np.where(parent[enters] >= 0, is_apart[parent[enters]], False)

    open_rows = is_enter.copy()
    open_rows[enters] = False
    spans = Spans(ids, times_ns[enters], times_ns[exits], parent_ids[enters], is_apart[enters])
    still_open = Events(times_ns[open_rows], codes[open_rows])
    return Sweep(leaves, spans, times_ns, owners, owner_is_apart, still_open, 0)


def _enclosing(
    codes: Ints, is_enter: Bools, level: NDArray[np.int16], order: NDArray[np.intp], apart_ids: Ints
) -> tuple[NDArray[np.intp], Bools]:
    """Return, for each enter, the row of the enter around it (-1: none) and whether it lies apart."""
    parent = np.full(len(codes), -1, np.intp)
    is_apart = np.isin(codes, apart_ids) if len(apart_ids) else np.zeros(len(codes), np.bool_)
    ends = np.cumsum(np.bincount(level)) if len(level) else np.empty(0, np.int64)
    outer: NDArray[np.intp] = np.empty(0, np.intp)
    for level_begin, level_end in zip(ends, ends[1:], strict=False):
        rows = order[level_begin:level_end]
        rows = rows[is_enter[rows]]
        if len(outer):
            parent[rows] = outer[np.searchsorted(outer, rows) - 1]
            is_apart[rows] |= is_apart[parent[rows]]
        outer = rows
    return parent, is_apart


def _without_cancelled(times_ns: Ints, codes: Ints) -> tuple[Ints, Ints]:
    """Return the events without the spans whose exit says that they shall not count."""
    keep = np.ones(len(codes), np.bool_)
    stacks: dict[int, list[int]] = {}
    for row, code in enumerate(codes.tolist()):
        if code > 0:
            stacks.setdefault(code, []).append(row)
        elif code >= -CANCELLED:
            if stacks.get(-code):
                stacks[-code].pop()
        elif stacks.get(-code - CANCELLED):
            keep[[stacks[-code - CANCELLED].pop(), row]] = False
        else:
            keep[row] = False
    return times_ns[keep], codes[keep]


def _sweep_any_order(leaves: Leaves, times_ns: Ints, codes: Ints, apart_ids: Ints) -> Sweep:
    """Return the sweep of events in any order, such as those of async tasks, one event at a time.

    An exit ends the span of its name that was entered last. An exit of a name that is not open is
    dropped and counted.
    """
    apart = set(apart_ids.tolist())
    stack: list[tuple[int, int, int, bool]] = []  # id, begin, parent id, apart
    spans: list[tuple[int, int, int, int, bool]] = []
    owners = np.zeros(len(codes), np.int64)
    owner_is_apart = np.zeros(len(codes), np.bool_)
    dropped = 0
    for row, (time_ns, code) in enumerate(zip(times_ns.tolist(), codes.tolist(), strict=True)):
        if code > 0:
            parent, around = (stack[-1][0], stack[-1][3]) if stack else (0, False)
            stack.append((code, time_ns, parent, around or code in apart))
            if len(stack) > MAX_OPEN:
                del stack[0]
                dropped += 1
        else:
            at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i][0] == -code), None)
            if at is None:
                dropped += 1
            else:
                section, begin_ns, parent, is_apart = stack.pop(at)
                spans.append((section, begin_ns, time_ns, parent, is_apart))
        if stack:
            owners[row], owner_is_apart[row] = stack[-1][0], stack[-1][3]
    table = np.array(spans, np.int64).reshape(-1, 5)
    still_open = Events(
        np.array([entry[1] for entry in stack], np.int64), np.array([entry[0] for entry in stack], np.int64)
    )
    columns = Spans(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4] != 0)
    return Sweep(leaves, columns, times_ns, owners, owner_is_apart, still_open, dropped)
