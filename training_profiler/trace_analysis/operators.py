"""The operators and runtime calls of the host: number of calls, self time, total time and device time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, ranked
from training_profiler.trace_analysis.nesting import Nesting, is_outermost_of_group, with_children


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
