"""Copies between host and device: how long nothing hides them, and whether the host waits for them."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.host_activity import TO_HOST, WITH_HOST, span_of
from training_profiler.trace_analysis.intervals import together
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns
from training_profiler.trace_analysis.scope import Scope

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
