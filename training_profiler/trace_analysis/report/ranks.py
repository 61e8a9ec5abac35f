"""The traces of several ranks as one report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from training_profiler.findings.finding import Finding
from training_profiler.trace_analysis.analysis import Analysis
from training_profiler.trace_analysis.communication import RankCollective
from training_profiler.trace_analysis.report.tables import counted, ms, percent, short, table, us
from training_profiler.trace_analysis.rules.recommendations import THRESHOLDS, recommendations
from training_profiler.trace_analysis.trace_json import saving_ms


def render_ranks(
    traces: Sequence[Analysis], over_ranks: Sequence[RankCollective], thresholds: Mapping[str, float] = THRESHOLDS
) -> str:
    """Return one report over the traces of several ranks: their steps, who waits for whom, what to change."""
    parts = [f"=== Overview of {counted(len(traces), 'trace')} ===\n{_overview(traces)}\n"]
    if over_ranks:
        parts.append(f"=== Communication over ranks ===\n{communication_over_ranks(over_ranks)}\n")
    parts.append(f"=== Recommendations ===\n{_recommendations(traces, thresholds)}\n")
    return "\n".join(parts)


def are_ranks(traces: Sequence[Analysis]) -> bool:
    """Return whether these are traces of different ranks of one job, as far as they tell."""
    ranks = {found.rank for found in traces}
    return None not in ranks and len(ranks) == len(traces) and len({found.world_size for found in traces}) == 1


def _names(traces: Sequence[Analysis]) -> dict[Path, str]:
    """Return what to call each trace: its rank, or its file where these are no ranks of one job."""
    return {one.path: f"rank {one.rank}" if are_ranks(traces) else short(one.path.name) for one in traces}


def _overview(traces: Sequence[Analysis]) -> str:
    names = _names(traces)
    keys = ("wall_ns", "compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")
    rows = []
    for found in sorted(traces, key=lambda one: one.rank or 0) if are_ranks(traces) else traces:
        sums = [sum(getattr(step, key) for step in found.steps) for key in keys]
        known = sums if found.has_gpu and found.steps else [None] * len(sums)
        wall_ns = sums[0] if found.steps else None
        shares = [None if part is None else f"{ms(part)} {percent(part / max(1, sums[0])):>6}" for part in known[1:]]
        rows.append(
            (
                names[found.path],
                len(found.steps),
                "" if wall_ns is None else ms(wall_ns),
                percent(found.utilization_in_steps),
                *("" if share is None else share for share in shares),
            )
        )
    headers = ("", "steps", "in steps", "device works", "compute", "exposed communication", "exposed copies", "idle")
    return table(headers, rows)


def communication_over_ranks(over_ranks: Sequence[RankCollective]) -> str:
    """Return what of each kind of collective is transfer, what is waiting for the rank that comes last."""
    rows = [
        (
            one.kind,
            one.count,
            us(one.transfer_ns),
            us(one.waiting_ns),
            percent(one.waiting_ns / (one.waiting_ns + one.transfer_ns) if one.waiting_ns else 0.0),
            f"rank {one.latest_rank}",
        )
        for one in over_ranks
    ]
    return table(("a run, mean over ranks", "runs", "transfer", "waiting", "waiting", "waited for"), rows)


def _recommendations(traces: Sequence[Analysis], thresholds: Mapping[str, float]) -> str:
    called = _names(traces)
    told: dict[str, list[tuple[Analysis, Finding]]] = {}
    for found in traces:
        for one in recommendations(found, thresholds):
            told.setdefault(one.code, []).append((found, one))
    if not told:
        return "Nothing stands out."

    def worth(where: tuple[Analysis, Finding]) -> float:
        worth_ms = saving_ms(where[1])
        return -1.0 if worth_ms is None else worth_ms

    lines = []
    for places in sorted(told.values(), key=lambda places: -worth(max(places, key=worth))):
        found, one = max(places, key=worth)
        names = "all" if len(places) == len(traces) > 1 else ", ".join(called[where.path] for where, _ in places)
        most = f"; most on {called[found.path]}" if len(places) > 1 and saving_ms(one) is not None else ""
        saved_ms = saving_ms(one)
        value = "" if saved_ms is None else f" Worth up to {saved_ms:.1f} ms of {counted(len(found.steps), 'step')}."
        lines += [f"- ({names}{most}) {one.message}.{value}", f"  {one.fix}"]
    return "\n".join(lines)
