"""Recognises device work that is not recorded, and traces whose times cannot be right."""

from dataclasses import replace
from typing import Final

import numpy as np

from training_profiler.base.units import NS_PER_MS, NS_PER_S, counted
from training_profiler.trace_analysis import known_names
from training_profiler.trace_analysis.columns import NONE, NOTHING, Bools, Columns, Intervals, Ints
from training_profiler.trace_analysis.events import Scope, TracedEvents, beside
from training_profiler.trace_analysis.host_activity import TO_HOST
from training_profiler.trace_analysis.launches import (
    ROUNDING_NS,
    captures_of,
    is_launched_before,
    without_work,
)

LEAST_UNSEEN_NS: Final = 1_000_000  # kernels begin microseconds after their launch


def unseen_work(events: TracedEvents) -> Intervals:
    """Return when the device did what the trace lacks, 1 ms or more each.

    A device starts what was launched at once, unless it does something else: what was launched before a recording
    began, or was filtered out of it.
    """
    columns, launches, communicates = events.columns, events.launches, events.communicates
    rows = np.flatnonzero(columns.is_gpu())
    if not len(rows):
        return NOTHING
    idle = events.device.busy.between
    preceding, following = beside(columns, rows, idle)
    call = launches.call[following]
    is_earlier = (call == NONE) & is_launched_before(columns, launches.call[rows], following)
    launched_ns = np.where(is_earlier, idle.begin_ns, np.maximum(idle.begin_ns, columns.end_ns[call]))
    is_unseen = ((call != NONE) | is_earlier) & (idle.end_ns - launched_ns >= LEAST_UNSEEN_NS)
    is_unseen &= ~communicates[following] & ~communicates[preceding]
    is_unseen &= ~(columns.is_graph_launch()[call] & (launches.call[preceding] == call))
    later = Intervals.of(launched_ns[is_unseen], idle.end_ns[is_unseen])
    return later | unseen_at_begin(events)


def unseen_at_begin(events: TracedEvents) -> Intervals:
    """Return when the device had other work before its first recorded one: for 1 ms or more, what was launched waits.

    Or the host waits for the device. A recording can begin while the device is at work, and leave out that work.
    """
    columns, launches = events.columns, events.launches
    rows = np.flatnonzero(columns.is_gpu())
    first_ns = int(columns.begin_ns[rows[0]])
    waits = columns.named(known_names.SYNCHRONIZE.search, "cuda_runtime")
    is_read = columns.named(TO_HOST.search, "gpu_memcpy") & (launches.call != NONE)
    waits[launches.call[is_read]] = True
    call = launches.call[rows[0]]
    launched_ns = first_ns if call == NONE else columns.end_ns[call]
    if is_launched_before(columns, launches.call[rows], rows[:1])[0]:
        launched_ns = columns.begin_ns.min()
    begin_ns = np.append(columns.begin_ns[waits], launched_ns)
    end_ns = np.minimum(np.append(columns.end_ns[waits], first_ns), first_ns)
    is_long = end_ns - begin_ns >= LEAST_UNSEEN_NS
    return Intervals.of(begin_ns[is_long], end_ns[is_long])


IMPOSSIBLE: Final = ("kernel-longer-than-step", "kernels-overlap")  # doubts about how long device work takes
LEAST_LOST: Final = 0.02  # of kernel launches; public traces that are whole have lost none of thousands
EARLIER_NS: Final = 10_000  # device work never begins so long before its launch, even if times are rounded
LEAST_EARLIER: Final = 0.01  # of the work whose launch is known
LAUNCH_NS: Final = 5_000  # from the begin of a launch to the work; public traces have 5 to 9 us
SKEW_PARTS: Final = 10  # of a trace; a clock that jumps is behind in a few
MOST_OVERLAP: Final = 0.02  # of the time of kernels, with another one of their stream
LEAST_OVERLAP_NS: Final = 100_000  # of one; a kernel may be prepared while the one before it ends
MOST_STEPS: Final = 2  # that one kernel may take
MOST_UNSEEN: Final = 0.1  # of the steps, or of the recording
MOST_CAPTURED: Final = 0.5  # of the same
LEAST_KEPT: Final = 0.05  # of the operators that torch has numbered; whole public traces have 13% or more
LEAST_LEFT_OUT: Final = 1000  # numbers between the first and the last
LEAST_ASCENDING: Final = 0.9  # of neighbours; numbers that do not follow the time count no operators
HOLE_NS: Final = NS_PER_S
HOLE_TO_REST: Final = 10  # an empty time that is so many times as long as everything else is not part of the program


def doubts_of(events: TracedEvents, unseen: Intervals) -> dict[str, str]:
    """Return what speaks against the figures about the device, by code; nothing for a trace that is whole."""
    halves, unseen_ns = events.columns.lost_halves, events.scope.within(unseen)
    found = {
        "lost-kernels": _lost_kernels(events),
        "graphs-without-kernels": _empty_graphs(events),
        "lost-halves": f"{counted(halves, 'piece')} of device work with only a begin or only an end" if halves else "",
        "kernel-longer-than-step": _longer_than_step(events),
        "kernels-overlap": _overlapping(events),
        "work-before-launch": _before_launch(events),
        "work-not-recorded": not_recorded(unseen_ns) if _is_much(unseen_ns, events.scope) else "",
        "graphs-captured": _captures(events),
        "excerpt": _excerpt(events.columns),
        "clock-jump": _hole(events.columns),
    }
    return {code: message for code, message in found.items() if message}


def _lost_kernels(events: TracedEvents) -> str:
    """The last launches may be few: their kernels can have been long."""
    calls, lost = events.lost.calls, events.lost.lost
    since_ns = events.lost.since_ns(events.columns)
    if not len(lost) or (len(lost) < LEAST_LOST * len(calls) and not _is_long_without(events, since_ns)):
        return ""
    message = f"{len(lost)} of {len(calls)} kernel launches have no kernel"
    if not events.has_gpu:
        message += ": the work of the device was not recorded"
    elif since_ns is not None:
        message += ", all of them the last ones: the buffer was full, or the recording ended before the device"
    return message


def _is_long_without(events: TracedEvents, since_ns: int | None) -> bool:
    """Return whether the steps show no work of the device for long after its last, and kernels were lost then."""
    if since_ns is None or not events.has_gpu:
        return False
    begin_ns = max(since_ns, events.extent[1])
    rest = Intervals(np.array([begin_ns]), np.array([max(begin_ns, events.scope.end_ns)]))
    return _is_much(events.scope.within(rest), events.scope)


def _is_much(unseen_ns: int, scope: Scope) -> bool:
    return unseen_ns >= LEAST_UNSEEN_NS and unseen_ns > MOST_UNSEEN * scope.wall_ns


def _empty_graphs(events: TracedEvents) -> str:
    calls, lost = without_work(events.columns, events.launches, events.columns.is_graph_launch())
    said = f"{len(lost)} of {counted(len(calls), 'graph replay')} have no kernels: graphs were not traced"
    return said if len(lost) else ""


def _longer_than_step(events: TracedEvents) -> str:
    """The host can be ahead of the device, so a kernel may outlast its step, though not by much in each of several.

    A collective may wait for other ranks, and the only step may end before its work: these are compared with all that
    the host recorded.
    """
    columns, steps, duration = events.columns, events.steps, events.columns.length_ns
    host = ~columns.is_gpu()
    if not steps or not host.any():
        return ""
    longest_ns = max(step.wall_ns for step in steps)
    all_ns = int(columns.end_ns[host].max() - columns.begin_ns[host].min())
    most_ns = MOST_STEPS * longest_ns if len(steps) > 1 else all_ns
    is_long = duration > np.where(events.communicates, max(all_ns, most_ns), most_ns)
    rows = np.flatnonzero(columns.is_of("kernel") & is_long)
    if not len(rows):
        return ""
    row = int(rows[duration[rows].argmax()])
    return (
        f"{counted(len(rows), 'kernel')} cannot be as long as recorded: {duration[row] / NS_PER_MS:.1f} ms in steps of "
        f"at most {longest_ns / NS_PER_MS:.1f} ms ({columns.name_of(row)[:60]})"
    )


def _overlapping(events: TracedEvents) -> str:
    """Kernels of one stream follow each other, but for collectives, replays of graphs, and a few us of others."""
    columns, call = events.columns, events.launches.call
    is_replayed = (call != NONE) & columns.is_graph_launch()[call]
    is_alone = columns.is_of("kernel") & ~events.communicates & ~is_replayed & (columns.stream != NONE)
    track = columns.device * 2**40 + columns.stream
    early_ns, busy_ns = [np.zeros(1, np.int64)], 0
    for each in np.unique(track[is_alone]).tolist():
        rows = np.flatnonzero(is_alone & (track == each))
        early_ns.append(np.maximum.accumulate(columns.end_ns[rows])[:-1] - columns.begin_ns[rows[1:]])
        busy_ns += columns.span(rows).total_ns
    all_ns, early = int(columns.length_ns[is_alone].sum()), np.concatenate(early_ns)
    if all_ns - busy_ns <= MOST_OVERLAP * all_ns or early.max() < LEAST_OVERLAP_NS:
        return ""
    return (
        f"{counted(int((early > ROUNDING_NS).sum()), 'kernel')} begin while another one of the same stream runs, up to "
        f"{early.max() / NS_PER_MS:.1f} ms before its end: kernels cannot be as long as recorded"
    )


def _early_ns(events: TracedEvents) -> Ints:
    """Return by how much each work whose launch is known begins before that."""
    begin_ns, call = events.columns.begin_ns, events.launches.call
    rows = np.flatnonzero(call != NONE)
    early_ns: Ints = begin_ns[call[rows]] - begin_ns[rows]
    return early_ns


def _before_launch(events: TracedEvents) -> str:
    early_ns = _early_ns(events)
    count = int((early_ns > EARLIER_NS).sum())
    if not count or count < LEAST_EARLIER * len(early_ns):
        return ""
    return (
        f"{count} of {len(early_ns)} pieces of device work begin before their launch, by up to "
        f"{early_ns.max() / NS_PER_MS:.3f} ms: the clocks of host and device do not agree"
    )


def without_skew(events: TracedEvents) -> Columns:
    """Return the columns with the times of devices corrected if their clock is behind the host's throughout.

    Work begins a few microseconds after the begin of its launch, unless the device is busy.
    """
    early_ns = _early_ns(events) if _before_launch(events) else np.zeros(1, np.int64)
    most_ns = int(early_ns.max())
    agree = [2 * part.max(initial=0) > most_ns for part in np.array_split(early_ns, SKEW_PARTS)]
    if 2 * sum(agree) <= SKEW_PARTS:
        return events.columns
    skew_ns = most_ns + LAUNCH_NS
    note = (
        f"the clock of devices is {skew_ns / NS_PER_MS:.3f} ms behind the host's, which is corrected; idle times of no "
        "more than that have no known cause"
    )
    return replace(events.columns.without_skew(skew_ns), notes=(*events.columns.notes, note))


def not_recorded(unseen_ns: int) -> str:
    """Return that the device did something for so long that the trace lacks."""
    return (
        f"for {unseen_ns / NS_PER_MS:.1f} ms the host or work that was launched waits although the device shows no "
        "work: what it did then is not in the trace"
    )


def _captures(events: TracedEvents) -> str:
    share = events.scope.within(Intervals.of(*captures_of(events.columns))) / max(1, events.scope.wall_ns)
    if share <= MOST_CAPTURED:
        return ""
    return f"graphs are captured for {share:.0%} of {events.scope.time}: what is captured does not run then"


def _excerpt(columns: Columns) -> str:
    """Torch numbers operators one after another as they begin; a tool that filters a trace leaves their numbers."""
    number = columns.external[columns.is_of("cpu_op") & (columns.external > 0)]
    if len(number) < 2 or (np.diff(number) > 0).mean() < LEAST_ASCENDING:
        return ""
    # Sorted, because numbers are nearly in order.
    kept, numbered = 1 + int((np.diff(np.sort(number, kind="stable")) > 0).sum()), int(number.max() - number.min()) + 1
    if numbered - kept < LEAST_LEFT_OUT or kept >= LEAST_KEPT * numbered:
        return ""
    return f"{kept:,} operators are left of {numbered:,} events that torch numbered: the others are not in this file"


def _hole(columns: Columns) -> str:
    """Return that nothing is recorded for long. What is around other events, as a step is, says nothing of the time."""
    begin_ns, end_ns = int(columns.begin_ns.min()), int(columns.end_ns.max())
    if end_ns - begin_ns < HOLE_NS:
        return ""
    inner = ~_is_around(columns)
    ends = np.array([begin_ns, end_ns])  # the last step can end long after the recording
    empty = Intervals.of(np.append(columns.begin_ns[inner], ends), np.append(columns.end_ns[inner], ends)).between
    longest = int(empty.length_ns.max(initial=0))
    rest = end_ns - begin_ns - longest
    if longest < HOLE_NS or longest < HOLE_TO_REST * rest:
        return ""
    return (
        f"nothing is recorded for {longest / NS_PER_S:.1f} s, and all else takes {rest / NS_PER_S:.3f} s: "
        "a clock jumped, recordings were joined, the recording had ended, or the program slept"
    )


def _is_around(columns: Columns) -> Bools:
    """Return which events are steps, or annotations within which other events of their thread begin."""
    rows = np.flatnonzero(columns.is_of("user_annotation"))
    is_around = columns.is_step()
    host = ~columns.is_gpu()
    for thread in np.unique(columns.thread[rows]).tolist():
        of_thread = rows[columns.thread[rows] == thread]
        begun_ns = columns.begin_ns[host & (columns.thread == thread)]  # ascending, as all rows are
        first = np.searchsorted(begun_ns, columns.begin_ns[of_thread], side="right")
        is_around[of_thread] |= np.searchsorted(begun_ns, columns.end_ns[of_thread]) > first
    return is_around
