"""Recognises traces in which device work is missing or whose times cannot be right."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import runtime_calls
from training_profiler.trace_analysis.device_activity import StepParts
from training_profiler.trace_analysis.graphs import captures_of
from training_profiler.trace_analysis.intervals import covered_before, gaps, union
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, Ints
from training_profiler.trace_analysis.scope import Scope
from training_profiler.units import NS_PER_MS, NS_PER_S, counted

LEAST_LOST: Final = 0.02  # of kernel launches; public traces that are whole have lost none of thousands
EARLIER_NS: Final = 10_000  # device work never begins so long before its launch, even if times are rounded
LEAST_EARLIER: Final = 0.01  # of the work whose launch is known
MOST_STEPS: Final = 2  # that one kernel may take
LEAST_UNSEEN_NS: Final = 1_000_000  # kernels begin microseconds after their launch
MOST_UNSEEN: Final = 0.1  # of the steps, or of the recording
MOST_CAPTURED: Final = 0.5  # of the same
HOLE_NS: Final = NS_PER_S
HOLE_TO_REST: Final = 10  # an empty time that is so many times as long as everything else is not part of the program


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why figures about the device cannot be trusted."""

    code: str
    message: str


def doubts_of(
    columns: Columns, launches: Launches, communicates: Bools, steps: tuple[StepParts, ...], scope: Scope
) -> tuple[Doubt, ...]:
    """Return what speaks against the figures about the device; nothing for a trace that is whole."""
    found = (
        _lost_kernels(columns, launches),
        _empty_graphs(columns, launches),
        _lost_halves(columns),
        _longer_than_step(columns, communicates, steps),
        _before_launch(columns, launches),
        _unseen_work(columns, launches, communicates, scope),
        _captures(columns, scope),
        _hole(columns),
    )
    return tuple(doubt for doubt in found if doubt is not None)


def _without_work(columns: Columns, launches: Launches, which: Bools) -> tuple[Ints, Ints]:
    """Return the calls of ``which`` that have an id, and those of them that launched no recorded work."""
    calls = np.flatnonzero(which & (columns.correlation > 0))
    has_work = np.zeros(len(columns.begin_ns), np.bool_)
    has_work[launches.call[launches.call != NONE]] = True
    return calls, calls[~has_work[calls]]


def _lost_kernels(columns: Columns, launches: Launches) -> Doubt | None:
    which = columns.named(runtime_calls.LAUNCH_KERNEL.search, columns.is_of("cuda_runtime"))
    captured = union(*captures_of(columns))
    if which.any() and len(captured.begin_ns):
        begins = columns.begin_ns
        which &= covered_before(captured, begins + 1) == covered_before(captured, begins)
    calls, lost = _without_work(columns, launches, which)
    if not len(lost) or len(lost) < LEAST_LOST * len(calls):
        return None
    message = f"{len(lost)} of {len(calls)} kernel launches have no kernel"
    works = columns.is_gpu()
    if not works.any():
        message += ": the work of the device was not recorded"
    elif columns.begin_ns[lost].min() > columns.begin_ns[calls].min() and (
        columns.begin_ns[lost].min() >= np.delete(columns.begin_ns[calls], np.searchsorted(calls, lost)).max()
    ):
        message += ", all of them the last ones: the buffer was full, or the recording ended before the device"
    return Doubt("lost-kernels", message)


def _empty_graphs(columns: Columns, launches: Launches) -> Doubt | None:
    which = columns.named(runtime_calls.LAUNCH_GRAPH.search, columns.is_of("cuda_runtime"))
    calls, lost = _without_work(columns, launches, which)
    if not len(lost):
        return None
    message = f"{len(lost)} of {counted(len(calls), 'graph replay')} have no kernels: graphs were not traced"
    return Doubt("graphs-without-kernels", message)


def _lost_halves(columns: Columns) -> Doubt | None:
    if not columns.lost_halves:
        return None
    return Doubt(
        "lost-halves", f"{counted(columns.lost_halves, 'piece')} of device work with only a begin or only an end"
    )


def _longer_than_step(columns: Columns, communicates: Bools, steps: tuple[StepParts, ...]) -> Doubt | None:
    """The host can be ahead of the device, so a kernel may outlast its step, though not by much in each of several.

    A collective may wait for other ranks, and the only step may end before its work: these are compared with all that
    the host recorded.
    """
    host = np.flatnonzero(~columns.is_gpu())
    if not steps or not len(host):
        return None
    duration = columns.end_ns - columns.begin_ns
    all_ns = int(columns.end_ns[host].max() - columns.begin_ns[host].min())
    step_ns = MOST_STEPS * max(step.wall_ns for step in steps) if len(steps) > 1 else all_ns
    rows = np.flatnonzero(columns.is_of("kernel") & (duration > np.where(communicates, max(all_ns, step_ns), step_ns)))
    if not len(rows):
        return None
    row = int(rows[duration[rows].argmax()])
    return Doubt(
        "kernel-longer-than-step",
        f"{counted(len(rows), 'kernel')} cannot be as long as recorded: {duration[row] / NS_PER_MS:.1f} ms in steps of "
        f"at most {max(step.wall_ns for step in steps) / NS_PER_MS:.1f} ms ({columns.names[columns.name[row]][:60]})",
    )


def _before_launch(columns: Columns, launches: Launches) -> Doubt | None:
    rows = np.flatnonzero(launches.call != NONE)
    early_ns = columns.begin_ns[launches.call[rows]] - columns.begin_ns[rows]
    count = int((early_ns > EARLIER_NS).sum())
    if not count or count < LEAST_EARLIER * len(rows):
        return None
    return Doubt(
        "work-before-launch",
        f"{count} of {len(rows)} pieces of device work begin before their launch, by up to "
        f"{early_ns.max() / NS_PER_MS:.3f} ms: the clocks of host and device do not agree",
    )


def _unseen_work(columns: Columns, launches: Launches, communicates: Bools, scope: Scope) -> Doubt | None:
    """A device starts what was launched at once, unless it does something else: what was launched before a recording
    began, or was filtered out of it.
    """
    rows = np.flatnonzero(columns.is_gpu())
    busy = union(columns.begin_ns[rows], columns.end_ns[rows])
    idle = gaps(busy)
    following = rows[np.searchsorted(columns.begin_ns[rows], idle.end_ns)]
    by_end = rows[np.argsort(columns.end_ns[rows], kind="stable")]
    preceding = by_end[np.searchsorted(columns.end_ns[by_end], idle.begin_ns, side="right") - 1]
    call = launches.call[following]
    launched_ns = np.maximum(idle.begin_ns, columns.end_ns[call])
    is_unseen = (call != NONE) & (idle.end_ns - launched_ns >= LEAST_UNSEEN_NS)
    is_unseen &= ~communicates[following] & ~communicates[preceding]
    unseen_ns = scope.within(union(launched_ns[is_unseen], idle.end_ns[is_unseen]))
    if unseen_ns <= MOST_UNSEEN * scope.wall_ns:
        return None
    return Doubt(
        "work-not-recorded",
        f"for {unseen_ns / NS_PER_MS:.1f} ms work that was launched waits although the device shows none: what it did "
        "then is not in the trace",
    )


def _captures(columns: Columns, scope: Scope) -> Doubt | None:
    begin_ns, end_ns = captures_of(columns)
    share = scope.within(union(begin_ns, end_ns)) / max(1, scope.wall_ns)
    if share <= MOST_CAPTURED:
        return None
    return Doubt(
        "graphs-captured", f"graphs are captured for {share:.0%} of {scope.time}: what is captured does not run then"
    )


def _hole(columns: Columns) -> Doubt | None:
    events = union(columns.begin_ns, columns.end_ns)
    empty = gaps(events)
    if not len(empty.begin_ns):
        return None
    lengths = empty.end_ns - empty.begin_ns
    longest = int(lengths.max())
    rest = int(columns.end_ns.max() - columns.begin_ns.min()) - longest
    if longest < HOLE_NS or longest < HOLE_TO_REST * rest:
        return None
    return Doubt(
        "clock-jump",
        f"nothing at all is recorded for {longest / NS_PER_S:.1f} s, and all else takes {rest / NS_PER_S:.3f} s: "
        "a clock jumped, two recordings were joined, or the program slept",
    )
