"""The times of operators, with the device work that they launched, and of kernels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.base.peaks import peak_memory_of, peak_of
from training_profiler.base.units import FLOPS_PER_TFLOP, NS_PER_S
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, Columns, Ints, Numbers, summed
from training_profiler.trace_analysis.events import CallTimes, TracedEvents
from training_profiler.trace_analysis.work_formulas import ELEMENTWISE, FORMULAS, REDUCTION, Inputs, call_work

SORT_KEYS: Final = ("host_self", "host_total", "device_self", "device_total", "calls", "name")


def operators(events: TracedEvents) -> tuple[tuple[CallTimes, ...], tuple[CallTimes, ...]]:
    """Return the operators, and the operators by shapes of their inputs; most host self time first.

    The second is empty if the trace has no shapes. Calls of the runtime (``cudaLaunchKernel``) are listed as well. The
    work that they launched belongs to the operator around them.
    """
    columns, nesting, launches = events.columns, events.nesting, events.launches
    rows = np.flatnonzero(columns.is_of("cpu_op", "cuda_runtime"))
    if not len(rows):
        return (), ()
    by_operator = _device_time(columns, launches.operator)
    by_call = _device_time(columns, np.where(launches.operator == NONE, launches.call, NONE))
    device_total = by_call + nesting.with_children(by_operator)

    def stats(group: Ints) -> Sequence[Ints]:
        groups = np.full(len(nesting.parent), NONE, np.int64)
        groups[rows] = group
        is_outermost = nesting.outermost(groups)[rows]
        return (
            nesting.self_ns[rows],
            np.where(is_outermost, columns.length_ns[rows], 0),
            (by_call + by_operator)[rows],
            np.where(is_outermost, device_total[rows], 0),
        )

    sections = launches.section[rows]
    names = columns.name[rows]
    by_name = _lines(columns, [(name, "") for name in columns.names], names, stats(names), sections)
    if not any(columns.shapes.texts):
        return by_name, ()
    labels, group = columns.named_and_shaped
    # An operator may call itself with other shapes.
    return by_name, _lines(columns, labels, group[rows], stats(group[rows]), sections)


def sorted_by(listed: Sequence[CallTimes], key: str) -> list[CallTimes]:
    """Return the operators by one of ``SORT_KEYS``, the largest first; names from a to z."""
    if key == "name":
        return sorted(listed, key=lambda operator: operator.name)
    attribute = "calls" if key == "calls" else f"{key}_ns"
    return sorted(listed, key=lambda operator: (-getattr(operator, attribute), operator.name))


def _lines(
    columns: Columns, labels: Sequence[tuple[str, str]], group: Ints, stats: Sequence[Ints], sections: Ints
) -> tuple[CallTimes, ...]:
    size = len(labels)
    calls = np.bincount(group, minlength=size).tolist()
    host_self, host_total, device_self, device_total = (summed(group, values, size).tolist() for values in stats)
    named = _most_frequent(group, sections, columns, size)
    listed = [
        CallTimes(name, calls[i], host_self[i], host_total[i], device_self[i], device_total[i], 0, named[i], shapes)
        for i, (name, shapes) in enumerate(labels)
        if calls[i]
    ]
    return tuple(sorted(listed, key=lambda operator: (-operator.host_self_ns, operator.name, operator.shapes)))


def _device_time(columns: Columns, launched_by: Ints) -> Ints:
    known = np.flatnonzero(launched_by != NONE)
    return summed(launched_by[known], columns.length_ns[known], len(columns.begin_ns))


def _most_frequent(group: Ints, sections: Ints, columns: Columns, size: int) -> list[str]:
    most, found = [0] * size, [""] * size
    pairs = Counter(zip(group.tolist(), np.where(sections == NONE, NONE, columns.name[sections]).tolist(), strict=True))
    for (which, name), count in sorted(pairs.items()):
        if count > most[which]:
            most[which], found[which] = count, "" if name == NONE else columns.names[name]
    return found


SHORT_NS: Final = 10_000
MIDDLING_NS: Final = 100_000
DENSE: Final = (known_names.MATMUL, known_names.CONVOLUTION)
MOST_UNCLASSIFIED: Final = 0.05  # of kernel time; public traces of today's programs stay below it


@dataclass(frozen=True, slots=True)
class Kernel:
    """All runs of one kernel; ns."""

    name: str
    kind: str
    calls: int
    total_ns: int
    occupancy: float | None  # estimated, mean by time, 0 to 1
    blocks_per_sm: float | None
    is_tensor_core: bool
    is_flash: bool

    @property
    def mean_ns(self) -> float:
        """The mean of one run."""
        return self.total_ns / self.calls


@dataclass(frozen=True, slots=True)
class Kernels:
    """All kernels of the trace; times in ns, shares of total kernel time, 0 to 1, None if unknown."""

    rows: tuple[Kernel, ...]  # the longest total first
    count: int
    total_ns: int
    short_count: int  # below 10 us
    short_share: float | None
    below_100us_share: float | None
    tensor_core_share: float | None  # by name
    flash_ns: int
    attention_ns: int  # kernels of attention, by name
    unclassified_share: float | None
    launch_bound_count: int  # runs shorter than their launch, of those whose launch is known
    launch_known_count: int
    by_kind_ns: dict[str, int]
    on_other_cores_ns: int  # matrix products and convolutions that do not use tensor cores, by name
    on_unknown_cores_ns: int  # those whose name shows neither
    without_launch: int  # pieces of device work without a recorded call

    @property
    def are_known(self) -> bool:
        """Whether so few kernels are unclassified that a kind can be said to be absent."""
        return self.unclassified_share is not None and self.unclassified_share <= MOST_UNCLASSIFIED


def kernels_of(events: TracedEvents) -> Kernels:
    """Return the kernels of a trace."""
    columns, launches = events.columns, events.launches
    rows = np.flatnonzero(columns.is_of("kernel"))
    duration = columns.length_ns[rows]
    total_ns = int(duration.sum())
    calls = launches.call[rows]
    # A graph launch is one call for all its kernels, so no kernel's own launch is known.
    known = calls != NONE
    launched = np.bincount(calls[known], minlength=1)
    known[known] = launched[calls[known]] == 1
    is_shorter = np.zeros(len(rows), np.bool_)
    is_shorter[known] = duration[known] < columns.length_ns[calls[known]]
    kernels = _by_name(columns, rows, duration)
    by_kind: Counter[str] = Counter()
    for kernel in kernels:
        by_kind[kernel.kind] += kernel.total_ns
    dense = [kernel for kernel in kernels if kernel.kind in DENSE and not kernel.is_tensor_core]
    on_other_cores_ns = sum(kernel.total_ns for kernel in dense if known_names.lacks_tensor_cores(kernel.name))

    def share(ns: int) -> float | None:
        return ns / total_ns if total_ns else None

    return Kernels(
        rows=tuple(kernels),
        count=len(rows),
        total_ns=total_ns,
        short_count=int((duration < SHORT_NS).sum()),
        short_share=share(int(duration[duration < SHORT_NS].sum())),
        below_100us_share=share(int(duration[duration < MIDDLING_NS].sum())),
        tensor_core_share=share(sum(kernel.total_ns for kernel in kernels if kernel.is_tensor_core)),
        flash_ns=sum(kernel.total_ns for kernel in kernels if kernel.is_flash),
        attention_ns=by_kind[known_names.ATTENTION],
        unclassified_share=share(by_kind[known_names.UNCLASSIFIED]),
        launch_bound_count=int(is_shorter.sum()),
        launch_known_count=int(known.sum()),
        by_kind_ns=dict(by_kind.most_common()),
        on_other_cores_ns=on_other_cores_ns,
        on_unknown_cores_ns=sum(kernel.total_ns for kernel in dense) - on_other_cores_ns,
        without_launch=int((launches.call[columns.is_gpu()] == NONE).sum()),
    )


def _by_name(columns: Columns, rows: Ints, duration: Ints) -> list[Kernel]:
    name = columns.name[rows]
    size = len(columns.names)
    calls, totals = np.bincount(name, minlength=size), np.bincount(name, duration, size)
    occupancy = _weighted(columns.occupancy[rows], duration, name, size)
    blocks = _weighted(columns.blocks_per_sm[rows], duration, name, size)
    kernels = []
    for i in dict.fromkeys(name.tolist()):  # in order of first run, which breaks ties
        label = columns.names[i]
        kernels.append(
            Kernel(
                name=label,
                kind=known_names.kind_of(label),
                calls=int(calls[i]),
                total_ns=int(totals[i]),
                occupancy=None if occupancy[i] is None else occupancy[i] / 100,
                blocks_per_sm=blocks[i],
                is_tensor_core=known_names.uses_tensor_cores(label),
                is_flash=known_names.is_flash(label),
            )
        )
    return sorted(kernels, key=lambda kernel: -kernel.total_ns)


def _weighted(values: "np.ndarray", weights: Ints, group: Ints, size: int) -> list[float | None]:
    known = ~np.isnan(values)
    sums = np.bincount(group[known], values[known] * weights[known], size)
    together = np.bincount(group[known], weights[known], size)
    return [float(a / b) if b else None for a, b in zip(sums, together, strict=True)]


COMPUTE: Final = "compute"
MEMORY: Final = "memory"
MOVES_ONLY: Final = (ELEMENTWISE, REDUCTION)
MOST: Final = 1.0  # of the roof; more is not possible with the work that the formula counts
_BYTES_PER_TB: Final = 1e12


@dataclass(frozen=True, slots=True)
class Rate:
    """All calls of an operator with the same inputs on one kind of device; None if unknown."""

    name: str
    kind: str
    shapes: str
    dtype: str  # "" unknown
    device: str
    calls: int  # that launched work; each replay of a captured call counts
    device_ns: int  # of the kernels that they launched
    flops: int | None  # of all calls; None for operators that only move memory as well
    bytes: int | None  # the least that they must move
    peak_type: str  # the type, or tf32 if the kernels compute float32 on tensor cores
    peak_tflops: float | None
    peak_tb_s: float | None
    lacks: tuple[str, ...]  # what would have to be known for the rest

    @property
    def only_moves(self) -> bool:
        """Whether only its memory traffic counts."""
        return self.kind in MOVES_ONLY

    @property
    def tflops(self) -> float | None:
        """Achieved, in 1e12 per second."""
        return None if self.flops is None else self.flops / FLOPS_PER_TFLOP / (self.device_ns / NS_PER_S)

    @property
    def tb_s(self) -> float | None:
        """Moved at least, in 1e12 bytes per second."""
        return None if self.bytes is None else self.bytes / _BYTES_PER_TB / (self.device_ns / NS_PER_S)

    @property
    def least_s(self) -> dict[str, float]:
        """What computation and memory need at least, as far as work and peak are known."""
        least = {}
        if self.flops is not None and self.peak_tflops is not None:
            least[COMPUTE] = self.flops / FLOPS_PER_TFLOP / self.peak_tflops
        if self.bytes is not None and self.peak_tb_s is not None:
            least[MEMORY] = self.bytes / _BYTES_PER_TB / self.peak_tb_s
        return least

    @property
    def bound(self) -> str:
        """What limits it on that device; "" if one of the two is unknown."""
        least = self.least_s
        is_known = MEMORY in least and (self.only_moves or COMPUTE in least)
        return max(least, key=least.__getitem__) if is_known else ""

    @property
    def share_of_roof(self) -> float | None:
        """The least time over the time taken; None if the bound is unknown."""
        return self.least_s[self.bound] / (self.device_ns / NS_PER_S) if self.bound else None

    @property
    def is_above_roof(self) -> bool:
        """Whether it was faster than the counted work allows."""
        return any(least > MOST * self.device_ns / NS_PER_S for least in self.least_s.values())


@dataclass(frozen=True, slots=True)
class Roofline:
    """The operators with a formula, those with most device time first."""

    rates: tuple[Rate, ...]
    kernel_ns: int  # of all kernels and fills but communication
    rated_ns: int  # of those whose operator has a known share of the roof


def roofline_of(events: TracedEvents) -> Roofline:
    """Return what the operators achieve; one that also copies without a kernel is left out: no formula counts that."""
    columns, launches, length_ns = events.columns, events.launches, events.columns.length_ns
    computes = columns.is_of("kernel", "gpu_memset") & ~events.communicates
    is_counted = np.array([name in FORMULAS for name in columns.names], np.bool_)
    works = np.flatnonzero(columns.is_gpu() & (launches.operator != NONE))
    works = works[is_counted[columns.name[launches.operator[works]]]]
    also_copies = np.zeros(len(computes), np.bool_)
    also_copies[launches.operator[works[~computes[works]]]] = True
    works = works[~also_copies[launches.operator[works]]]
    operator = launches.operator[works]
    groups = Numbers()
    of = (columns.name[operator], columns.inputs[operator], columns.device[works])
    group, call = groups.of(zip(*(array.tolist() for array in of), strict=True)), launches.call[works]
    replay = np.where((call != NONE) & columns.is_graph_launch()[call], call, NONE)
    runs = Counter(of for of, *_ in {*zip(group.tolist(), operator.tolist(), replay.tolist(), strict=True)})
    total_ns = np.bincount(group, length_ns[works], len(groups))
    uses_tensor_cores = columns.named(known_names.uses_tensor_cores, "kernel")[works]
    tensor_ns = np.bincount(group, np.where(uses_tensor_cores, length_ns[works], 0), len(groups))
    rates = [
        _rate(columns, key, int(total_ns[i]), runs[i], tensor_ns[i] > total_ns[i] / 2)
        for key, i in sorted(groups.items())
        if total_ns[i] > 0
    ]
    rates.sort(key=lambda rate: (-rate.device_ns, rate.name, rate.shapes))
    rated_ns = sum(rate.device_ns for rate in rates if rate.share_of_roof is not None)
    return Roofline(tuple(rates), int(length_ns[computes].sum()), rated_ns)


def _rate(columns: Columns, key: Sequence[int], device_ns: int, calls: int, uses_tensor_cores: bool) -> Rate:
    name, inputs, index = columns.names[key[0]], columns.input_texts[key[1]], key[2]
    work = call_work(name, Inputs(*inputs))
    assert work is not None  # only operators with a formula are asked for
    device = columns.name_of_device(index)
    peak_type = "tf32" if work.dtype == "float32" and uses_tensor_cores else work.dtype
    peak = None if work.kind in MOVES_ONLY else peak_of(device, peak_type)
    memory = peak_memory_of(device)
    missing = ["FLOP/s"] if (peak is None) and work.flops is not None else []
    missing += ["bandwidth"] if (memory is None) else []
    return Rate(
        name=name,
        kind=work.kind,
        shapes=inputs[0],
        dtype=work.dtype,
        device=device,
        calls=calls,
        device_ns=device_ns,
        flops=None if work.flops is None else work.flops * calls,
        bytes=None if work.bytes is None else work.bytes * calls,
        peak_type=peak_type,
        peak_tflops=None if peak is None else peak[0],
        peak_tb_s=memory,
        lacks=tuple(filter(None, (work.lacks, (f"peak {' and '.join(missing)} of the device" if missing else "")))),
    )
