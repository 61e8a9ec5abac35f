"""What operators achieve by input shape and type, beside what their device can do (the roofline model).

An operator that does F FLOPs and moves B bytes cannot take less time than max(F / peak FLOP/s, B / peak bandwidth)
(Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.base.units import FLOPS_PER_TFLOP, NS_PER_S
from training_profiler.tables.peaks import peak_memory_of, peak_of
from training_profiler.trace_analysis import kernel_names, runtime_calls
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct, ranked
from training_profiler.trace_analysis.work_formulas import (
    ELEMENTWISE,
    FORMULAS,
    REDUCTION,
    CallWork,
    Inputs,
    call_work,
)

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


def roofline_of(columns: Columns, launches: Launches, communicates: Bools) -> Roofline:
    """Return what the operators achieve; one that also copies without a kernel is left out: no formula counts that."""
    length_ns = columns.end_ns - columns.begin_ns
    computes = columns.is_of("kernel", "gpu_memset") & ~communicates
    is_counted = np.array([name in FORMULAS for name in columns.names], np.bool_)
    works = np.flatnonzero(columns.is_gpu() & (launches.operator != NONE))
    works = works[is_counted[columns.name[launches.operator[works]]]]
    also_copies = np.zeros(len(computes), np.bool_)
    also_copies[launches.operator[works[~computes[works]]]] = True
    works = works[~also_copies[launches.operator[works]]]
    operator = launches.operator[works]
    inputs, devices = len(columns.input_texts) + 1, int(columns.device.max(initial=0)) + 2
    given, device = columns.inputs[operator] + 1, columns.device[works] + 1
    keys, group = ranked((columns.name[operator] * inputs + given) * devices + device)
    groups = [(key // devices // inputs, key // devices % inputs - 1, key % devices - 1) for key in keys.tolist()]
    runs = _runs(columns, launches, works, group, len(groups))
    total_ns = np.bincount(group, length_ns[works], len(groups))
    uses_tensor_cores = columns.named(kernel_names.uses_tensor_cores, columns.is_of("kernel"), takes_long=True)[works]
    tensor_ns = np.bincount(group, np.where(uses_tensor_cores, length_ns[works], 0), len(groups))
    rates = [
        _rate(columns, key, int(total_ns[i]), int(runs[i]), tensor_ns[i] > total_ns[i] / 2)
        for i, key in enumerate(groups)
        if total_ns[i] > 0
    ]
    rates.sort(key=lambda rate: (-rate.device_ns, rate.name, rate.shapes))
    rated_ns = sum(rate.device_ns for rate in rates if rate.share_of_roof is not None)
    return Roofline(tuple(rates), int(length_ns[computes].sum()), rated_ns)


def _runs(columns: Columns, launches: Launches, works: Ints, group: Ints, size: int) -> Ints:
    """Return how often the calls of each group ran: a call captured into a graph runs with each replay."""
    call = launches.call[works]
    is_graph = columns.named(runtime_calls.LAUNCH_GRAPH.search, columns.is_of("cuda_runtime"))
    replay = np.where((call != NONE) & is_graph[call], call, NONE)
    _, run = ranked(launches.operator[works] * (len(is_graph) + 1) + replay + 1)
    return np.bincount(distinct(run * size + group) % size, minlength=size)


def _rate(columns: Columns, key: Sequence[int], device_ns: int, calls: int, uses_tensor_cores: bool) -> Rate:
    name, inputs, index = columns.names[key[0]], columns.input_texts[key[1]], key[2]
    work = call_work(name, Inputs(*inputs))
    assert work is not None  # only operators with a formula are asked for
    device = columns.name_of_device(index)
    peak_type = "tf32" if work.dtype == "float32" and uses_tensor_cores else work.dtype
    peak = None if work.kind in MOVES_ONLY else peak_of(device, peak_type)
    memory = peak_memory_of(device)
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
        lacks=tuple(filter(None, (work.lacks, _lacks(work, peak is None, memory is None)))),
    )


def _lacks(work: CallWork, no_peak: bool, no_memory: bool) -> str:
    missing = ["FLOP/s"] if no_peak and work.flops is not None else []
    missing += ["bandwidth"] if no_memory else []
    return f"peak {' and '.join(missing)} of the device" if missing else ""
