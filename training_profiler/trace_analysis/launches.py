"""Which host call launched which device work, in which operator and section."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.graphs import captured_calls, captures_of
from training_profiler.trace_analysis.intervals import covered_before, union
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.nesting import Nesting, nearest
from training_profiler.trace_analysis.timeline import main_thread, timeline_of

ROUNDED_NS: Final = 3_000  # times of older traces are whole microseconds


@dataclass(frozen=True, slots=True)
class Launches:
    """Rows of host events for each event that is device work; -1 if unknown, and for all other events."""

    call: Ints  # cudaLaunchKernel, hipMemcpyAsync, ...; a graph launch is the call of all its kernels
    operator: Ints  # the innermost operator around the call
    section: Ints  # the innermost annotation around the call, steps excluded; host events have one too

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
    operators = nearest(nesting, is_operator)
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
    section = sections.copy()
    by = np.where(has_call, call, operator)[gpu_rows]
    section[gpu_rows] = np.where(by >= 0, sections[by], NONE)
    return Launches(call, operator, section)


def _is_id_of_calls(columns: Columns, operators: Ints, gpu_rows: Ints, call_rows: Ints) -> bool:
    """Return whether "External id" is the same for a call and its work, and numbers operators on their own.

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
    which = columns.named(runtime_calls.LAUNCH_KERNEL.search, columns.is_of("cuda_runtime"))
    captured = union(*captures_of(columns))
    if which.any() and len(captured.begin_ns):
        begins = columns.begin_ns
        which &= covered_before(captured, begins + 1) == covered_before(captured, begins)
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


def is_section(columns: Columns) -> Bools:
    """Return which events are annotations of the host, steps excluded."""
    return columns.is_of("user_annotation") & ~columns.is_step()


def sections_of(columns: Columns, nesting: Nesting) -> Ints:
    """Return the innermost annotation around each event, or the event itself if it is one; -1 for none.

    Events on autograd's own threads belong to the current section of the training thread.
    """
    which = is_section(columns)
    innermost = nearest(nesting, which)
    main = main_thread(columns)
    elsewhere = np.flatnonzero((innermost == NONE) & (columns.thread != main) & columns.is_of("cpu_op", "cuda_runtime"))
    innermost[elsewhere] = timeline_of(columns, which & (columns.thread == main)).at(columns.begin_ns[elsewhere])
    return innermost


def _matched(key: Ints, among: Bools, rows: Ints) -> Ints:
    """Return for each of ``rows`` the row of ``among`` with the same key; -1 without a match or key.

    Of several, as in a file of joined recordings that count from 1 again, it is the last one that begins before: rows
    are in order of time.
    """
    candidates = np.flatnonzero(among & (key > 0))
    if not len(candidates) or not len(rows):
        return np.full(len(rows), NONE, np.int64)
    candidates = candidates[np.argsort(key[candidates], kind="stable")]
    first = np.searchsorted(key[candidates], key[rows])
    position = np.minimum(first, len(candidates) - 1)
    keys = key[candidates]
    if (keys[1:] == keys[:-1]).any():
        count = np.searchsorted(keys, key[rows], side="right") - first
        group = np.cumsum(np.append(True, keys[1:] != keys[:-1]))
        size = len(key) + 1
        before = np.searchsorted(group * size + candidates, group[position] * size + rows) - first
        position = position + np.clip(before - 1, 0, np.maximum(0, count - 1))
    return np.where((key[candidates[position]] == key[rows]) & (key[rows] > 0), candidates[position], NONE)
