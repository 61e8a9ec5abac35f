"""Journals of many ranks, written by the real writer on a fake clock."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.recording import FakeRun
from training_profiler.model.ranks import AllRanksStats, RankId, RankStats
from training_profiler.model.snapshot import Health
from training_profiler.ranks.summary import RankSection, RankSummary
from training_profiler.storage.journal import Journal
from training_profiler.storage.journal_discovery import LaunchId
from training_profiler.storage.run_folder import journal_name

RUN = "20261121-142530"
LAUNCH = LaunchId("node0", parent_pid=41, parent_start_s=1000.0)
BEGAN_S = 1_000_000
S = 1_000_000_000  # ns


def who(rank: int, attempt: int = 0, world_size: int = 4) -> RankId:
    return RankId(rank, world_size, f"node{rank // 2}", rank // 2, rank % 2, attempt)


def summary_by(
    rank: int, steps: int, sent_s: float, attempt: int = 0, *, off_s: float = 0.0, **others: Any
) -> RankSummary:
    """Return the summary that a rank sends ``sent_s`` after its begin, by a clock that is ``off_s`` ahead."""
    sections = {"forward_pass": RankSection(steps, steps * S, steps * S, steps * S)}
    return RankSummary(
        who(rank, attempt),
        begin_ns=BEGAN_S * S + round(off_s * S),
        sent_ns=BEGAN_S * S + round((sent_s + off_s) * S),
        steps=steps,
        sections=sections,
        **others,
    )


def write_rank(
    folder: Path,
    rank: int,
    *,
    steps: int = 10,
    attempt: int = 0,
    sends: bool = True,
    sent_s: float | None = None,
    off_s: float = 0.0,
    inside: tuple[str, ...] = (),
    ended_by: str | None = None,
    is_ended: bool = True,
    launch: LaunchId = LAUNCH,
    name: str | None = None,
    **identity: Any,
) -> Path:
    """Write the journal of a rank whose steps take 1 s each, flushed every fifth step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or journal_name(rank, attempt))
    run = FakeRun()
    begin: dict[str, Any] = {"run": RUN, "pid": 100 + rank, "host": "node0", "wall_ns": (BEGAN_S + attempt) * S}
    begin |= {"who": asdict(who(rank, attempt)), "launched": launch._asdict(), **identity}
    run.journal = Journal(path, rank, run.names, run.clock(), None, begin)
    for step in range(1, steps + 1):
        run.step(forward_pass=1.0)
        if step % 5 == 0:
            run.flush()
            if sends:
                sent_after_s = step if sent_s is None else sent_s
                summary = summary_by(rank, step, sent_after_s, attempt, off_s=off_s, inside=inside)
                run.journal.append(run.journal.lines.rank(summary.to_data()))
    if is_ended:
        run.journal.close(Health(), ended_by)
    return path


def simple_stats(
    summaries: Sequence[RankSummary],
    world_size: int,
    *,
    before: Mapping[int, RankSummary] | None = None,
    age_s: Mapping[int, float] | None = None,
    silent_after_s: float | None = None,
) -> AllRanksStats | None:
    """Stand in for ``all_ranks_stats``: the known ranks and their steps."""
    if world_size == 1 or not summaries:
        return None
    ranks = {summary.who.rank: RankStats(summary.who, summary.steps) for summary in summaries}
    late = [rank for rank, s in (age_s or {}).items() if silent_after_s is not None and s > silent_after_s]
    missing = tuple(rank for rank in range(world_size) if rank not in ranks)
    return AllRanksStats(world_size, tuple(ranks.values()), missing, tuple(late))
