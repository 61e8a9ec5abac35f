"""The times of operators, with the device work that they launched, and of kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.launches import Launches, Nesting, is_outermost_of_group, with_children
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, ranked


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of an operator, or its calls with the same input shapes; ns."""

    name: str
    calls: int
    host_self_ns: int  # without the operators that it called
    host_total_ns: int
    device_self_ns: int  # of work that it launched itself
    device_total_ns: int  # also of work launched by the operators that it called
    section: str  # of most of its calls; "" for none
    shapes: str = ""  # of its inputs, as recorded


SORT_KEYS: Final = ("host_self", "host_total", "device_self", "device_total", "calls", "name")


def operators(
    columns: Columns, nesting: Nesting, launches: Launches
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Return the operators, and the operators by shapes of their inputs; most host self time first.

    The second is empty if the trace has no shapes. Calls of the runtime (``cudaLaunchKernel``) are listed as well. The
    work that they launched belongs to the operator around them.
    """
    rows = np.flatnonzero(columns.is_of("cpu_op", "cuda_runtime"))
    if not len(rows):
        return (), ()
    by_operator = _device_time(columns, launches.operator)
    by_call = _device_time(columns, np.where(launches.operator == NONE, launches.call, NONE))
    device_total = by_call + with_children(nesting, by_operator)

    def stats(is_outermost: Bools) -> Sequence[Ints]:
        return (
            nesting.self_ns[rows],
            np.where(is_outermost, (columns.end_ns - columns.begin_ns)[rows], 0),
            (by_call + by_operator)[rows],
            np.where(is_outermost, device_total[rows], 0),
        )

    sections = launches.section[rows]
    names, shapes = columns.name[rows], columns.shapes[rows]
    labels = [(name, "") for name in columns.names]
    by_name = _lines(columns, labels, names, stats(nesting.is_outermost[rows]), sections)
    if not any(columns.shape_texts):
        return by_name, ()
    # One number for each pair of name and shapes.
    width = len(columns.shape_texts) + 1
    pairs, group = ranked(names * width + shapes + 1)
    texts = ("", *columns.shape_texts)
    labels = [(columns.names[pair // width], texts[pair % width]) for pair in pairs.tolist()]
    # An operator may call itself with other shapes.
    return by_name, _lines(columns, labels, group, stats(is_outermost_of_group(nesting, rows, group)), sections)


def sorted_by(listed: Sequence[Operator], key: str) -> list[Operator]:
    """Return the operators by one of ``SORT_KEYS``, the largest first; names from a to z."""
    if key == "name":
        return sorted(listed, key=lambda operator: operator.name)
    attribute = "calls" if key == "calls" else f"{key}_ns"
    return sorted(listed, key=lambda operator: (-getattr(operator, attribute), operator.name))


def _lines(
    columns: Columns, labels: Sequence[tuple[str, str]], group: Ints, stats: Sequence[Ints], sections: Ints
) -> tuple[Operator, ...]:
    """Return a line for each group that has calls; ``labels`` are the groups' names and shapes."""
    size = len(labels)
    calls = np.bincount(group, minlength=size).tolist()
    sums = []
    for values in stats:
        summed = np.zeros(size, np.int64)
        np.add.at(summed, group, values)
        sums.append(summed.tolist())
    host_self, host_total, device_self, device_total = sums
    named = _most_frequent(group, sections, columns, size)
    listed = [
        Operator(name, calls[i], host_self[i], host_total[i], device_self[i], device_total[i], named[i], shapes)
        for i, (name, shapes) in enumerate(labels)
        if calls[i]
    ]
    return tuple(sorted(listed, key=lambda operator: (-operator.host_self_ns, operator.name, operator.shapes)))


def _device_time(columns: Columns, launched_by: Ints) -> Ints:
    """Return the device time of the work that each host event launched itself."""
    time = np.zeros(len(columns.begin_ns), np.int64)
    known = np.flatnonzero(launched_by != NONE)
    np.add.at(time, launched_by[known], columns.end_ns[known] - columns.begin_ns[known])
    return time


def _most_frequent(group: Ints, sections: Ints, columns: Columns, size: int) -> list[str]:
    """Return the section of most members of each group; "" if most are in none."""
    names = np.where(sections == NONE, NONE, columns.name[sections])
    width = len(columns.names) + 1
    pair_of = group * width + names + 1
    if size * width <= len(group):  # then counting takes less time than sorting
        counts = np.bincount(pair_of)
        pairs = np.flatnonzero(counts)
        counts = counts[pairs]
    else:
        pairs, counts = np.unique(pair_of, return_counts=True)
    section_names = [""] * size
    most = [0] * size
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        which, name = divmod(pair, width)
        if count > most[which]:
            section_names[which], most[which] = columns.names[name - 1] if name else "", count
    return section_names


SHORT_NS: Final = 10_000
MIDDLING_NS: Final = 100_000
DENSE: Final = (kernel_names.MATMUL, kernel_names.CONVOLUTION)
MOST_UNCLASSIFIED: Final = 0.05  # of kernel time; public traces of today's programs stay below it


@dataclass(frozen=True, slots=True)
class Kernel:
    """All runs of one kernel; ns."""

    name: str
    kind: str
    calls: int
    total_ns: int
    shorter_than_launch: int  # runs shorter than the call that launched them
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


def kernels_of(columns: Columns, launches: Launches) -> Kernels:
    """Return the kernels of a trace."""
    is_kernel = columns.is_of("kernel")
    rows = np.flatnonzero(is_kernel)
    duration = (columns.end_ns - columns.begin_ns)[rows]
    total_ns = int(duration.sum())
    calls = launches.call[rows]
    # A graph launch is one call for all its kernels, so no kernel's own launch is known.
    known = calls != NONE
    launched = np.bincount(calls[known], minlength=1)
    known[known] = launched[calls[known]] == 1
    is_shorter = np.zeros(len(rows), np.bool_)
    is_shorter[known] = duration[known] < (columns.end_ns - columns.begin_ns)[calls[known]]
    kernels = _by_name(columns, rows, duration, is_shorter)
    by_kind: dict[str, int] = {}
    for kernel in kernels:
        by_kind[kernel.kind] = by_kind.get(kernel.kind, 0) + kernel.total_ns

    dense = [kernel for kernel in kernels if kernel.kind in DENSE and not kernel.is_tensor_core]
    on_other_cores_ns = sum(kernel.total_ns for kernel in dense if kernel_names.lacks_tensor_cores(kernel.name))

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
        attention_ns=by_kind.get(kernel_names.ATTENTION, 0),
        unclassified_share=share(by_kind.get(kernel_names.UNCLASSIFIED, 0)),
        launch_bound_count=int(is_shorter.sum()),
        launch_known_count=int(known.sum()),
        by_kind_ns=dict(sorted(by_kind.items(), key=lambda item: -item[1])),
        on_other_cores_ns=on_other_cores_ns,
        on_unknown_cores_ns=sum(kernel.total_ns for kernel in dense) - on_other_cores_ns,
        without_launch=int((launches.call[columns.is_gpu()] == NONE).sum()),
    )


def _by_name(columns: Columns, rows: Ints, duration: Ints, is_shorter: Bools) -> list[Kernel]:
    name = columns.name[rows]
    size = len(columns.names)
    calls, totals = np.bincount(name, minlength=size), np.bincount(name, duration, size)
    shorter = np.bincount(name, is_shorter, size)
    occupancy = _weighted(columns.occupancy[rows], duration, name, size)
    blocks = _weighted(columns.blocks_per_sm[rows], duration, name, size)
    kernels = []
    for i in dict.fromkeys(name.tolist()):  # in order of first run, which breaks ties
        label = columns.names[i]
        kernels.append(
            Kernel(
                name=label,
                kind=kernel_names.kind_of(label),
                calls=int(calls[i]),
                total_ns=int(totals[i]),
                shorter_than_launch=int(shorter[i]),
                occupancy=None if occupancy[i] is None else occupancy[i] / 100,
                blocks_per_sm=blocks[i],
                is_tensor_core=kernel_names.uses_tensor_cores(label),
                is_flash=kernel_names.is_flash(label),
            )
        )
    return sorted(kernels, key=lambda kernel: -kernel.total_ns)


def _weighted(values: "np.ndarray", weights: Ints, group: Ints, size: int) -> list[float | None]:
    """Return the weighted mean of the known values in each group; None without any."""
    known = ~np.isnan(values)
    sums = np.bincount(group[known], values[known] * weights[known], size)
    together = np.bincount(group[known], weights[known], size)
    return [float(a / b) if b else None for a, b in zip(sums, together, strict=True)]
