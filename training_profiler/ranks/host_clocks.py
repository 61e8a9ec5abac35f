"""What is known of the clocks of the ranks' machines, from moments that all ranks were at together."""

from collections.abc import Sequence
from typing import NamedTuple

from training_profiler.ranks.summary import RankSummary
from training_profiler.snapshot.ranks import ClockStats
from training_profiler.units import NS_PER_S

HostKey = tuple[str, int | None]  # name, and number of the node: machines may have one name


class Offset(NamedTuple):
    """By how much the first machine's clock is ahead of another's: somewhere in this interval, in ns."""

    low_ns: int
    high_ns: int
    meetings: int


def host_of(told: RankSummary) -> HostKey:
    """Return which machine a rank runs on."""
    return told.who.host, told.who.node


def clock_offsets(told: Sequence[RankSummary]) -> dict[HostKey, Offset | None]:
    """Return the offset of each machine's clock, the lowest rank's being the first; None where it is not known.

    Nobody leaves a meeting before all have come: the latest to enter on one machine does so before the first leaves on
    another. Each meeting gives an interval, and the truth lies in all of them; where none does, a clock was set anew.
    """
    meetings: dict[HostKey, dict[str, tuple[int, int]]] = {}  # the last to enter on a machine, the first to leave
    for one in sorted(told, key=lambda one: one.who.rank):
        of_host = meetings.setdefault(host_of(one), {})
        for key, enter_ns, leave_ns in one.sync_points:
            last_ns, first_ns = of_host.get(key, (enter_ns, leave_ns))
            of_host[key] = max(last_ns, enter_ns), min(first_ns, leave_ns)
    if not meetings:
        return {}
    first = next(iter(meetings.values()))
    return {host: _offset(first, of_host) for host, of_host in meetings.items()}


def _offset(first: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]) -> Offset | None:
    if first is other:
        return Offset(0, 0, 0)
    common = [key for key in first if key in other]
    if not common:
        return None
    low_ns = max(first[key][0] - other[key][1] for key in common)
    high_ns = min(first[key][1] - other[key][0] for key in common)
    return Offset(low_ns, high_ns, len(common)) if low_ns <= high_ns else None


def clock_stats(told: Sequence[RankSummary]) -> ClockStats | None:
    """Return how well the clocks are known against the first one's; None where there is a single machine."""
    offsets = list(clock_offsets(told).values())
    if len(offsets) < 2:
        return None
    known = [offset for offset in offsets[1:] if offset is not None]
    if not known:
        return ClockStats(hosts=len(offsets), aligned_hosts=0)
    return ClockStats(
        hosts=len(offsets),
        aligned_hosts=1 + len(known),
        error_s=max(offset.high_ns - offset.low_ns for offset in known) / 2 / NS_PER_S,
        meetings=max(offset.meetings for offset in known),
    )
