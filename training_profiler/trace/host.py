"""What the host did that is told by names: waits for batches, for the device, copies, allocations."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace.columns import Bools, Columns
from training_profiler.trace.intervals import covered, union

DATA_LOADER: Final = re.compile(r"^enumerate\(DataLoader\)")
SYNCHRONIZE: Final = re.compile(r"^(cuda|hip)\w*Synchronize$|^cu(Stream|Ctx|Event)Synchronize")
ALLOCATE: Final = re.compile(r"^(cuda|hip)(Malloc|Free)(Async|Managed|Pitch)?$")
ITEM: Final = ("aten::item", "aten::_local_scalar_dense")
COPY: Final = ("aten::copy_", "aten::to", "aten::_to_copy")


@dataclass(frozen=True, slots=True)
class Calls:
    """Some calls of one name; ns."""

    name: str
    count: int
    total_ns: int
    bytes: int | None = None


def calls_named(columns: Columns, which: Bools, has_bytes: bool = False) -> list[Calls]:
    """Return a row a name of the events of ``which``, in order of their first occurrence."""
    rows = np.flatnonzero(which)
    found: dict[int, list[int]] = {}
    duration = columns.end_ns - columns.begin_ns
    for row in rows.tolist():
        entry = found.setdefault(int(columns.name[row]), [0, 0, 0])
        entry[0] += 1
        entry[1] += int(duration[row])
        entry[2] += max(0, int(columns.bytes[row]))
    return [
        Calls(columns.names[name], count, ns, size if has_bytes else None) for name, (count, ns, size) in found.items()
    ]


def copies(columns: Columns) -> list[Calls]:
    """Return the copies that a device made, by their direction."""
    return calls_named(columns, columns.is_of("gpu_memcpy"), has_bytes=True)


def synchronizations(columns: Columns) -> list[Calls]:
    """Return the calls in which the host waited for a device."""
    return calls_named(columns, columns.named(SYNCHRONIZE.search) & columns.is_of("cuda_runtime"))


def allocations(columns: Columns) -> list[Calls]:
    """Return the calls that get memory from the driver, or give it back."""
    return calls_named(columns, columns.named(ALLOCATE.search) & columns.is_of("cuda_runtime"))


def data_loading(columns: Columns) -> Calls:
    """Return the waits for batches."""
    which = columns.named(DATA_LOADER.search) & columns.is_of("cpu_op", "user_annotation")
    duration = columns.end_ns - columns.begin_ns
    return Calls("enumerate(DataLoader)", int(which.sum()), int(duration[which].sum()))


def data_loading_in(columns: Columns, windows: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return how long the host waited for batches within each window of (begin, end) in ns."""
    which = columns.named(DATA_LOADER.search) & columns.is_of("cpu_op", "user_annotation")
    waits = union(columns.begin_ns[which], columns.end_ns[which])
    begins, ends = np.array(windows, np.int64).reshape(-1, 2).T
    return tuple(covered(waits, begins, ends).tolist())


def operators_named(columns: Columns, *names: str) -> Calls:
    """Return the calls of operators that have one of these names."""
    which = columns.named(lambda name: name in names) & columns.is_of("cpu_op")
    duration = columns.end_ns - columns.begin_ns
    return Calls(names[0], int(which.sum()), int(duration[which].sum()))
