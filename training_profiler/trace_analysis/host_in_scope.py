"""What the host waits for within the scope, copies between host and device, and conversions of layouts."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.graphs import captures_of, is_graph_launch
from training_profiler.trace_analysis.host_activity import (
    TO_HOST,
    WITH_HOST,
    TracedModuleCalls,
    calls_named,
    data_waits,
    is_allocation,
    is_conversion,
    is_pageable_copy,
    side_work,
    span_of,
    worker_start,
)
from training_profiler.trace_analysis.launches import Launches, Nesting
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.scope import Scope
from training_profiler.trace_analysis.timeline import (
    covered,
    together,
    union,
)

_WITHOUT_HOST: Final = re.compile(r"DtoD|PtoP|DeviceToDevice|PeerToPeer|D2D\b|HtoH|HostToHost")


@dataclass(frozen=True, slots=True)
class Transfers:
    """The copies from host to device and back within the scope; those from device to device are none."""

    count: int
    exposed_ns: int | None  # while no device does anything else; None if a copy does not show its direction
    are_blocking: bool  # whether the operators or calls of most of their time return only after them, if known
    are_to_host: bool  # whether most of their time is from device to host


def transfers_of(columns: Columns, launches: Launches, scope: Scope) -> Transfers:
    """Return the copies between host and device."""
    is_copy = columns.is_of("gpu_memcpy")
    is_transfer = columns.named(WITH_HOST.search, is_copy)
    is_other = columns.named(_WITHOUT_HOST.search, is_copy) & ~is_transfer
    others = span_of(columns, columns.is_gpu() & ~is_transfer)
    exposed_ns = scope.within(together(span_of(columns, is_transfer), others)) - scope.within(others)
    begin_ns, end_ns = scope.parts[0].begin_ns, max(part.end_ns for part in scope.parts)
    within = (columns.end_ns >= begin_ns) & (columns.begin_ns <= end_ns)
    rows = np.flatnonzero(is_transfer & within)
    length_ns = (columns.end_ns - columns.begin_ns)[rows]
    to_host = columns.named(TO_HOST.search, is_copy)[rows]
    return Transfers(
        len(rows),
        None if (is_copy & ~is_transfer & ~is_other).any() else exposed_ns,
        2 * int(length_ns[_is_not_awaited(columns, launches)[rows]].sum()) <= int(length_ns.sum()),
        2 * int(length_ns[to_host].sum()) > int(length_ns.sum()),
    )


def _is_not_awaited(columns: Columns, launches: Launches) -> Bools:
    """Return which works go on after the operator that launched them has returned, or the call without an operator.

    A copy from memory that is not pinned may end a moment after its call.
    """
    by = np.where(launches.operator != NONE, launches.operator, launches.call)
    middle_ns = (columns.begin_ns + columns.end_ns) // 2
    is_later: Bools = (by != NONE) & (columns.end_ns[by] < middle_ns)
    return is_later


@dataclass(frozen=True, slots=True)
class LayoutConversions:
    """What the conversions take; ns."""

    kernels: int
    total_ns: int  # in which the device did nothing else
    saved_ns: int  # of the scope, without them
    is_miopen: bool  # whether they are MIOpen's


NO_CONVERSIONS: Final = LayoutConversions(0, 0, 0, False)


def layout_conversions(columns: Columns, nesting: Nesting, launches: Launches, scope: Scope) -> LayoutConversions:
    """Return the conversions of layout, without those in operators that copy.

    A convolution has two inputs and one output. Where most conversions are to NCHW, the tensors are in NHWC already.
    """
    which = columns.named(kernel_names.converts_layout, columns.is_of("kernel"))
    if not which.any() or 2 * columns.named(kernel_names.converts_to_nchw, which).sum() > which.sum():
        return NO_CONVERSIONS
    which &= ~is_conversion(columns, nesting, launches)
    others = span_of(columns, columns.is_gpu() & ~which)
    either = together(span_of(columns, which), others)
    begins, ends = (np.array([getattr(part, key) for part in scope.parts], np.int64) for key in ("begin_ns", "end_ns"))
    alone_ns = covered(either, begins, ends) - covered(others, begins, ends)
    idle_ns = np.array([part.idle_ns for part in scope.parts], np.int64)
    calls = launches.call[which]
    calls = calls[calls != NONE]
    calling = span_of(columns, calls[~is_graph_launch(columns)[calls]])
    return LayoutConversions(
        int(which.sum()),
        either.total_ns - others.total_ns,
        int(_saved_ns(alone_ns, idle_ns, covered(calling, begins, ends)).sum()),
        bool(columns.named(kernel_names.is_of_miopen, which).any()),
    )


def _saved_ns(alone_ns: Ints, idle_ns: Ints, calling_ns: Ints) -> Ints:
    """Return what each window is shorter without the conversions.

    If the device is idle for longer than they take, it waits for the host: then only their launches are saved.
    """
    saved_ns: Ints = np.maximum(alone_ns - idle_ns, np.minimum(calling_ns, idle_ns))
    return saved_ns


@dataclass(frozen=True, slots=True)
class HostWaiting:
    """What the host waited for within the scope; ns. What several threads wait for at once counts once."""

    data_ns: tuple[int, ...]  # for batches, per window of the scope
    data_names: tuple[str, ...]  # the names of these waits
    worker_start_ns: int  # of these waits, what the start of workers took
    allocation_ns: int  # in calls that allocate or free device memory, not while a graph is captured
    allocations: int
    longest_allocation_ns: int  # of these calls
    read_ns: int  # in operators that read a value from the device
    reads: tuple[TracedModuleCalls, ...]  # these operators, by name
    side_work_ns: dict[str, int]  # by name of the section


def waiting_of(columns: Columns, scope: Scope, in_scope: Bools, reads: Ints) -> HostWaiting:
    """Return what the host waits for."""
    begins, ends = (np.array([getattr(part, key) for part in scope.parts], np.int64) for key in ("begin_ns", "end_ns"))
    waits, names = data_waits(columns)
    captured = covered(union(*captures_of(columns)), columns.begin_ns, columns.begin_ns + 1) > 0
    allocations = is_allocation(columns) & in_scope & ~captured
    reads = reads[in_scope[reads]]
    return HostWaiting(
        tuple(covered(waits, begins, ends).tolist()),
        names,
        scope.within(worker_start(columns)),
        scope.within(span_of(columns, allocations)),
        int(allocations.sum()),
        int((columns.end_ns - columns.begin_ns)[allocations].max(initial=0)),
        scope.within(span_of(columns, reads)),
        tuple(sorted(calls_named(columns, reads), key=lambda calls: -calls.total_ns)),
        {name: scope.within(span) for name, span in side_work(columns).items()},
    )


def pageable_copies(columns: Columns, scope: Scope) -> TracedModuleCalls:
    """Return the copies from memory that is not pinned."""
    rows = np.flatnonzero(is_pageable_copy(columns))
    ends_ns = np.maximum(columns.end_ns, columns.begin_ns + 1)  # older traces have copies of 0 us
    rows = rows[covered(scope.windows, columns.begin_ns[rows], ends_ns[rows]) > 0]
    return TracedModuleCalls("", len(rows), scope.within(span_of(columns, rows)))
