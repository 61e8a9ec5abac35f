"""Which call of the host launched which work of the device, in which operator and section."""

from dataclasses import dataclass

import numpy as np

from training_profiler.trace_analysis.device_activity import STEP_NAME
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.nesting import Nesting, nearest
from training_profiler.trace_analysis.timeline import main_thread, timeline_of


@dataclass(frozen=True, slots=True)
class Launches:
    """For each event that is work of a device, rows of host events; -1 where that is not known, and for others."""

    call: Ints  # cudaLaunchKernel, hipMemcpyAsync, ...; of a graph's launch, the same for all its kernels
    operator: Ints  # the innermost operator around the call
    section: Ints  # for events of the host too: the innermost annotation around the call that is no step


def launches_of(columns: Columns, nesting: Nesting) -> Launches:
    """Return what launched each piece of device work.

    The operator is the one that the trace itself names by "External id": exact where times are rounded to us, and told
    where no call was recorded. Else it is the operator around the call.
    """
    gpu_rows = np.flatnonzero(columns.is_gpu())
    call = np.full(len(columns.begin_ns), NONE, np.int64)
    call[gpu_rows] = _matched(columns.correlation, columns.is_of("cuda_runtime"), gpu_rows)
    has_call = call >= 0
    is_operator = columns.is_of("cpu_op")
    operators = nearest(nesting, is_operator)
    call_rows = np.flatnonzero(columns.is_of("cuda_runtime"))
    told = _matched(columns.external, is_operator, call_rows)
    operators[call_rows] = np.where(told >= 0, told, operators[call_rows])
    operator = np.full(len(call), NONE, np.int64)
    operator[has_call] = operators[call[has_call]]
    without = gpu_rows[operator[gpu_rows] == NONE]
    operator[without] = _matched(columns.external, is_operator, without)
    sections = sections_of(columns, nesting)
    section = sections.copy()
    by = np.where(has_call, call, operator)[gpu_rows]
    section[gpu_rows] = np.where(by >= 0, sections[by], NONE)
    return Launches(call, operator, section)


def is_section(columns: Columns) -> Bools:
    """Return which events are annotations of the host that are no step."""
    return columns.is_of("user_annotation") & ~columns.named(lambda name: name.startswith(STEP_NAME))


def sections_of(columns: Columns, nesting: Nesting) -> Ints:
    """Return for each event the innermost annotation that it is or lies within; -1 for none.

    What autograd's own threads run is in the section that the training's thread is in meanwhile.
    """
    which = is_section(columns)
    found = nearest(nesting, which)
    main = main_thread(columns)
    elsewhere = np.flatnonzero((found == NONE) & (columns.thread != main) & columns.is_of("cpu_op", "cuda_runtime"))
    found[elsewhere] = timeline_of(columns, which & (columns.thread == main)).at(columns.begin_ns[elsewhere])
    return found


def _matched(key: Ints, among: Bools, rows: Ints) -> Ints:
    """Return for each of ``rows`` the row of ``among`` that has its key; -1 where none has, or it has no key."""
    others = np.flatnonzero(among & (key > 0))
    if not len(others) or not len(rows):
        return np.full(len(rows), NONE, np.int64)
    others = others[np.argsort(key[others], kind="stable")]
    place = np.minimum(np.searchsorted(key[others], key[rows]), len(others) - 1)
    return np.where((key[others[place]] == key[rows]) & (key[rows] > 0), others[place], NONE)
