"""What the host called: time of its own, in all, on the device, and how often."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training_profiler.trace.columns import NONE, Columns, Ints
from training_profiler.trace.launches import Launches
from training_profiler.trace.nesting import Nesting, outermost, with_children


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of one operator, or of one with the same input shapes; ns."""

    name: str
    calls: int
    host_self_ns: int  # without what it called
    host_total_ns: int
    device_self_ns: int  # of work that it launched itself
    device_total_ns: int  # and of work that what it called has launched
    section: str  # in which most of its calls were made; "" where in none
    shapes: str = ""  # of its inputs, as recorded


SORT_KEYS = ("host_self", "host_total", "device_self", "device_total", "calls", "name")


def operators(
    columns: Columns, nesting: Nesting, launches: Launches, sections: Ints, has_shapes: bool = False
) -> list[Operator]:
    """Return a row an operator, those with most host time of their own first.

    Args:
        columns: the trace.
        nesting: how its host events lie within each other.
        launches: what launched the device's work.
        sections: for each event, the annotation around it; -1 for none.
        has_shapes: whether calls with other input shapes have a row of their own.
    """
    rows = np.flatnonzero(columns.is_of("cpu_op", "cuda_runtime"))
    if not len(rows):
        return []
    group, labels = _groups(columns, rows, has_shapes)
    size = len(labels)
    by_call, by_operator = (_device_time(columns, launched_by) for launched_by in (launches.call, launches.operator))
    device_self, device_total = by_call + by_operator, by_call + with_children(nesting, by_operator)
    is_outermost = outermost(columns, nesting)[rows]
    duration = (columns.end_ns - columns.begin_ns)[rows]

    def summed(values: Ints) -> list[int]:
        return np.bincount(group, values, size).astype(np.int64).tolist()

    calls = np.bincount(group, minlength=size).tolist()
    columns_of_rows = (
        summed(nesting.self_ns[rows]),
        summed(np.where(is_outermost, duration, 0)),
        summed(device_self[rows]),
        summed(np.where(is_outermost, device_total[rows], 0)),
    )
    named = _most_frequent(group, sections[rows], size)
    found = [
        Operator(name, calls[i], *(column[i] for column in columns_of_rows), _section_name(columns, named[i]), shapes)
        for i, (name, shapes) in enumerate(labels)
    ]
    return sorted(found, key=lambda one: (-one.host_self_ns, one.name))


def sorted_by(found: Sequence[Operator], key: str) -> list[Operator]:
    """Return the operators by one of ``SORT_KEYS``, the largest first; names from a to z."""
    if key == "name":
        return sorted(found, key=lambda one: one.name)
    attribute = "calls" if key == "calls" else f"{key}_ns"
    return sorted(found, key=lambda one: (-getattr(one, attribute), one.name))


def _groups(columns: Columns, rows: Ints, has_shapes: bool) -> tuple[Ints, list[tuple[str, str]]]:
    numbers: dict[tuple[int, str], int] = {}
    names = columns.name[rows].tolist()
    shapes = [_shapes(columns, row) if has_shapes else "" for row in rows.tolist()]
    keys = zip(names, shapes, strict=True)
    group = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(rows))
    return group, [(columns.names[name], shape) for name, shape in numbers]


def _shapes(columns: Columns, row: int) -> str:
    return "".join(bytes(columns.args[row].dims).decode("utf-8", "replace").split())


def _device_time(columns: Columns, launched_by: Ints) -> Ints:
    """Return for each host event how long the device worked on what it launched itself."""
    time = np.zeros(len(columns.begin_ns), np.int64)
    known = launched_by != NONE
    np.add.at(time, launched_by[known], (columns.end_ns - columns.begin_ns)[known])
    return time


def _most_frequent(group: Ints, values: Ints, size: int) -> list[int]:
    """Return for each group the value that most of its members have."""
    pairs, counts = np.unique(np.stack([group, values]), axis=1, return_counts=True)
    best = [NONE] * size
    most = [0] * size
    for which, value, count in zip(pairs[0].tolist(), pairs[1].tolist(), counts.tolist(), strict=True):
        if count > most[which]:
            best[which], most[which] = value, count
    return best


def _section_name(columns: Columns, row: int) -> str:
    return "" if row == NONE else columns.names[columns.name[row]]
