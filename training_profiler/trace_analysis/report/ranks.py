"""The traces of several ranks as one report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from training_profiler.base.table import table, wrapped
from training_profiler.base.units import counted
from training_profiler.findings.finding import Finding
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.gaps import NO_IDLE_TIME
from training_profiler.trace_analysis.report.figures import (
    finding_lines,
    ms,
    not_checked_lines,
    one_step_lines,
    percent,
    saving_ms,
    warnings_of,
)
from training_profiler.trace_analysis.report.views import PARTS
from training_profiler.trace_analysis.report.work import MOST_LATE, communication_over_ranks
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, not_checked, recommendations
from training_profiler.trace_analysis.trace import Trace

LEAST_SHARE: Final = 0.05  # of the traces' mean time, that the waiting takes
LEAST_LONGER: Final = 0.25  # of the waiting, that something must take longer on the late rank to explain it


def late_lines(traces: Sequence[Trace], over_ranks: Sequence[RankCollective]) -> list[str]:
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


def _times_ns(trace: Trace) -> Counter[str]:
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


def _longer(traces: Sequence[Trace], rank: int, waiting_ns: float) -> str:
    """Return what the rank does longer than the median of the others; "" if nothing explains the waiting."""
    late = next(_times_ns(trace) for trace in traces if trace.rank == rank)
    others = [_times_ns(trace) for trace in traces if trace.rank != rank]
    more_ns = {what: ns - float(np.median([other[what] for other in others])) for what, ns in late.items()}
    what = max(more_ns, key=lambda key: more_ns[key])
    return f"Rank {rank} has {ms(more_ns[what])} more of {what}" if more_ns[what] >= LEAST_LONGER * waiting_ns else ""


def render_ranks(
    traces: Sequence[Trace], over_ranks: Sequence[RankCollective], thresholds: Mapping[str, float] = THRESHOLDS
) -> str:
    """Return one report over the traces of several ranks: their steps, who waits for whom, what to change."""
    parts = [f"=== Overview of {counted(len(traces), 'trace')} ===\n{_overview(traces)}\n{_same_rank(traces)}"]
    if over_ranks:
        parts.append(f"=== Communication over ranks ===\n{communication_over_ranks(over_ranks)}\n")
    parts.append(f"=== Recommendations ===\n{_recommendations(traces, over_ranks, thresholds)}\n")
    return "\n".join(parts)


def are_ranks(traces: Sequence[Trace]) -> bool:
    """Return whether these are traces of different ranks of one job, according to the traces."""
    ranks = {analysis.rank for analysis in traces}
    return None not in ranks and len(ranks) == len(traces) and len({trace.world_size for trace in traces}) == 1


def _same_rank(traces: Sequence[Trace]) -> str:
    """Return a sentence about files of one rank, for which there are no tables over ranks; "" for none."""
    ranks = Counter(trace.rank for trace in traces if trace.rank is not None)
    twice = [f"{count} files are of rank {rank}" for rank, count in ranks.most_common(MOST_LATE) if count > 1]
    return f"{', '.join(twice)}: ranks are not compared.\n" if twice else ""


def _names(traces: Sequence[Trace]) -> dict[Path, str]:
    """Return the name of each trace: its rank, or its file if these are not ranks of one job."""
    return {trace.path: f"rank {trace.rank}" if are_ranks(traces) else trace.path.name for trace in traces}


def _overview(traces: Sequence[Trace]) -> str:
    names = _names(traces)
    rows = []
    for trace in sorted(traces, key=lambda trace: trace.rank or 0) if are_ranks(traces) else traces:
        wall_ns = trace.scope.wall_ns
        is_known = trace.has_gpu and wall_ns
        shares = [
            sum(getattr(part, key) for part in trace.scope.parts) / wall_ns if is_known else None for key in PARTS
        ]
        rows.append(
            (
                names[trace.path],
                len(trace.steps),
                ms(wall_ns),
                percent(trace.scope.utilization if is_known else None),
                *(percent(share) for share in shares),
            )
        )
    headers = ("", "steps", "time", "device\nbusy", "compute", "exposed\ncommunication", "exposed\ncopies", "idle")
    warned = [line for trace in traces for line in warnings_of(trace, f"{names[trace.path]}: ")]
    return "\n".join([table(headers, rows), *warned])


def _recommendations(
    traces: Sequence[Trace], over_ranks: Sequence[RankCollective], thresholds: Mapping[str, float]
) -> str:
    names = _names(traces)
    by_code: dict[str, list[tuple[Trace, Finding]]] = {}
    for trace in traces:
        for finding in recommendations(trace, thresholds):
            by_code.setdefault(finding.code, []).append((trace, finding))
    missing = not_checked_lines(_missing(traces))
    late = late_lines(traces, over_ranks)
    if not by_code and not late:
        return "\n".join(
            ["The rules that could run found no bottleneck." if missing else "No bottleneck found.", *missing]
        )
    largest = {code: max(findings, key=_rank) for code, findings in by_code.items()}
    lines = [*one_step_lines(traces), *late]
    for code in sorted(by_code, key=lambda code: -_rank(largest[code])):
        trace, finding = largest[code]
        affected = [names[trace.path] for trace, _ in by_code[code]]
        on = "all" if len(affected) == len(traces) > 1 else ", ".join(affected)
        of = "figures of" if saving_ms(finding) is None else "most on"
        most = f"; {of} {names[trace.path]}" if len(affected) > 1 else ""
        lines += finding_lines(finding, trace, f"({on}{most}) ")
    return "\n".join([*lines, *missing])


def _missing(traces: Sequence[Trace]) -> dict[str, list[str]]:
    """Return the rules that could not run, by what they need and, unless that is true of all, on which traces."""
    names = _names(traces)
    lacking: dict[str, dict[str, list[str]]] = {}
    for trace in traces:
        for what, codes in not_checked(trace).items():
            for code in codes:
                lacking.setdefault(what, {}).setdefault(code, []).append(names[trace.path])
    found: dict[str, list[str]] = {}
    for what, on_traces in lacking.items():
        for code, on in on_traces.items():
            found.setdefault(what if len(on) == len(traces) else f"{what} (on {_shortened(on)})", []).append(code)
    return found


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - MOST_LATE
    return ", ".join(names[:MOST_LATE]) + (f" and {more} more" if more > 0 else "")


def _rank(trace_and_finding: tuple[Trace, Finding]) -> float:
    """Return the saving in ms; -1 if it is not known."""
    saved_ms = saving_ms(trace_and_finding[1])
    return -1.0 if saved_ms is None else saved_ms
