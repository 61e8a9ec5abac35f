"""Kernels by name and by kind."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints

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
