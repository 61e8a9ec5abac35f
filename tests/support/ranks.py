"""Custom summaries and stats of ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

from training_profiler.model.ranks import AllRanksStats, HostStats, RankId, RankStats
from training_profiler.ranks.summary import RankSection, RankSummary, StepTimeBucket

MS = 1_000_000


def rank_id(rank: int, world_size: int = 4, per_host: int = 2) -> RankId:
    node = rank // per_host
    return RankId(rank, world_size, f"node{node}", node, rank % per_host)


def summary_of(
    rank: int,
    *,
    step_ms: float = 31.0,
    sync_ms: float = 3.0,
    steps: int = 100,
    warmup: int = 0,
    sections: Mapping[str, float] | None = None,
    others: Mapping[str, RankSection] | None = None,
    **more: Any,
) -> RankSummary:
    """Return the summary of a rank with even steps; ``sections`` are ms per step, not nested."""
    settled = steps - warmup
    rows = {
        name: RankSection(steps, round(steps * ms * MS), round(settled * ms * MS), round(settled * ms * MS))
        for name, ms in (sections or {}).items()
    }
    return RankSummary(
        who=more.pop("who", rank_id(rank)),
        number=more.pop("number", 1),
        steps=steps,
        settled_steps=settled,
        settled_ns=round(settled * step_ms * MS),
        sync_ns=round(settled * sync_ms * MS),
        knows_sync=more.pop("knows_sync", True),
        sections={**rows, **(others or {})},
        **more,
    )


def buckets(*work_ms: float, steps: int = 50, sync_ms: float = 2.0) -> list[StepTimeBucket]:
    return [StepTimeBucket(steps, round(steps * (ms + sync_ms) * MS), round(steps * sync_ms * MS)) for ms in work_ms]


def rank_row(rank: int, work_s: float | None = 0.03, step_s: float = 0.05, **more: Any) -> RankStats:
    sync_s = None if work_s is None else step_s - work_s
    who = more.pop("who", rank_id(rank))
    return RankStats(who, more.pop("steps", 100), step_s, work_s, sync_s, **more)


def ranks_of(rows: Sequence[RankStats], **more: Any) -> AllRanksStats:
    """Return the stats of these ranks, grouped by host."""
    by_host: dict[str, list[RankStats]] = {}
    for row in rows:
        by_host.setdefault(row.who.host, []).append(row)
    hosts = [
        HostStats(host, tuple(row.who.rank for row in of_host), of_host[0].work_s) for host, of_host in by_host.items()
    ]
    return AllRanksStats(more.pop("world_size", len(rows)), tuple(rows), hosts=tuple(hosts), **more)
