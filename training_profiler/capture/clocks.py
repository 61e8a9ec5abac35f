"""From the recorder's clock to that of a trace, by marks that both have."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MARK: Final = "training_profiler.clock"
MARKS: Final = 4  # at each end of a window; the one that took least tells most
_EVENT: Final = re.compile(
    rb'"cat":\s*"user_annotation",\s*"name":\s*"' + MARK.encode().replace(b".", rb"\.") + rb' (\d+)",\s*'
    rb'"pid":\s*([^,\s]+),\s*"tid":\s*([^,\s]+),\s*"ts":\s*"?(\d+(?:\.\d+)?)"?,\s*"dur":\s*"?(\d+(?:\.\d+)?)"?'
)


class Marked(NamedTuple):
    """A mark as a trace has it; times in ns."""

    pid: bytes
    tid: bytes
    begin_ns: int
    end_ns: int


class Pair(NamedTuple):
    """A moment by both clocks."""

    own_ns: int
    trace_ns: int


def find_marks(text: bytes) -> dict[int, Marked]:
    """Return the marks in a piece of a trace, by the time in their names, which is the recorder's."""
    found = {}
    at = text.find(MARK.encode())
    while at >= 0:
        event = _EVENT.search(text, max(0, at - 200), at + 500)
        if event is not None and event.start() < at < event.end():
            begin_ns = _ns(event[4])
            found[int(event[1])] = Marked(event[2], event[3], begin_ns, begin_ns + _ns(event[5]))
        at = text.find(MARK.encode(), at + 1)
    return found


def _ns(us: bytes) -> int:
    whole, _, fraction = us.partition(b".")
    return int(whole) * 1000 + int(fraction[:3].ljust(3, b"0") or 0)


def meet(marks: Iterable[tuple[int, int]], found: dict[int, Marked]) -> Pair | None:
    """Return one moment by both clocks, as well as marks tell it; None where the trace has none of them.

    Args:
        marks: the recorder's times right before and right after each mark, which lies in between by either clock.
        found: the marks in the trace, by the first of these times.
    """
    lower = upper = None
    at_ns = 0
    for before_ns, after_ns in marks:
        mark = found.get(before_ns)
        if mark is None:
            continue
        least, most = mark.end_ns - after_ns, mark.begin_ns - before_ns
        lower = least if lower is None else max(lower, least)
        upper = most if upper is None else min(upper, most)
        at_ns = after_ns
    return None if lower is None or upper is None else Pair(at_ns, at_ns + (lower + upper) // 2)


class ClockMap:
    """Tells the trace's time of a moment: straight on through the two moments known, which lie around the window."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._first, self._last = pairs[0], pairs[-1]

    def trace_ns(self, own_ns: int) -> int:
        """Return the trace's time, in ns."""
        (begin, at), (end, until) = self._first, self._last
        drift_ns = (until - end) - (at - begin)
        return own_ns + (at - begin) + (drift_ns * (own_ns - begin) // (end - begin) if end > begin else 0)
