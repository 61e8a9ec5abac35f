"""Activity of the host by name: waits for batches, waits for the device, copies, allocations."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.tables.sections import DATA_LOADING, EMA_UPDATE, LOGGING, METRICS_COMPUTATION
from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.launches import Launches, Nesting, nearest
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct
from training_profiler.trace_analysis.timeline import NOTHING, Intervals, union

DATA_LOADER: Final = re.compile(r"^enumerate\(DataLoader\)")
# The same wait, as our own sections name it.
WAITS_FOR_BATCH: Final = re.compile(rf"^enumerate\(DataLoader\)|^{DATA_LOADING}$")
READS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
# The last of each is of XPU, whose M is memory of the host that its runtime has not allocated.
TO_HOST: Final = re.compile(r"DtoH|DeviceToHost|D2[HM]\b")
WITH_HOST: Final = re.compile(rf"{TO_HOST.pattern}|HtoD|HostToDevice|[HM]2D\b")
_FROM_PAGEABLE: Final = re.compile(r"Pageable -> Device|M2D\b")
CONVERSIONS: Final = ("aten::copy_", "aten::_to_copy")
# What packs and unpacks the data of a collective: c10d's and functional operators, FSDP's, those of vLLM and others.
_COMMUNICATES: Final = re.compile(
    r"^(c10d|nccl|gloo|mpi|ucc|_c10d_functional|fsdp|record_param_comms|symm_mem)\b"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
_COMPILED: Final = re.compile(r"CompiledFxGraph|Torch-Compiled Region|CompiledFunction")
_SERVES: Final = re.compile(r"\b(vllm|sglang|sgl_kernel|tensorrt_llm|trtllm)(::|_|\b)", re.IGNORECASE)
_STARTS_WORKERS: Final = "_MultiProcessingDataLoaderIter"
LEAST_WAITS: Final = 4  # for the first of them to be longer than usual
LEAST_LONGER: Final = 2  # times the usual wait
_ON_HOST: Final = re.compile(r"^(gloo|mpi|ucc):")  # as torch's process groups mark them
SIDE_WORK: Final = (METRICS_COMPUTATION, LOGGING, EMA_UPDATE)


@dataclass(frozen=True, slots=True)
class TracedModuleCalls:
    """All calls of one name; ns."""

    name: str
    count: int
    total_ns: int
    bytes: int | None = None  # of those calls that have it; None without any


def calls_named(columns: Columns, rows: Ints, has_bytes: bool = False) -> list[TracedModuleCalls]:
    """Return the calls of each name in ``rows``, in order of their first occurrence."""
    name, size = columns.name[rows], len(columns.names)
    count = np.bincount(name, minlength=size)
    total = np.zeros(size, np.int64)
    copied = np.zeros(size, np.int64)
    np.add.at(total, name, (columns.end_ns - columns.begin_ns)[rows])
    np.add.at(copied, name, np.maximum(0, columns.bytes[rows]))
    known = np.bincount(name[columns.bytes[rows] >= 0], minlength=size)
    return [
        TracedModuleCalls(
            columns.names[i], int(count[i]), int(total[i]), int(copied[i]) if has_bytes and known[i] else None
        )
        for i in dict.fromkeys(name.tolist())
    ]


def copies(columns: Columns) -> list[TracedModuleCalls]:
    """Return the copies of devices, by direction."""
    return calls_named(columns, np.flatnonzero(columns.is_of("gpu_memcpy")), has_bytes=True)


def synchronizations(columns: Columns) -> list[TracedModuleCalls]:
    """Return the calls in which the host waited for a device."""
    return calls_named(
        columns, np.flatnonzero(columns.named(runtime_calls.SYNCHRONIZE.search, columns.is_of("cuda_runtime")))
    )


def host_collectives(columns: Columns) -> list[TracedModuleCalls]:
    """Return the collectives that threads of the host run, such as those of gloo."""
    return calls_named(
        columns, np.flatnonzero(columns.named(_ON_HOST.search, columns.is_of("cpu_op", "user_annotation")))
    )


def is_allocation(columns: Columns) -> Bools:
    """Return which events are calls that allocate or free device memory."""
    return columns.named(runtime_calls.ALLOCATE.search, columns.is_of("cuda_runtime"))


def data_loading(columns: Columns) -> TracedModuleCalls:
    """Return the waits for batches that torch itself marks."""
    which = columns.named(DATA_LOADER.search, columns.is_of("user_annotation"))
    duration = columns.end_ns - columns.begin_ns
    return TracedModuleCalls("enumerate(DataLoader)", int(which.sum()), int(duration[which].sum()))


def data_waits(columns: Columns) -> tuple[Intervals, tuple[str, ...]]:
    """Return when the host waited for batches, and the names of these waits."""
    which = columns.named(WAITS_FOR_BATCH.search, columns.is_of("user_annotation"))
    names = tuple(columns.names[i] for i in dict.fromkeys(columns.name.compress(which).tolist()))
    return span_of(columns, which), names


def worker_start(columns: Columns) -> Intervals:
    """Return the part of the first wait for workers beyond the usual one: they start then, which happens once.

    Without enough later waits, or if it is not much longer, nothing shows that they do.
    """
    which = columns.named(WAITS_FOR_BATCH.search, columns.is_of("user_annotation"))
    rows = np.flatnonzero(which)
    if len(rows) < LEAST_WAITS or _STARTS_WORKERS not in columns.names[columns.name[rows[0]]]:
        return NOTHING
    length_ns = (columns.end_ns - columns.begin_ns)[rows]
    usual_ns = int(np.median(length_ns[1:]))
    if length_ns[0] < LEAST_LONGER * usual_ns:
        return NOTHING
    begin_ns = columns.begin_ns[rows[:1]]
    return Intervals(begin_ns, begin_ns + length_ns[0] - usual_ns)


def is_compiled(columns: Columns) -> bool:
    """Return whether the host ran what torch.compile made."""
    is_marked = columns.is_of("cpu_op", "user_annotation", "gpu_user_annotation")
    return bool(columns.named(_COMPILED.search, is_marked).any())


def is_serving(columns: Columns) -> bool:
    """Return whether it runs a server of language models, which reserves memory for its cache at its start."""
    return bool(columns.named(_SERVES.search, columns.is_of("cpu_op", "user_annotation", "kernel")).any())


def span_of(columns: Columns, which: Bools | Ints) -> Intervals:
    """Return when any of these events was open: events that overlap, on one thread or several, count once."""
    rows = np.flatnonzero(which) if which.dtype == np.bool_ else which
    return union(columns.begin_ns[rows], columns.end_ns[rows])


def conversions(columns: Columns, nesting: Nesting, launches: Launches) -> tuple[int, Intervals, Intervals]:
    """Return the number of copies and conversions of tensors on a device, when it made them, and did all else.

    What they copy from and to the host is the matter of other rules, and communication needs its own copies.
    """
    work = is_conversion(columns, nesting, launches)
    made = np.zeros(len(work), np.bool_)
    made[_converting(columns, nesting, launches)[work]] = True
    calls = np.bincount(columns.name[made], minlength=1)  # one of the two may call the other
    return int(calls.max()), span_of(columns, work), span_of(columns, columns.is_gpu() & ~work)


def is_conversion(columns: Columns, nesting: Nesting, launches: Launches) -> Bools:
    """Return which work of the device copies or converts tensors on it."""
    work: Bools = columns.is_gpu() & (launches.operator != NONE) & (_converting(columns, nesting, launches) != NONE)
    work &= ~columns.named(WITH_HOST.search, columns.is_of("gpu_memcpy"))
    communicating = nearest(nesting, columns.named(_COMMUNICATES.search, columns.is_of("cpu_op", "user_annotation")))
    work &= communicating[launches.operator] == NONE
    return work


def _converting(columns: Columns, nesting: Nesting, launches: Launches) -> Ints:
    """Return the innermost operator around each launch that copies or converts tensors; -1 for none."""
    which = columns.named(lambda name: name in CONVERSIONS, columns.is_of("cpu_op"))
    return nearest(nesting, which)[launches.operator]


def is_pageable_copy(columns: Columns) -> Bools:
    """Return which events copy to a device from memory that is not pinned."""
    return columns.named(_FROM_PAGEABLE.search, columns.is_of("gpu_memcpy"))


def side_work(columns: Columns) -> dict[str, Intervals]:
    """Return when each section for metrics, logging or weight averaging was open."""
    is_section = columns.is_of("user_annotation")
    return {name: span_of(columns, columns.named(name.__eq__, is_section)) for name in SIDE_WORK}


def device_reads(columns: Columns, nesting: Nesting, launches: Launches) -> Ints:
    """Return the rows of the outermost operators that read a value from the device and wait for it.

    Examples: ``.item()``, ``.cpu()``, ``.tolist()``, printing, ``nonzero``. They launch a copy from the device, or have
    such a name and call the runtime; ``.item()`` of a tensor on the host does not call it.
    """
    is_operator = columns.is_of("cpu_op")
    outermost = _outermost_operator(nesting, is_operator)
    to_host = columns.named(TO_HOST.search, columns.is_of("gpu_memcpy"))
    by = launches.operator[to_host]
    calls = columns.named(runtime_calls.COPY_OR_WAIT.search, columns.is_of("cuda_runtime"))
    named = nearest(nesting, columns.named(lambda name: name in READS, is_operator))[calls]
    return distinct(outermost[np.concatenate([by[by != NONE], named[named != NONE]])])


def _outermost_operator(nesting: Nesting, is_operator: Bools) -> Ints:
    """Return the outermost operator around each event, or the event itself if it is one; -1 for none."""
    outermost = np.full(len(is_operator), NONE, np.int64)
    for level, rows in enumerate(nesting.levels):
        above = outermost[nesting.parent[rows]] if level else np.full(len(rows), NONE, np.int64)
        outermost[rows] = np.where(above != NONE, above, np.where(is_operator[rows], rows, NONE))
    return outermost
