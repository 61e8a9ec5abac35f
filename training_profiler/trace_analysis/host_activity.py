"""What a trace shows of the host by name (waits, copies, allocations), and which part of a step each work is of."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.base.sections import EMA_UPDATE, LOGGING, METRICS_COMPUTATION
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, NOTHING, Bools, Columns, Intervals, Ints
from training_profiler.trace_analysis.events import WAITS_FOR_BATCH, TracedEvents, step_at
from training_profiler.trace_analysis.launches import captures_of

DATA_LOADER: Final = re.compile(r"^enumerate\(DataLoader\)")
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
COMPILED: Final = re.compile(r"CompiledFxGraph|Torch-Compiled Region|CompiledFunction")
SERVES: Final = re.compile(r"\b(vllm|sglang|sgl_kernel|tensorrt_llm|trtllm)(::|_|\b)", re.IGNORECASE)
_STARTS_WORKERS: Final = "_MultiProcessingDataLoaderIter"
LEAST_WAITS: Final = 4  # for the first of them to be longer than usual
LEAST_LONGER: Final = 2  # times the usual wait
ON_HOST: Final = re.compile(r"^(gloo|mpi|ucc):")  # as torch's process groups mark them
SIDE_WORK: Final = (METRICS_COMPUTATION, LOGGING, EMA_UPDATE)


@dataclass(frozen=True, slots=True)
class TracedModuleCalls:
    """All calls of one name; ns."""

    name: str
    count: int
    total_ns: int
    bytes: int | None = None  # of those calls that have it; None without any


def calls_named(columns: Columns, which: Bools | Ints, has_bytes: bool = False) -> tuple[TracedModuleCalls, ...]:
    """Return the calls of each name, in order of their first occurrence; ``which`` may be rows."""
    rows = np.flatnonzero(which) if which.dtype == np.bool_ else which
    by_name: dict[int, list[int]] = defaultdict(list)
    for name, row in zip(columns.name[rows].tolist(), rows.tolist(), strict=True):
        by_name[name].append(row)
    length_ns, copied = columns.length_ns, columns.bytes
    known = {name: copied[of][copied[of] >= 0] for name, of in by_name.items() if has_bytes}
    return tuple(
        TracedModuleCalls(
            columns.names[i], len(of), int(length_ns[of].sum()), int(known[i].sum()) if len(known.get(i, ())) else None
        )
        for i, of in by_name.items()
    )


def data_loading(events: TracedEvents) -> TracedModuleCalls:
    """Return the waits for batches that torch itself marks."""
    columns = events.columns
    which = columns.named(DATA_LOADER.search, "user_annotation")
    return TracedModuleCalls("enumerate(DataLoader)", int(which.sum()), int(columns.length_ns[which].sum()))


def _worker_start(columns: Columns) -> Intervals:
    """Return the part of the first wait for workers beyond the usual one: they start then, which happens once.

    Without enough later waits, or if it is not much longer, nothing shows that they do.
    """
    rows = np.flatnonzero(columns.named(WAITS_FOR_BATCH.search, "user_annotation"))
    if len(rows) < LEAST_WAITS or _STARTS_WORKERS not in columns.name_of(rows[0]):
        return NOTHING
    length_ns = columns.length_ns[rows]
    usual_ns = int(np.median(length_ns[1:]))
    if length_ns[0] < LEAST_LONGER * usual_ns:
        return NOTHING
    begin_ns = columns.begin_ns[rows[:1]]
    return Intervals(begin_ns, begin_ns + length_ns[0] - usual_ns)


def conversions(events: TracedEvents) -> tuple[TracedModuleCalls, int]:
    """Return copies and conversions of tensors on a device, and their time within the scope.

    Their time is that in which the device did nothing else. What they copy from and to the host is the matter of other
    rules, and communication needs its own copies.
    """
    columns = events.columns
    work = is_conversion(events)
    made = np.zeros(len(work), np.bool_)
    made[_converting(events)[work]] = True
    calls = np.bincount(columns.name[made], minlength=1)  # one of the two may call the other
    others = columns.span(columns.is_gpu() & ~work)
    either = columns.span(work) | others
    found = TracedModuleCalls(CONVERSIONS[0], int(calls.max()), either.total_ns - others.total_ns)
    return found, events.scope.within(either) - events.scope.within(others)


def is_conversion(events: TracedEvents) -> Bools:
    """Return which work of the device copies or converts tensors on it."""
    columns, operator = events.columns, events.launches.operator
    work: Bools = columns.is_gpu() & (operator != NONE) & (_converting(events) != NONE)
    work &= ~columns.named(WITH_HOST.search, "gpu_memcpy")
    communicating = columns.named(_COMMUNICATES.search, "cpu_op", "user_annotation")
    work &= events.nesting.nearest(communicating)[operator] == NONE
    return work


def _converting(events: TracedEvents) -> Ints:
    """Return the innermost operator around each launch that copies or converts tensors; -1 for none."""
    which = events.columns.named(lambda name: name in CONVERSIONS, "cpu_op")
    return events.nesting.nearest(which)[events.launches.operator]


def device_reads(events: TracedEvents) -> Ints:
    """Return the rows of the outermost operators that read a value from the device and wait for it.

    Examples: ``.item()``, ``.cpu()``, ``.tolist()``, printing, ``nonzero``. They launch a copy from the device, or have
    such a name and call the runtime; ``.item()`` of a tensor on the host does not call it.
    """
    columns, nesting = events.columns, events.nesting
    is_operator = columns.is_of("cpu_op")
    to_host = columns.named(TO_HOST.search, "gpu_memcpy")
    by = events.launches.operator[to_host]
    calls = columns.named(known_names.COPY_OR_WAIT.search, "cuda_runtime")
    named = nesting.nearest(columns.named(lambda name: name in READS, among=is_operator))[calls]
    outermost = np.where(is_operator, np.arange(len(is_operator)), NONE)
    for rows in nesting.levels[1:]:
        above = outermost[nesting.parent[rows]]
        outermost[rows] = np.where(above != NONE, above, outermost[rows])
    return np.unique(outermost[np.concatenate([by[by != NONE], named[named != NONE]])])


_WITHOUT_HOST: Final = re.compile(r"DtoD|PtoP|DeviceToDevice|PeerToPeer|D2D\b|HtoH|HostToHost")


@dataclass(frozen=True, slots=True)
class Transfers:
    """The copies from host to device and back within the scope; those from device to device are none."""

    count: int
    exposed_ns: int | None  # while no device does anything else; None if a copy does not show its direction
    are_blocking: bool  # whether the operators or calls of most of their time return only after them, if known
    are_to_host: bool  # whether most of their time is from device to host


def transfers_of(events: TracedEvents) -> Transfers:
    """Return the copies between host and device."""
    columns, scope = events.columns, events.scope
    is_copy = columns.is_of("gpu_memcpy")
    is_transfer = columns.named(WITH_HOST.search, among=is_copy)
    is_other = columns.named(_WITHOUT_HOST.search, among=is_copy) & ~is_transfer
    others = columns.span(columns.is_gpu() & ~is_transfer)
    exposed_ns = scope.within(columns.span(is_transfer) | others) - scope.within(others)
    within = (columns.end_ns >= scope.parts[0].begin_ns) & (columns.begin_ns <= scope.end_ns)
    rows = np.flatnonzero(is_transfer & within)
    length_ns = columns.length_ns[rows]
    to_host = columns.named(TO_HOST.search, among=is_copy)[rows]
    # A copy is not awaited if the operator that launched it, or the call, has returned. One from memory that is not
    # pinned may end a moment after its call.
    by = np.where(events.launches.operator != NONE, events.launches.operator, events.launches.call)[rows]
    middle_ns = (columns.begin_ns + columns.end_ns)[rows] // 2
    is_not_awaited = (by != NONE) & (columns.end_ns[by] < middle_ns)
    return Transfers(
        len(rows),
        None if (is_copy & ~is_transfer & ~is_other).any() else exposed_ns,
        2 * int(length_ns[is_not_awaited].sum()) <= int(length_ns.sum()),
        2 * int(length_ns[to_host].sum()) > int(length_ns.sum()),
    )


@dataclass(frozen=True, slots=True)
class LayoutConversions:
    """What the conversions take; ns."""

    kernels: int
    total_ns: int  # in which the device did nothing else
    saved_ns: int  # of the scope, without them
    is_miopen: bool  # whether they are MIOpen's


NO_CONVERSIONS: Final = LayoutConversions(0, 0, 0, False)


def layout_conversions(events: TracedEvents) -> LayoutConversions:
    """Return the conversions of layout, without those in operators that copy.

    A convolution has two inputs and one output. Where most conversions are to NCHW, the tensors are in NHWC already.
    If the device is idle for longer than they take, it waits for the host: then only their launches are saved.
    """
    columns = events.columns
    which = columns.named(known_names.LAYOUT.search, "kernel")
    if not which.any() or 2 * columns.named(known_names.TO_NCHW.search, among=which).sum() > which.sum():
        return NO_CONVERSIONS
    which &= ~is_conversion(events)
    others = columns.span(columns.is_gpu() & ~which)
    either = columns.span(which) | others
    calls = events.launches.call[which]
    calls = calls[calls != NONE]
    calling = columns.span(calls[~columns.is_graph_launch()[calls]])
    bounds = events.scope.bounds
    alone_ns = either.within(*bounds) - others.within(*bounds)
    idle_ns = np.array([part.idle_ns for part in events.scope.parts], np.int64)
    saved_ns = np.maximum(alone_ns - idle_ns, np.minimum(calling.within(*bounds), idle_ns))
    return LayoutConversions(
        int(which.sum()),
        either.total_ns - others.total_ns,
        int(saved_ns.sum()),
        bool(columns.named(known_names.MIOPEN_LAYOUT.search, among=which).any()),
    )


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


def waiting_of(events: TracedEvents, reads: Ints) -> HostWaiting:
    """Return what the host waits for; ``reads`` are the operators that read from the device."""
    columns, scope = events.columns, events.scope
    is_mark = columns.is_of("user_annotation")
    waits = columns.named(WAITS_FOR_BATCH.search, among=is_mark)
    captured = Intervals.of(*captures_of(columns)).within(columns.begin_ns, columns.begin_ns + 1) > 0
    allocations = columns.named(known_names.ALLOCATE.search, "cuda_runtime") & events.in_scope & ~captured
    reads = reads[events.in_scope[reads]]
    return HostWaiting(
        tuple(columns.span(waits).within(*scope.bounds).tolist()),
        tuple(columns.names[i] for i in dict.fromkeys(columns.name.compress(waits).tolist())),
        scope.within(_worker_start(columns)),
        scope.within(columns.span(allocations)),
        int(allocations.sum()),
        int(columns.length_ns[allocations].max(initial=0)),
        scope.within(columns.span(reads)),
        tuple(sorted(calls_named(columns, reads), key=lambda calls: -calls.total_ns)),
        {name: scope.within(columns.span(columns.named(name.__eq__, among=is_mark))) for name in SIDE_WORK},
    )


def pageable_copies(events: TracedEvents) -> TracedModuleCalls:
    """Return the copies to a device from memory that is not pinned, in the scope; those at once count once."""
    columns, scope = events.columns, events.scope
    rows = np.flatnonzero(columns.named(_FROM_PAGEABLE.search, "gpu_memcpy"))
    ends_ns = np.maximum(columns.end_ns, columns.begin_ns + 1)  # older traces have copies of 0 us
    rows = rows[scope.windows.within(columns.begin_ns[rows], ends_ns[rows]) > 0]
    return TracedModuleCalls("", len(rows), scope.within(columns.span(rows)))


LEAST_STEPS: Final = 3


def launched_at(events: TracedEvents, rows: Ints) -> Ints:
    """Return when each of these works was launched; for an unknown launch when it began."""
    begin_ns, by = events.columns.begin_ns, events.launches.by[rows]
    return np.where(by != NONE, begin_ns[by], begin_ns[rows])


def step_of_each(events: TracedEvents) -> Ints:
    """Return the step of each event, of device work that of its launch; -1 for none.

    Without marked steps all is one: the call that launched the first work precedes it.
    """
    if not events.steps:
        return np.zeros(len(events.columns.begin_ns), np.int64)
    return step_at(events.steps, launched_at(events, np.arange(len(events.columns.begin_ns))))


def free_since(events: TracedEvents) -> int:
    """Return when the device had done what was launched before the scope; at the latest the begin of its first work."""
    columns, begin_ns = events.columns, events.scope.parts[0].begin_ns
    works = np.flatnonzero(columns.is_gpu())
    is_earlier = launched_at(events, works) < begin_ns
    first_ns = int(columns.begin_ns[works[~is_earlier]].min(initial=np.iinfo(np.int64).max))
    return max(begin_ns, min(first_ns, int(columns.end_ns[works[is_earlier]].max(initial=begin_ns))))


def pace_variation(events: TracedEvents) -> float | None:
    """Return the coefficient of variation of the times that the device needs for the steps, one after another.

    None if the host was not ahead of the device at the end of each step that is shorter than the mean, and below three
    steps. The first steps of a window are short because they only fill the queue of launches; later ones wait for room.
    """
    steps = events.steps
    if len(steps) < LEAST_STEPS:
        return None
    begins, ends = events.scope.bounds
    works = np.flatnonzero(events.columns.is_gpu())
    step = step_at(steps, launched_at(events, works))
    done_ns = np.full(len(steps), NONE, np.int64)
    np.maximum.at(done_ns, step[step != NONE], events.columns.end_ns[works[step != NONE]])
    is_short = ends - begins < (ends - begins).mean()
    if (done_ns == NONE).any() or (done_ns[is_short] <= ends[is_short]).any():
        return None
    needed_ns = np.diff(np.maximum.accumulate(done_ns), prepend=free_since(events)).astype(np.float64)
    return float(needed_ns.std(ddof=1) / needed_ns.mean()) if needed_ns.mean() else None


FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
PHASES: Final = (FORWARD, BACKWARD, OPTIMIZER)
# Times the forward pass: each product of it has two gradients, for its input and for its weight.
USUAL_BACKWARD: Final = 2
# The marks of torch (older versions use the name of the autograd function), the names of our sections and common names
# of annotations.
MARKS: Final[Mapping[str, re.Pattern[str]]] = {
    BACKWARD: re.compile(
        r"^autograd::engine::evaluate_function|^(torch::autograd::)?\w*Backward\d*$|^torch::autograd::AccumulateGrad"
        r"|^backward_pass$|^(##\s*)?backward\b|\([BW]\)$"
    ),
    OPTIMIZER: re.compile(r"^Optimizer\.(step|zero_grad)#|^optimizer_step$|^(##\s*)?optimizer\b"),
    FORWARD: re.compile(r"^forward_pass$|^(##\s*)?forward\b|\(F\)$"),
}


@dataclass(frozen=True, slots=True)
class TracedPhases:
    """Device time and kernels of the parts of a step."""

    times_ns: Mapping[str, int] | None  # by phase, of what the scope launched, of devices the sum; None if unknown
    passes_ns: int  # forward and backward together; what runs at the same time counts once
    wall_ns: int  # that one device had for what the scope launched
    optimizer_kernels: int  # launched by optimizers, within the scope
    multi_tensor_kernels: int  # of these, those that update many tensors at once


def phases_of(events: TracedEvents) -> TracedPhases:
    """Return the device time of each phase of what the scope launched.

    The device may do part of that after the scope, and at its begin what was launched before.

    If the trace marks the forward pass, the mark counts. Otherwise forward is all work that was launched in the scope
    and belongs to neither of the other phases. Without a backward pass there are no phases. Kernels that run at the
    same time on a device count once.
    """
    columns = events.columns
    rows = np.flatnonzero(columns.is_of("kernel") & ~events.communicates)
    by = events.launches.by[rows]
    is_launched = (by != NONE) & events.in_scope[by]
    rows = rows[is_launched]
    phase = phase_of(events, by[is_launched])
    of = {name: rows[phase == i] for i, name in enumerate(PHASES)}
    passes = rows[np.isin(phase, [PHASES.index(FORWARD), PHASES.index(BACKWARD)])]
    multi_tensor = columns.named(known_names.MULTI_TENSOR.search, "kernel")
    return TracedPhases(
        {name: _device_ns(events, works) for name, works in of.items()} if len(of[BACKWARD]) else None,
        _device_ns(events, passes),
        _wall_ns(events),
        len(of[OPTIMIZER]),
        int(multi_tensor[of[OPTIMIZER]].sum()),
    )


def phase_of(events: TracedEvents, rows: Ints) -> Ints:
    """Return the phase of host events as an index into ``PHASES``; -1 for none.

    If one of them is within a marked forward pass, only those are. Otherwise forward is the rest.
    """
    columns, section = events.columns, events.launches.section[rows]
    within = {}
    for phase, marks in MARKS.items():
        around = events.nesting.nearest(columns.named(marks.search, "cpu_op", "user_annotation"))
        within[phase] = (around[rows] != NONE) | ((section != NONE) & (around[section] != NONE))
    rest = ~within[BACKWARD] & ~within[OPTIMIZER]
    is_forward = within[FORWARD] & rest if (within[FORWARD] & rest).any() else rest
    phases = [PHASES.index(name) for name in (BACKWARD, OPTIMIZER, FORWARD)]
    found: Ints = np.select([within[BACKWARD], within[OPTIMIZER], is_forward], phases, NONE)
    return found


def _wall_ns(events: TracedEvents) -> int:
    """Return the length of the scope, without the time for earlier work and with that for its own after its end."""
    call, scope = events.launches.call, events.scope
    works = np.flatnonzero(events.columns.is_gpu() & (call != NONE))
    works = works[events.in_scope[call[works]]]
    if not scope.is_steps or not len(works):
        return scope.wall_ns
    extent = scope.windows | events.columns.span(works)
    return int(extent.within(np.array([free_since(events)], np.int64), extent.end_ns[-1:]).sum())


def _device_ns(events: TracedEvents, rows: Ints) -> int:
    devices = events.columns.device[rows]
    return sum(events.columns.span(rows[devices == device]).total_ns for device in np.unique(devices))
