"""Events written in two halves: a begin (ph "B") and an end (ph "E") of the same thread."""

from collections.abc import Sequence

import numpy as np

from training_profiler.trace_analysis.load.reader import Event
from training_profiler.trace_analysis.load.times import Ints, times_ns


def pairs_of(events: Sequence[Event]) -> tuple[list[Event], Ints, Ints, int]:
    """Return the beginning halves, the begins and ends of the events in ns, and the number of halves without another.

    An end closes the newest open event of its thread. A half without a counterpart is left out: the recording began
    or ended during the event.

    Raises:
        TimeProblemError: A time is missing or invalid.
    """
    halves = [event for event in events if event.ph in ("B", "E")]
    at_ns = times_ns([event.ts for event in halves])
    open_of: dict[tuple[object, object], list[int]] = {}
    pairs: list[tuple[int, int]] = []
    for i in np.argsort(at_ns, kind="stable").tolist():
        event = halves[i]
        open_halves = open_of.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            open_halves.append(i)
        elif open_halves:
            pairs.append((open_halves.pop(), i))
    pairs.sort()
    firsts, lasts = np.array(pairs, np.int64).reshape(-1, 2).T
    return [halves[i] for i in firsts.tolist()], at_ns[firsts], at_ns[lasts], len(halves) - 2 * len(pairs)
