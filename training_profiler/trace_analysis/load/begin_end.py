"""Events that are written as two: a begin (ph "B") and an end (ph "E") of the same thread."""

from collections.abc import Sequence

import numpy as np

from training_profiler.trace_analysis.load.reader import Event
from training_profiler.trace_analysis.load.times import Ints, times_ns


def pairs_of(events: Sequence[Event]) -> tuple[list[Event], Ints, Ints]:
    """Return the events that begin, with their begins and ends in ns.

    An end closes what began last in its thread. What has no other half is left out: the recording began or ended
    within it.

    Raises:
        TimeProblemError: a time is missing or none.
    """
    halves = [event for event in events if event.ph in ("B", "E")]
    at_ns = times_ns([event.ts for event in halves])
    open_of: dict[tuple[object, object], list[int]] = {}
    found: list[tuple[int, int]] = []
    for i in np.argsort(at_ns, kind="stable").tolist():
        event = halves[i]
        under_way = open_of.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            under_way.append(i)
        elif under_way:
            found.append((under_way.pop(), i))
    found.sort()
    firsts, lasts = np.array(found, np.int64).reshape(-1, 2).T
    return [halves[i] for i in firsts.tolist()], at_ns[firsts], at_ns[lasts]
