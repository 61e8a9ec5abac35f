"""The ranks that the others wait for, and what these ranks do longer."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from training_profiler.findings.tables import wrapped
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.gaps import NO_IDLE_TIME
from training_profiler.trace_analysis.report.formats import ms

LEAST_SHARE: Final = 0.05  # of the traces' mean time, that the waiting takes
LEAST_LONGER: Final = 0.25  # of the waiting, that something must take longer on the late rank to explain it


def late_lines(traces: Sequence[Analysis], over_ranks: Sequence[RankCollective]) -> list[str]:
    """Return a finding for the collective with most waiting; nothing if it takes little of the ranks' time."""
    if not over_ranks:
        return []
    worst = max(over_ranks, key=_waiting_ns)
    mean_ns = float(np.mean([trace.scope.wall_ns for trace in traces]))
    if not worst.late or _waiting_ns(worst) < LEAST_SHARE * mean_ns:
        return []
    names = ", ".join(f"rank {rank} caused {share:.0%}" for rank, share in worst.late)
    message = (
        f"- The ranks wait {ms(_waiting_ns(worst))} each, {_waiting_ns(worst) / mean_ns:.1%} of their time, for the "
        f"last one to reach {worst.kind}. Of this {names}."
    )
    reasons = [text for rank, _ in worst.late if (text := _longer(traces, rank, _waiting_ns(worst)))]
    reason = "; ".join(reasons) or "What these ranks do longer is not in the traces: compare their data and machines"
    return [wrapped(message, rest="  "), wrapped(f"{reason}.", "  ", "  ")]


def _waiting_ns(collective: RankCollective) -> float:
    return collective.waiting_ns * collective.count


def _times_ns(trace: Analysis) -> Counter[str]:
    times = Counter(
        {
            "computation": sum(part.compute_ns for part in trace.scope.parts),
            "exposed copies": sum(part.exposed_copies_ns for part in trace.scope.parts),
        }
    )
    for cause, ns in trace.idle_ns_by_cause.items():
        if cause not in NO_IDLE_TIME:
            times[f"idle time of the cause {cause}"] = ns
    return times


def _longer(traces: Sequence[Analysis], rank: int, waiting_ns: float) -> str:
    """Return what the rank does longer than the median of the others; "" if nothing explains the waiting."""
    late = next(_times_ns(trace) for trace in traces if trace.rank == rank)
    others = [_times_ns(trace) for trace in traces if trace.rank != rank]
    more_ns = {what: ns - float(np.median([other[what] for other in others])) for what, ns in late.items()}
    what = max(more_ns, key=lambda key: more_ns[key])
    return f"Rank {rank} has {ms(more_ns[what])} more of {what}" if more_ns[what] >= LEAST_LONGER * waiting_ns else ""
