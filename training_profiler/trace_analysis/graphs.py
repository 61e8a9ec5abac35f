"""Joins the kernels of a replayed CUDA or HIP graph to the calls that were captured into it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints, distinct

LEAST_MATCHED: Final = 0.95  # of a replay's work, by name and order; a capture that matches less is another graph's


def captures_of(columns: Columns) -> tuple[Ints, Ints]:
    """Return the begins and ends of graph captures, in order of time; ns. What is launched meanwhile does not run."""
    begins, ends = (
        np.flatnonzero(columns.named(pattern.search, columns.is_of("cuda_runtime")))
        for pattern in (runtime_calls.BEGIN_CAPTURE, runtime_calls.END_CAPTURE)
    )
    begin_ns, end_ns = columns.begin_ns[begins], np.sort(columns.end_ns[ends])
    after = np.searchsorted(end_ns, begin_ns)
    # A capture that the recording does not see end lasts until its end.
    return begin_ns, np.append(end_ns, columns.end_ns.max())[after]


def is_graph_launch(columns: Columns) -> Bools:
    """Return which events are calls that replay a graph."""
    return columns.named(runtime_calls.LAUNCH_GRAPH.search, columns.is_of("cuda_runtime"))


def replayed_share(columns: Columns, call: Ints) -> float:
    """Return the share of the device's work, by time, that replays of graphs launched; ``call`` launched each event."""
    works = np.flatnonzero(columns.is_gpu())
    length_ns = columns.end_ns[works] - columns.begin_ns[works]
    is_replayed = (call[works] != NONE) & is_graph_launch(columns)[call[works]]
    return float(length_ns[is_replayed].sum() / length_ns.sum()) if length_ns.sum() else 0.0


def captured_calls(columns: Columns, call: Ints) -> Ints:
    """Return for each piece of work of a replayed graph the call that was captured; -1 for none, and all other events.

    ``call`` is the call that launched each event, the replay. ROCm records which kernel a call launches: the names
    decide. Without names a replay and a capture belong together if they have the same number of calls and no other
    capture has it.
    """
    joined = np.full(len(call), NONE, np.int64)
    is_call = columns.is_of("cuda_runtime")
    replays = np.flatnonzero(is_graph_launch(columns))
    begin_ns, end_ns = captures_of(columns)
    if not len(replays) or not len(begin_ns):
        return joined
    makes_node = columns.named(
        lambda name: runtime_calls.LAUNCH_KERNEL.search(name) or runtime_calls.COPY_OR_FILL.search(name), is_call
    )
    captured = [
        _inside(columns, makes_node, *window) for window in zip(begin_ns.tolist(), end_ns.tolist(), strict=True)
    ]
    works = np.flatnonzero(np.isin(call, replays) & columns.is_gpu())
    for replay in distinct(call[works]).tolist():
        of_replay = works[call[works] == replay]  # in order of time
        pairs = _matched(columns, captured, of_replay)
        if pairs is not None:
            joined[pairs[0]] = pairs[1]
    return joined


def _inside(columns: Columns, which: Bools, begin_ns: int, end_ns: int) -> Ints:
    return np.flatnonzero(which & (columns.begin_ns >= begin_ns) & (columns.begin_ns < end_ns))


def _matched(columns: Columns, captured: Sequence[Ints], works: Ints) -> tuple[Ints, Ints] | None:
    """Return the works that have a captured call, and these calls; None if no capture or more than one fits."""
    named = [pairs for calls in captured if (pairs := _by_name(columns, calls, works)) is not None]
    if named:
        return max(named, key=lambda pairs: len(pairs[0]))
    fitting = [calls for calls in captured if len(calls) == len(works) and not (columns.launches[calls] != NONE).any()]
    return (works, fitting[0]) if len(fitting) == 1 else None


def _by_name(columns: Columns, calls: Ints, works: Ints) -> tuple[Ints, Ints] | None:
    names = columns.launches[calls].tolist()
    pairs, at = [], 0
    for work in works.tolist():
        found = next((i for i in range(at, min(len(names), at + 3)) if names[i] == columns.name[work]), None)
        if found is not None:
            pairs.append((work, int(calls[found])))
            at = found + 1
    if len(pairs) < LEAST_MATCHED * len(works):
        return None
    rows, launched = np.array(pairs, np.int64).T
    return rows, launched
