"""Which events are within which others, and the call, operator and section that launched each work of a device."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import CATEGORY_IDS, NONE, Bools, Columns, Intervals, Ints, packed

LEAST_MATCHED: Final = 0.95  # of a replay's work, by name and order; a capture that matches less is another graph's


def captures_of(columns: Columns) -> tuple[Ints, Ints]:
    """Return the begins and ends of graph captures, in order of time; ns. What is launched meanwhile does not run."""
    begins, ends = (
        columns.named(pattern.search, "cuda_runtime")
        for pattern in (known_names.BEGIN_CAPTURE, known_names.END_CAPTURE)
    )
    begin_ns, end_ns = columns.begin_ns[begins], np.sort(columns.end_ns[ends])
    after = np.searchsorted(end_ns, begin_ns)
    # A capture that the recording does not see end lasts until its end.
    return begin_ns, np.append(end_ns, columns.end_ns.max())[after]


def replayed_share(columns: Columns, call: Ints) -> float:
    """Return the share of the device's work, by time, that replays of graphs launched; ``call`` launched each event."""
    works = np.flatnonzero(columns.is_gpu())
    length_ns = columns.length_ns[works]
    is_replayed = (call[works] != NONE) & columns.is_graph_launch()[call[works]]
    return float(length_ns[is_replayed].sum() / length_ns.sum()) if length_ns.sum() else 0.0


def captured_calls(columns: Columns, call: Ints) -> Ints:
    """Return for each piece of work of a replayed graph the call that was captured; -1 for none, and all other events.

    ``call`` is the call that launched each event, the replay. ROCm records which kernel a call launches: the names
    decide. Without names a replay and a capture belong together if they have the same number of calls and no other
    capture has it.
    """
    joined = np.full(len(call), NONE, np.int64)
    is_call = columns.is_of("cuda_runtime")
    replays = np.flatnonzero(columns.is_graph_launch())
    begin_ns, end_ns = captures_of(columns)
    if not len(replays) or not len(begin_ns):
        return joined
    makes_node = columns.named(
        lambda name: known_names.LAUNCH_KERNEL.search(name) or known_names.COPY_OR_FILL.search(name), among=is_call
    )
    captured = [
        np.flatnonzero(makes_node & (columns.begin_ns >= begin) & (columns.begin_ns < end))
        for begin, end in zip(begin_ns.tolist(), end_ns.tolist(), strict=True)
    ]
    works = np.flatnonzero(np.isin(call, replays) & columns.is_gpu())
    for replay in np.unique(call[works]).tolist():
        for work, made in _captured_of(columns, captured, works[call[works] == replay]).items():
            joined[work] = made
    return joined


def _captured_of(columns: Columns, captured: Sequence[Ints], works: Ints) -> dict[int, int]:
    """Return the captured call of each of the works, which are in order of time; nothing unless one capture fits."""
    named = max((_by_name(columns, calls, works) for calls in captured), key=len)
    if len(named) >= LEAST_MATCHED * len(works):
        return named
    fitting = [calls for calls in captured if len(calls) == len(works) and not (columns.launches[calls] != NONE).any()]
    return dict(zip(works.tolist(), fitting[0].tolist(), strict=True)) if len(fitting) == 1 else {}


def _by_name(columns: Columns, calls: Ints, works: Ints) -> dict[int, int]:
    names, at = columns.launches[calls].tolist(), 0
    pairs = {}
    for work in works.tolist():
        found = next((i for i in range(at, min(len(names), at + 3)) if names[i] == columns.name[work]), None)
        if found is not None:
            pairs[work] = int(calls[found])
            at = found + 1
    return pairs


# If a trace rounds begin and duration to whole us, an inner event may end up to 2 us after the outer one.
ROUNDING_NS: Final = 2000
# Open events that are looked through for the one around a new event; profilers write two or three that overlap.
MOST_OVERLAPPING: Final = 500
_NO_END: Final = 2**63
# Of two events with the same begin and end, the later category in this order lies within the other.
_OUTER_FIRST: Final = ("user_annotation", "python_function", "cpu_op", "cuda_runtime")


@dataclass(frozen=True, slots=True)
class Nesting:
    """The parent of each event of the trace (-1 for none) and its self time; the events that nest, in two orders."""

    parent: Ints
    self_ns: Ints
    order: Ints  # rows; all events within an event directly follow it
    last: Ints  # the place in that order of the last event within each, or its own place
    levels: tuple[Ints, ...]  # rows by depth, the outermost first

    def outermost(self, group: Ints) -> Bools:
        """Return which events are not within another one of their group; ``group`` is that of each event."""
        found, reaches = [], dict.fromkeys(group.tolist(), NONE)
        for place, (of, last) in enumerate(zip(group[self.order].tolist(), self.last.tolist(), strict=True)):
            found.append(place > reaches[of])
            reaches[of] = max(reaches[of], last)
        is_outermost = np.ones(len(group), np.bool_)
        is_outermost[self.order] = found
        return is_outermost

    def with_children(self, own: Ints) -> Ints:
        """Return the sum of ``own`` over each event and all events within it."""
        total = own.copy()
        for rows in reversed(self.levels[1:]):
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def nearest(self, which: Bools) -> Ints:
        """Return the innermost event of ``which`` around each event, or the event itself if it is one; -1 for none."""
        innermost = np.where(which, np.arange(len(which)), NONE)
        for rows in self.levels[1:]:
            inherits = rows.compress(innermost[rows] == NONE)
            innermost[inherits] = innermost[self.parent[inherits]]
        return innermost


def nesting_of(columns: Columns, which: Bools) -> Nesting:
    """Return how the events of ``which`` nest, thread by thread.

    An event that begins within another and ends later (by more than rounding) is its sibling: annotations can overlap.
    """
    rows = np.flatnonzero(which)
    inner = np.zeros(max(CATEGORY_IDS.values()) + 1, np.int64)
    inner[[CATEGORY_IDS[category] for category in _OUTER_FIRST]] = range(len(_OUTER_FIRST))
    keys = (inner[columns.category], -columns.end_ns, columns.begin_ns, columns.thread)
    rows = rows[np.lexsort([key[rows] for key in keys])]
    inside, last, depth = _walked(columns, rows)
    parent = np.full(len(which), NONE, np.int64)
    parent[rows] = np.where(inside == NONE, NONE, rows[inside])
    self_ns, within = np.where(which, columns.length_ns, 0), rows[inside != NONE]
    lengths = np.minimum(columns.end_ns[within], columns.end_ns[parent[within]]) - columns.begin_ns[within]
    np.subtract.at(self_ns, parent[within], lengths)
    levels = np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []
    return Nesting(parent, np.maximum(0, self_ns), rows, last, tuple(rows[level] for level in levels))


def _walked(columns: Columns, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the parent of each row (-1 for none) and the last row within it, as places among ``rows``; its depth."""
    columns_of = (array[rows].tolist() for array in (columns.begin_ns, columns.end_ns, columns.thread))
    parents: list[int] = []
    depths: list[int] = []
    # The stack of open events begins with one without an end: events outside all others are in it.
    open_places, open_ends, current = [NONE], [_NO_END], NONE
    for i, (begin, end, thread) in enumerate(zip(*columns_of, strict=True)):
        if thread != current:
            open_places, open_ends, current = [NONE], [_NO_END], thread
        while open_ends[-1] <= begin:
            open_ends.pop()
            open_places.pop()
        around = -1 if open_ends[-1] >= end else _around(open_ends, begin, end)
        parent = open_places[around]
        parents.append(parent)
        depths.append(0 if parent == NONE else depths[parent] + 1)
        open_places.append(i)
        open_ends.append(min(end, open_ends[around]))
    last = list(range(len(parents)))
    for i in reversed(range(len(parents))):
        if parents[i] != NONE:
            last[parents[i]] = max(last[parents[i]], last[i])
    return packed(*parents), packed(*last), packed(*depths)


def _around(open_ends: Sequence[int], begin: int, end: int) -> int:
    newest = len(open_ends) - 1
    for at in range(newest, max(0, newest - MOST_OVERLAPPING), -1):
        if open_ends[at] >= end - ROUNDING_NS and open_ends[at] > begin:
            return at
    return 0


ROUNDED_NS: Final = 3_000  # times of older traces are whole microseconds


@dataclass(frozen=True, slots=True)
class Launches:
    """Rows of host events for each event that is device work; -1 if unknown, and for all other events."""

    call: Ints  # cudaLaunchKernel, hipMemcpyAsync, ...; a graph launch is the call of all its kernels
    operator: Ints  # the innermost operator around the call
    section: Ints  # the innermost annotation around the call, steps excluded; host events have one too

    @property
    def by(self) -> Ints:
        """The call, or the operator where no call is known."""
        return np.where(self.call != NONE, self.call, self.operator)

    def calls_of(self, rows: Ints) -> Ints:
        """Return what launched each of these works; -1 if that is unknown, and for a row of -1."""
        return np.where(rows == NONE, NONE, self.call[rows])


def launches_of(columns: Columns, nesting: Nesting) -> Launches:
    """Return what launched each piece of device work; in a graph, the operator that was captured.

    The trace names the operator by its "External id". That is exact even if times are rounded to microseconds or no
    call was recorded. Without that id, or where it is not that of operators, it is the operator around the call.
    """
    gpu_rows = np.flatnonzero(columns.is_gpu())
    call = np.full(len(columns.begin_ns), NONE, np.int64)
    is_operator = columns.is_of("cpu_op")
    operators = nesting.nearest(is_operator)
    call_rows = np.flatnonzero(columns.is_of("cuda_runtime"))
    correlation, external = columns.correlation, columns.external
    if _is_id_of_calls(columns, operators, gpu_rows, call_rows):
        correlation, external = external, np.full(len(call), NONE, np.int64)
    elif not _is_id_of_operators(columns, is_operator, call_rows):
        external = np.full(len(call), NONE, np.int64)
    call[gpu_rows] = _matched(correlation, columns.is_of("cuda_runtime"), gpu_rows)
    has_call = call >= 0
    named = _matched(external, is_operator, call_rows)
    operators[call_rows] = np.where(named >= 0, named, operators[call_rows])
    operator = np.full(len(call), NONE, np.int64)
    operator[has_call] = operators[call[has_call]]
    captured = captured_calls(columns, call)
    is_captured = captured != NONE
    operator[is_captured] = operators[captured[is_captured]]
    without = gpu_rows[operator[gpu_rows] == NONE]
    operator[without] = _matched(external, is_operator, without)
    sections = sections_of(columns, nesting)
    launches = Launches(call, operator, sections.copy())
    by = launches.by[gpu_rows]
    launches.section[gpu_rows] = np.where(by >= 0, sections[by], NONE)
    return launches


def _is_id_of_calls(columns: Columns, operators: Ints, gpu_rows: Ints, call_rows: Ints) -> bool:
    """Return whether "External id" is that of a call and its work, and numbers operators on their own.

    Older traces of ROCm are so. They have no correlation, and calls have another id than the operators around them.
    """
    calls = call_rows[columns.external[call_rows] > 0]
    if (columns.correlation[gpu_rows] > 0).any() or not np.isin(
        columns.external[gpu_rows], columns.external[calls]
    ).any():
        return False
    around = operators[calls]
    is_same = (around != NONE) & (columns.external[around] == columns.external[calls])
    return bool(2 * is_same.sum() < max(1, (around != NONE).sum()))


def _is_id_of_operators(columns: Columns, is_operator: Bools, call_rows: Ints) -> bool:
    """Return whether the "External id" of calls is that of the operators they are in.

    In some traces calls and operators are numbered apart: a call has the id of an operator that ran at another time.
    """
    named = _matched(columns.external, is_operator, call_rows)
    has_name = named != NONE
    call, operator = call_rows[has_name], named[has_name]
    is_apart = (columns.end_ns[call] + ROUNDED_NS < columns.begin_ns[operator]) | (
        columns.end_ns[operator] + ROUNDED_NS < columns.begin_ns[call]
    )
    return bool(2 * is_apart.sum() <= len(call))


@dataclass(frozen=True, slots=True)
class LostLaunches:
    """Rows of launches of kernels, without those that a graph captured, and of those without a recorded kernel."""

    calls: Ints
    lost: Ints

    def since_ns(self, columns: Columns) -> int | None:
        """Return when the first of the lost launches began if nothing launched later has run; None otherwise.

        The buffer was full then, or the recording ended before the device.
        """
        if not len(self.lost) or len(self.lost) == len(self.calls):
            return None
        first_ns = int(columns.begin_ns[self.lost].min())
        kept = self.calls[~np.isin(self.calls, self.lost)]
        # Work of other calls, as copies, has larger numbers if it was launched later.
        works = columns.correlation[columns.is_gpu()]
        is_later = works.max(initial=0) > columns.correlation[self.lost].min()
        return first_ns if columns.begin_ns[kept].max() <= first_ns and not is_later else None


def lost_launches(columns: Columns, launches: Launches) -> LostLaunches:
    """Return the launches of kernels that have an id, and those of them whose kernels are not recorded."""
    which = columns.named(known_names.LAUNCH_KERNEL.search, "cuda_runtime")
    captured = Intervals.of(*captures_of(columns))
    if which.any() and len(captured.begin_ns):
        begins = columns.begin_ns
        which &= captured.before(begins + 1) == captured.before(begins)
    return LostLaunches(*without_work(columns, launches, which))


def without_work(columns: Columns, launches: Launches, which: Bools) -> tuple[Ints, Ints]:
    """Return the calls of ``which`` that have an id, and those of them that launched no recorded work."""
    calls = np.flatnonzero(which & (columns.correlation > 0))
    has_work = np.zeros(len(columns.begin_ns), np.bool_)
    has_work[launches.call[launches.call != NONE]] = True
    return calls, calls[~has_work[calls]]


def is_launched_before(columns: Columns, made: Ints, works: Ints) -> Bools:
    """Return which works were launched before the recording began: their number precedes those of all its calls.

    ``made`` are the calls that launched each work of the device. If most of them are unknown, calls were left out.
    """
    numbers = columns.correlation.compress(columns.is_of("cuda_runtime") & (columns.correlation > 0))
    first = numbers.min() if len(numbers) and 2 * (made != NONE).sum() >= len(made) else 0
    number = columns.correlation[works]
    return (number > 0) & (number < first)


def sections_of(columns: Columns, nesting: Nesting) -> Ints:
    """Return the innermost annotation around each event, or the event itself if it is one; -1 for none.

    TracedEvents on autograd's own threads belong to the current section of the training thread.
    """
    which = columns.is_section()
    innermost = nesting.nearest(which)
    main = columns.main_thread
    elsewhere = np.flatnonzero((innermost == NONE) & (columns.thread != main) & columns.is_of("cpu_op", "cuda_runtime"))
    innermost[elsewhere] = columns.timeline(which & (columns.thread == main)).at(columns.begin_ns[elsewhere])
    return innermost


def _matched(key: Ints, among: Bools, rows: Ints) -> Ints:
    """Return for each of ``rows`` the row of ``among`` with the same key; -1 without a match or key.

    Of several, as in a file of joined recordings that count from 1 again, it is the last one that begins before: rows
    are in order of time.
    """
    candidates: dict[int, list[int]] = defaultdict(list)
    named = np.flatnonzero(among & (key > 0))
    for number, row in zip(key[named].tolist(), named.tolist(), strict=True):
        candidates[number].append(row)
    found = ((candidates.get(number), row) for number, row in zip(key[rows].tolist(), rows.tolist(), strict=True))
    return packed(*(of[max(0, bisect_left(of, row) - 1)] if of else NONE for of, row in found))
