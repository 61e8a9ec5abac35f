"""Which call of the host launched which work of the device, in which operator and section."""

from dataclasses import dataclass

import numpy as np

from training_profiler.trace.columns import NONE, Columns, Ints
from training_profiler.trace.nesting import Nesting, nearest
from training_profiler.trace.overview import STEP_NAME


@dataclass(frozen=True, slots=True)
class Launches:
    """For each event that is work of a device, rows of host events; -1 where that is not known, and for others."""

    call: Ints  # cudaLaunchKernel, hipMemcpyAsync, ...
    operator: Ints  # the innermost operator around the call
    section: Ints  # the innermost annotation around the call that is no step


def launches_of(columns: Columns, nesting: Nesting) -> Launches:
    """Return what launched each piece of device work."""
    size = len(columns.begin_ns)
    gpu_rows = np.flatnonzero(columns.is_gpu())
    is_call = columns.is_of("cuda_runtime") & (columns.correlation > 0)
    call_rows = np.flatnonzero(is_call)
    call = np.full(size, NONE, np.int64)
    if len(call_rows) and len(gpu_rows):
        order = np.argsort(columns.correlation[call_rows], kind="stable")
        keys = columns.correlation[call_rows][order]
        at = np.minimum(np.searchsorted(keys, columns.correlation[gpu_rows]), len(keys) - 1)
        is_known = (keys[at] == columns.correlation[gpu_rows]) & (columns.correlation[gpu_rows] > 0)
        call[gpu_rows[is_known]] = call_rows[order][at[is_known]]
    operators = nearest(nesting, columns.is_of("cpu_op"))
    is_section = columns.is_of("user_annotation") & ~columns.named(lambda name: name.startswith(STEP_NAME))
    sections = nearest(nesting, is_section)
    has_call = call >= 0
    operator = np.full(size, NONE, np.int64)
    section = np.full(size, NONE, np.int64)
    operator[has_call] = operators[call[has_call]]
    section[has_call] = sections[call[has_call]]
    return Launches(call, operator, section)
