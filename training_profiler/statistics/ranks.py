"""From what ranks told of themselves to figures of all of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from training_profiler.rank_figures import HostFigures, RankFigures, RanksFigures
from training_profiler.statistics.clocks import HostKey, clock_figures, host_of
from training_profiler.statistics.rank_history import history_of
from training_profiler.statistics.rank_since import latest, since
from training_profiler.statistics.rank_spread import Cause, causes, medians_of_others, section_table, spreads
from training_profiler.statistics.rank_sums import RankSums
from training_profiler.statistics.rank_waiting import Waiting, waiting_parts
from training_profiler.statistics.steps import FIRST_STEPS
from training_profiler.statistics.trend import median
from training_profiler.units import NS_PER_S

LONGER_AT_LEAST: Final = 0.01  # work beyond the median of the others, from which on a cause of it is looked for


def ranks_figures(
    told: Sequence[RankSums],
    world_size: int,
    *,
    before: Mapping[int, RankSums] | None = None,
    heard_s_ago: Mapping[int, float] | None = None,
    silent_after_s: float | None = None,
) -> RanksFigures | None:
    """Return the figures of all ranks; None where there is one, or where no rank has told anything.

    Args:
        told: what each rank has told last, in any order.
        world_size: how many ranks there are.
        before: what they had told at the last report, by rank: the figures are of the steps since; None for all.
        heard_s_ago: how long ago each was heard of, by rank; None where they come from files.
        silent_after_s: how long a rank may be silent that is not at its end.
    """
    of_run = latest(told)
    if world_size < 2 or not of_run:
        return None
    before, heard_s_ago = before or {}, heard_s_ago or {}
    # Told of sections by themselves, warm-up is what the slowest to settle has; the others' is part of it.
    warmup = min(FIRST_STEPS, max((one.steps - one.settled_steps for one in of_run if one.settled_steps), default=0))
    stretch = [since(one, before.get(one.who.rank)) for one in of_run]
    table = section_table(stretch)
    is_exchange_seen = any(one.knows_sync and one.sync_ns for one in of_run)
    waiting = waiting_parts(stretch, warmup) if is_exchange_seen else None
    rows = [_row(one, is_exchange_seen, waiting, heard_s_ago.get(one.who.rank)) for one in stretch]
    rows = _scored(rows, causes(table), of_run)
    heard = {one.who.rank for one in of_run}
    late = {rank for rank, s in heard_s_ago.items() if silent_after_s is not None and s > silent_after_s}
    shares = _shares(rows)
    return RanksFigures(
        world_size=world_size,
        ranks=tuple(rows),
        missing=tuple(rank for rank in range(world_size) if rank not in heard),
        silent=tuple(row.who.rank for row in rows if row.who.rank in late and not row.is_final),
        sections=spreads(table, of_run),
        hosts=_hosts(rows, of_run),
        step_s=_median(row.step_s for row in rows),
        sync_share=shares[0],
        waiting_share=shares[1],
        transfer_share=shares[2],
        compared_steps=0 if waiting is None else waiting.steps,
        clocks=clock_figures(of_run),
    )


def _row(told: RankSums, is_exchange_seen: bool, waiting: Waiting | None, heard_s_ago: float | None) -> RankFigures:
    """Return what is known of a rank by itself; ``told`` is of the stretch of time that figures are of."""
    step_s = told.settled_ns / told.settled_steps / NS_PER_S if told.settled_steps else None
    sync_s = None
    if step_s is not None and told.knows_sync and is_exchange_seen:
        sync_s = min(step_s, told.sync_ns / told.settled_steps / NS_PER_S)
    part = None if waiting is None else waiting.part.get(told.who.rank)
    return RankFigures(
        who=told.who,
        steps=told.steps,
        step_s=step_s,
        work_s=None if step_s is None or sync_s is None else step_s - sync_s,
        sync_s=sync_s,
        waiting_s=None if part is None or sync_s is None else part * sync_s,
        heard_s_ago=heard_s_ago,
        is_final=told.is_final,
        ended_by=told.ended_by,
        inside=tuple(told.inside),
    )


def _scored(rows: Sequence[RankFigures], found: Sequence[Cause | None], told: Sequence[RankSums]) -> list[RankFigures]:
    """Return the rows with their work against the best rank's, the other ranks' and their own before."""
    known = [at for at, row in enumerate(rows) if row.work_s]
    scored = list(rows)
    if len(known) < 2:
        return scored
    work_s = np.array([rows[at].work_s for at in known], np.float64)
    beyond = work_s / medians_of_others(work_s[None, :])[0] - 1
    for of_known, at in enumerate(known):
        against_best = float(work_s[of_known] / work_s.min())
        if beyond[of_known] <= LONGER_AT_LEAST:  # with a thousand ranks, the rest is worth its time for few of them
            scored[at] = replace(rows[at], against_best=against_best)
            continue
        sums, cause = told[at], found[at]
        history = history_of(sums.paces, sums.steps - sums.settled_steps)
        scored[at] = replace(
            rows[at],
            against_best=against_best,
            against_itself=None if history is None else history.ratio,
            slower_since_step=None if history is None else history.slower_since_step,
            cause="" if cause is None else cause.section,
            cause_s=None if cause is None else cause.extra_s,
            place="" if cause is None else sums.places.get(cause.section, ""),
        )
    return scored


def _shares(rows: Iterable[RankFigures]) -> tuple[float | None, float | None, float | None]:
    """Return the shares of step time that are synchronization, waiting and transfer: means over ranks."""
    sync = [(row.sync_s / row.step_s, row.waiting_s) for row in rows if row.sync_s is not None and row.step_s]
    if not sync:
        return None, None, None
    compared = [
        (row.sync_s / row.step_s, row.waiting_s / row.step_s)
        for row in rows
        if row.sync_s is not None and row.waiting_s is not None and row.step_s
    ]
    share = float(np.mean([one for one, _ in sync]))
    compared_share = float(np.mean([one for one, _ in compared])) if compared else 0.0
    if not compared_share:
        return share, None, None
    # Ranks that could not be compared are taken to wait as the others do, so that the two add up to the share.
    waiting_share = min(share, share * float(np.mean([one for _, one in compared])) / compared_share)
    return share, waiting_share, share - waiting_share


def _hosts(rows: Sequence[RankFigures], told: Sequence[RankSums]) -> tuple[HostFigures, ...]:
    by_host: dict[HostKey, list[RankFigures]] = {}
    for row, one in zip(rows, told, strict=True):
        by_host.setdefault(host_of(one), []).append(row)
    names = Counter(name for name, _ in by_host)
    hosts = [
        HostFigures(
            host=name if names[name] == 1 or node is None else f"{name} (node {node})",
            ranks=tuple(row.who.rank for row in of_host),
            work_s=_median(row.work_s for row in of_host),
        )
        for (name, node), of_host in by_host.items()
    ]
    works_s = [host.work_s for host in hosts if host.work_s]
    if len(works_s) < 2:
        return tuple(hosts)
    least_s = min(works_s)
    return tuple(replace(host, against_best=host.work_s / least_s if host.work_s else None) for host in hosts)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
