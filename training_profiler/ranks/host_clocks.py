"""Offsets between the clocks of the ranks' machines, from sync points that all ranks pass together."""

from collections.abc import Sequence
from typing import NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.summary import RankSummary
from training_profiler.snapshot.ranks import ClockStats

HostKey = tuple[str, int | None]  # name, and number of the node: machines may share a name


class Offset(NamedTuple):
    """How far the first machine's clock is ahead of another's: an interval in ns."""

    low_ns: int
    high_ns: int
    sync_points: int


def host_of(summary: RankSummary) -> HostKey:
    """Return the machine a rank runs on."""
    return summary.who.host, summary.who.node


def clock_offsets(summaries: Sequence[RankSummary]) -> dict[HostKey, Offset | None]:
    """Return the offset of each machine's clock from the lowest rank's machine; None if unknown.

    No rank leaves a sync point before all have entered, so the last enter on one machine precedes the first leave on
    another. Each sync point gives an interval that contains the offset. If they have nothing in common, a clock was
    set in between.
    """
    points: dict[HostKey, dict[str, tuple[int, int]]] = {}  # last enter and first leave on each machine
    for summary in sorted(summaries, key=lambda summary: summary.who.rank):
        of_host = points.setdefault(host_of(summary), {})
        for key, enter_ns, leave_ns in summary.sync_points:
            last_ns, first_ns = of_host.get(key, (enter_ns, leave_ns))
            of_host[key] = max(last_ns, enter_ns), min(first_ns, leave_ns)
    if not points:
        return {}
    first = next(iter(points.values()))
    return {host: _offset(first, of_host) for host, of_host in points.items()}


def _offset(first: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]) -> Offset | None:
    if first is other:
        return Offset(0, 0, 0)
    common = [key for key in first if key in other]
    if not common:
        return None
    low_ns = max(first[key][0] - other[key][1] for key in common)
    high_ns = min(first[key][1] - other[key][0] for key in common)
    return Offset(low_ns, high_ns, len(common)) if low_ns <= high_ns else None


def clock_stats(summaries: Sequence[RankSummary]) -> ClockStats | None:
    """Return how well the clocks are known relative to the first machine's; None for a single machine."""
    offsets = list(clock_offsets(summaries).values())
    if len(offsets) < 2:
        return None
    known = [offset for offset in offsets[1:] if offset is not None]
    if not known:
        return ClockStats(hosts=len(offsets), aligned_hosts=0)
    return ClockStats(
        hosts=len(offsets),
        aligned_hosts=1 + len(known),
        error_s=max(offset.high_ns - offset.low_ns for offset in known) / 2 / NS_PER_S,
        meetings=max(offset.sync_points for offset in known),
    )
