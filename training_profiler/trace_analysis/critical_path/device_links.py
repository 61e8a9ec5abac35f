"""Why each piece of device work began when it did: its launch, its stream, or another stream."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from training_profiler.trace_analysis.completeness import LEAST_UNSEEN_NS
from training_profiler.trace_analysis.load.columns import NONE, Bools, Ints, distinct
from training_profiler.trace_analysis.timeline import covered, union

NEAR_NS: Final = 20_000  # work that waits for an event of another stream begins within that time of it
OVERLAP_NS: Final = 2_000  # by which work may begin before what it waits for has ended, as the device records it
BUSY: Final = 0.5  # of the time between its launch and its begin, for work to wait for others on the device
SLIGHTLY_LATE_NS: Final = 50_000  # a blocking copy may end on the device after its call has returned
SLIGHTLY_LATE: Final = 0.2  # of the copy
LONG_AGO: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class Works:
    """Device work in order of its begin; ``called_ns`` is the begin of the call that launched it."""

    row: Ints
    begin_ns: Ints
    end_ns: Ints
    stream: Ints  # a number for each stream of each device
    called_ns: Ints  # ``LONG_AGO`` if the call is unknown
    call_ns: Ints  # the length of the call
    thread: Ints  # of the call; -1 unknown
    replay: Ints  # the row of the call that replayed the graph with it; -1 for none
    unseen_ns: Ints  # waited after its launch, though nothing recorded runs; 0 below 1 ms

    def is_in_graph(self, one: int, other: int) -> bool:
        """Return whether both works belong to one replay of a graph."""
        return bool(self.replay[one] != NONE and self.replay[one] == self.replay[other])

    def streams(self) -> list[Ints]:
        """Return for each stream where its works are."""
        order = np.argsort(self.stream, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.stream))[:-1]) if len(order) else []


def unseen_waits(begin_ns: Ints, end_ns: Ints, launched_ns: Ints, replay: Ints, communicates: Bools) -> Ints:
    """Return how long each work waits after its launch though nothing recorded runs on the device; 0 below 1 ms.

    Works are in order of their begin. What communicates waits for other ranks, and what a graph waits for between its
    works need not be device work.
    """
    before_ns = np.append(LONG_AGO, np.maximum.accumulate(end_ns)[:-1]) if len(end_ns) else end_ns
    waits_ns = np.where(launched_ns == LONG_AGO, 0, begin_ns - np.maximum(launched_ns, before_ns))
    is_other = communicates | np.append(False, communicates[:-1])[: len(communicates)]
    is_other |= (replay != NONE) & (np.append(NONE, replay[:-1])[: len(replay)] == replay)
    return np.where(is_other | (waits_ns < LEAST_UNSEEN_NS), 0, waits_ns)


def with_fitted_ends(works: Works, call_begin_ns: Ints, call_end_ns: Ints, is_copy: Bools) -> Works:
    """Return the works with the ends that what waits for them shows, where they are recorded a moment later.

    The clocks of host and device differ by microseconds: a blocking copy may end after its call has returned. And a
    kernel may begin while the last blocks of the one before it on its stream end.
    """
    ends = works.end_ns.copy()
    late = ends - call_end_ns
    is_within = (works.called_ns != LONG_AGO) & (works.begin_ns >= call_begin_ns) & (works.begin_ns < call_end_ns - 1)
    is_slight = (late >= 0) & (late <= SLIGHTLY_LATE_NS) & (late <= SLIGHTLY_LATE * (ends - works.begin_ns))
    is_waited = is_copy & is_within & is_slight
    ends[is_waited] = call_end_ns[is_waited] - 1
    for of_stream in works.streams():
        before, after = of_stream[:-1], of_stream[1:]
        begins = works.begin_ns[after]
        overlap = ends[before] - begins
        is_slight = (overlap > 0) & (overlap <= NEAR_NS) & (works.begin_ns[before] < begins) & (begins < ends[after])
        ends[before[is_slight]] = begins[is_slight]
    return replace(works, end_ns=ends)


@dataclass(frozen=True, slots=True)
class DeviceLinks:
    """What each work waits for before it begins; -1 and any delay for nothing."""

    before: Ints  # the work before it on its stream
    before_delay_ns: Ints
    launch_delay_ns: Ints  # from the begin of its call
    other: Ints  # the work of another stream whose end it awaited, or which precedes it in its graph
    other_delay_ns: Ints
    is_crowded: Bools  # late, while kernels of other streams that end after it keep the device busy


def device_links(works: Works, is_copy: Bools) -> DeviceLinks:
    """Return the links of all works: the latest of what a work waits for, with its delay, is exactly its begin.

    A work that began late, right after work of another stream had ended, waited for that stream. So did a kernel that
    began late while kernels of other streams kept the device busy. A work of a graph waits for the work of its replay
    that ended last before it. Otherwise the time that nothing explains belongs to the link that came last.
    """
    before = _before(works)
    has_before, has_call = before != NONE, works.called_ns != LONG_AGO
    before_end = np.where(has_before, works.end_ns[before], LONG_AGO)
    since_call, since_before = works.begin_ns - works.called_ns, works.begin_ns - before_end
    in_graph = _before_in_graph(works)
    # Work that began right after another stream had ended, or that waited for what is not recorded, says nothing of the
    # usual delays.
    is_alone = _other(works, np.maximum(works.called_ns, before_end)) == NONE
    is_alone &= ((in_graph == NONE) | (in_graph == before)) & (works.unseen_ns == 0)
    is_free = has_call & (before_end <= works.called_ns) & is_alone & (in_graph == NONE)
    launch = _usual_launch(since_call, works.replay != NONE, is_free, has_call & is_alone)
    is_queued = has_before & has_call & (works.called_ns + launch <= before_end) & is_alone
    after = np.minimum(since_before, _median(since_before[is_queued], np.zeros(1, np.int64)))
    by_launch = np.where(has_call, works.called_ns + launch, LONG_AGO)
    by_stream = np.where(has_before, before_end + after, LONG_AGO)
    ready = np.maximum(by_launch, by_stream)
    other = _other(works, ready)
    other = np.where((other == NONE) & (works.end_ns[in_graph] > before_end), in_graph, other)
    late = np.flatnonzero((other == NONE) & ~is_copy & (ready != LONG_AGO) & (works.begin_ns - ready > NEAR_NS))
    late = late[_is_busy(works, is_copy, ready[late], works.begin_ns[late])]
    # It may begin while the last blocks of another kernel run.
    last = _ended_last(works, late, works.begin_ns[late] + NEAR_NS)
    other[late] = np.where(works.end_ns[last] > ready[late], last, NONE)
    is_crowded = np.isin(np.arange(len(other)), late[other[late] == NONE])
    rest = np.where(other == NONE, works.begin_ns - ready, 0)
    is_by_launch = by_launch >= by_stream
    return DeviceLinks(
        before,
        after + np.where(is_by_launch, 0, rest),
        launch + np.where(is_by_launch, rest, 0),
        other,
        works.begin_ns - works.end_ns[other],
        is_crowded,
    )


def _usual_launch(since_call_ns: Ints, is_of_graph: Bools, is_free: Bools, is_other: Bools) -> Ints:
    """Return what of the time since its call the launch of each work takes. That of a graph takes longer.

    Where each waits for other work, it is the least of these times, and not more than work begins late.
    """
    usual_ns = np.zeros(len(since_call_ns), np.int64)
    for which in (is_of_graph, ~is_of_graph):
        usual_ns[which] = _median(since_call_ns[which & is_free], np.minimum(since_call_ns[which & is_other], NEAR_NS))
    return np.minimum(since_call_ns, usual_ns)


def _median(values: Ints, otherwise: Ints) -> int:
    """Return the usual delay; without any, the least of the others."""
    if len(values):
        return int(np.median(values))
    return int(otherwise.min()) if len(otherwise) else 0


def _before(works: Works) -> Ints:
    """Return the work before each one on its stream; none where the two overlap."""
    before = np.full(len(works.row), NONE, np.int64)
    for of_stream in works.streams():
        before[of_stream[1:]] = of_stream[:-1]
    overlaps = (before != NONE) & (works.end_ns[before] > works.begin_ns)
    before[overlaps] = NONE
    return before


def _other(works: Works, ready_ns: Ints) -> Ints:
    """Return the work of another stream that ended last before each work that began late; -1 for none."""
    last = _ended_last(works, np.arange(len(works.row)), works.begin_ns + OVERLAP_NS)
    ends = works.end_ns[last]
    is_awaited = (last != NONE) & (ends > ready_ns) & (works.begin_ns - ends <= NEAR_NS) & (ready_ns != LONG_AGO)
    return np.where(is_awaited, last, NONE)


def _ended_last(works: Works, which: Ints, until_ns: Ints) -> Ints:
    """Return the work of another stream that ended last until these times and before each work; -1 for none."""
    last = np.full(len(which), NONE, np.int64)
    last_ns = np.full(len(which), LONG_AGO)
    until_ns = np.minimum(until_ns, works.end_ns[which] - 1)
    for of_stream in works.streams():
        by_end = of_stream[np.argsort(works.end_ns[of_stream], kind="stable")]
        place = np.searchsorted(works.end_ns[by_end], until_ns, side="right") - 1
        found = by_end[np.maximum(place, 0)]
        is_later = (place >= 0) & (works.stream[which] != works.stream[of_stream[0]]) & (works.end_ns[found] > last_ns)
        last[is_later], last_ns[is_later] = found[is_later], works.end_ns[found[is_later]]
    return last


def _before_in_graph(works: Works) -> Ints:
    """Return the work of the same replay that ended last before each work of a graph; -1 for none."""
    before = np.full(len(works.row), NONE, np.int64)
    order = np.flatnonzero(works.replay != NONE)
    order = order[np.argsort(works.replay[order], kind="stable")]
    for of in np.split(order, np.flatnonzero(np.diff(works.replay[order])) + 1):
        by_end = of[np.argsort(works.end_ns[of], kind="stable")]
        until_ns = np.minimum(works.begin_ns[of] + OVERLAP_NS, works.end_ns[of] - 1)
        place = np.searchsorted(works.end_ns[by_end], until_ns, side="right") - 1
        before[of] = np.where(place >= 0, by_end[np.maximum(place, 0)] if len(of) else of, NONE)
    return before


def _is_busy(works: Works, is_copy: Bools, begin_ns: Ints, end_ns: Ints) -> Bools:
    """Return in which of these times kernels keep the device busy: another one then waits for room without an event."""
    busy = union(works.begin_ns[~is_copy], works.end_ns[~is_copy])
    is_busy: Bools = covered(busy, begin_ns, end_ns) >= BUSY * (end_ns - begin_ns)
    return is_busy


def event_waits(works: Works, thread: Ints, at_ns: Ints) -> list[tuple[int, int]]:
    """Return pairs of works (waits, for) for calls that make a stream wait for an event.

    The trace does not say which event. The next launch of the thread waits for what was launched last on each other
    stream before the call, if that had ended when it began.
    """
    pairs = []
    streams = [(of[0], of, np.maximum.accumulate(works.called_ns[of])) for of in works.streams()]
    for one in distinct(thread).tolist():
        launched = np.flatnonzero((works.thread == one) & (works.called_ns != LONG_AGO))
        launched = launched[np.argsort(works.called_ns[launched], kind="stable")]
        times = at_ns[thread == one]
        following = np.searchsorted(works.called_ns[launched], times, side="left")
        for time, place in zip(times.tolist(), following.tolist(), strict=True):
            if place == len(launched):
                continue
            work = int(launched[place])
            for first, of, called in streams:
                i = int(np.searchsorted(called, time)) - 1
                if works.stream[first] != works.stream[work] and i >= 0 and _is_over(works, int(of[i]), work):
                    pairs.append((work, int(of[i])))
    return pairs


def _is_over(works: Works, one: int, other: int) -> bool:
    is_over: Bools = (works.end_ns[one] <= works.begin_ns[other]) & (works.end_ns[one] < works.end_ns[other])
    return bool(is_over)
