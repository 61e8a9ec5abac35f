"""From what ranks told of themselves to figures of all of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from training_profiler.aggregation.section_totals import Floats
from training_profiler.aggregation.step_totals import FIRST_STEPS
from training_profiler.aggregation.trend import median
from training_profiler.ranks.host_clocks import HostKey, clock_stats, host_of
from training_profiler.ranks.section_spread import Cause, causes, medians_of_others, section_table, spreads
from training_profiler.ranks.summary import RankSection, RankSummary, StepTimeBucket
from training_profiler.recording.gradient_sync import BLOCK_STEPS
from training_profiler.snapshot.ranks import AllRanksStats, HostStats, RankStats
from training_profiler.units import NS_PER_S

PACES_NEEDED: Final = 8
PACES_A_SIDE: Final = 3
STEPS_A_SIDE: Final = 10
CHANGE_AT_LEAST: Final = 0.10
EXPLAINS_AT_LEAST: Final = 0.6  # of the variance of paces; the best split of 8 that are chance does so once in 10 times


class History(NamedTuple):
    """Work a step lately over work before; the step from which on it is more, where that change is clear."""

    ratio: float
    slower_since_step: int | None = None


def history_of(paces: Sequence[StepTimeBucket], warmup_steps: int = 0) -> History | None:
    """Return how work a step changed over the run; None on too few paces.

    The split is the one that leaves the least variance within its two sides. Where the change there is not clear, the
    later half is compared with the earlier one. Paces with steps of warm-up in them do not count.
    """
    ends = np.cumsum([pace.steps for pace in paces])
    warm = int(np.searchsorted(ends, warmup_steps, side="left")) + 1 if warmup_steps else 0
    kept = paces[warm:]
    if len(kept) < PACES_NEEDED:
        return None
    first_step = int(ends[warm - 1]) if warm else 0
    steps = np.array([pace.steps for pace in kept], np.float64)
    work_ns = np.array([max(0, pace.step_ns - pace.sync_ns) for pace in kept], np.float64)
    steps_before = np.cumsum(steps)[:-1]
    work_before_ns = np.cumsum(work_ns)[:-1]
    means_before = work_before_ns / steps_before
    means_after = (work_ns.sum() - work_before_ns) / (steps.sum() - steps_before)
    between = steps_before * (steps.sum() - steps_before) / steps.sum() * (means_after - means_before) ** 2
    at = np.arange(1, len(kept))
    allowed = (at >= PACES_A_SIDE) & (len(kept) - at >= PACES_A_SIDE)
    allowed &= (steps_before >= STEPS_A_SIDE) & (steps.sum() - steps_before >= STEPS_A_SIDE)
    if not allowed.any() or not (means_before > 0).all():
        return None
    split = int(np.argmax(np.where(allowed, between, -1.0)))
    paces_ns = work_ns / steps
    mean_ns = work_ns.sum() / steps.sum()
    variance = float((steps * (paces_ns - mean_ns) ** 2).sum())
    ratio = float(means_after[split] / means_before[split])
    if abs(ratio - 1) > CHANGE_AT_LEAST and between[split] >= EXPLAINS_AT_LEAST * variance:
        return History(ratio, first_step + int(steps_before[split]) if ratio > 1 else None)
    half = int(np.argmin(np.abs(steps_before - steps.sum() / 2)))
    return History(float(means_after[half] / means_before[half]))


def latest(told: Sequence[RankSummary]) -> list[RankSummary]:
    """Return what each rank told last, by its number."""
    by_rank: dict[int, RankSummary] = {}
    for one in told:
        known = by_rank.get(one.who.rank)
        if known is None or _age(known) <= _age(one):
            by_rank[one.who.rank] = one
    return [by_rank[rank] for rank in sorted(by_rank)]


def _age(told: RankSummary) -> tuple[int, int, bool]:
    return told.who.attempt, told.number, told.is_final


def since(now: RankSummary, before: RankSummary | None) -> RankSummary:
    """Return ``now`` with the sums of what followed ``before``; its paces stay those of the whole run.

    Warm-up may have become longer in between, so that a sum is less than it was: it counts as nothing then.
    """
    if before is None or before.who.attempt != now.who.attempt or before.number > now.number:
        return now
    return structs.replace(
        now,
        settled_steps=max(0, now.settled_steps - before.settled_steps),
        settled_ns=max(0, now.settled_ns - before.settled_ns),
        sync_ns=max(0, now.sync_ns - before.sync_ns),
        exchanges=max(0, now.exchanges - before.exchanges),
        sections=_sections_since(now.sections, before.sections),
        blocks={first: ns for first, ns in now.blocks.items() if first >= before.steps},
    )


def _sections_since(now: Mapping[str, RankSection], before: Mapping[str, RankSection]) -> dict[str, RankSection]:
    nothing = RankSection()
    differences = {
        name: RankSection(*(max(0, a - b) for a, b in zip(row, before.get(name, nothing), strict=True)))
        for name, row in now.items()
    }
    return {name: row for name, row in differences.items() if row.spans or row.step_ns}


STEPS_NEEDED: Final = 8


class Waiting(NamedTuple):
    """The part of synchronization that is waiting, of each rank that was compared, 0 to 1; and on how many steps."""

    part: dict[int, float]
    steps: int


def waiting_parts(told: Sequence[RankSummary], warmup_steps: int = 0) -> Waiting | None:
    """Return what part of its synchronization each rank waits; None where too few steps can be compared.

    The last rank to come to an exchange waits for nobody: the least time that a rank has in a step is the exchange as
    such, and what another has beyond is waiting. A step counts where every rank that made it tells of it: a rank that
    fell silent before is not missing. The first ``warmup_steps`` do not count.
    """
    ranks = [one for one in told if one.knows_sync and one.blocks]
    if len(ranks) < 2:
        return None
    columns = []
    for first in sorted({first for one in ranks for first in one.blocks}):
        made_it = [one for one in ranks if one.steps >= first + BLOCK_STEPS]
        holders = [one for one in made_it if first in one.blocks]
        if first + BLOCK_STEPS <= warmup_steps or len(holders) < max(2, len(made_it)):
            continue
        columns.append(_of_block(ranks, first, max(0, warmup_steps - first)))
    if not columns:
        return None
    sync_ns = np.concatenate(columns, axis=1)  # [rank][step]; NaN where the rank had not come so far
    compared = sync_ns.shape[1]
    if compared < STEPS_NEEDED:
        return None
    waiting_ns = np.nansum(sync_ns - np.nanmin(sync_ns, axis=0), axis=1)
    total_ns = np.nansum(sync_ns, axis=1)
    part = np.divide(waiting_ns, total_ns, out=np.zeros_like(waiting_ns), where=total_ns > 0)
    steps_known = (~np.isnan(sync_ns)).sum(axis=1).tolist()
    return Waiting({one.who.rank: float(part[at]) for at, one in enumerate(ranks) if steps_known[at]}, compared)


def _of_block(ranks: Sequence[RankSummary], first: int, skipped: int) -> Floats:
    """Return the synchronization of a block's steps, shape (ranks, steps that all who made them know)."""
    absent = [np.nan] * BLOCK_STEPS
    sync_ns = np.array([one.blocks.get(first, absent) for one in ranks], np.float64)[:, skipped:]
    is_known = np.all(~(sync_ns < 0), axis=0)  # NaN is not below 0
    return np.asarray(sync_ns[:, is_known], np.float64)


LONGER_AT_LEAST: Final = 0.01  # work beyond the median of the others, from which on a cause of it is looked for


def all_ranks_stats(
    told: Sequence[RankSummary],
    world_size: int,
    *,
    before: Mapping[int, RankSummary] | None = None,
    heard_s_ago: Mapping[int, float] | None = None,
    silent_after_s: float | None = None,
) -> AllRanksStats | None:
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
    return AllRanksStats(
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
        clocks=clock_stats(of_run),
    )


def _row(told: RankSummary, is_exchange_seen: bool, waiting: Waiting | None, heard_s_ago: float | None) -> RankStats:
    """Return what is known of a rank by itself; ``told`` is of the stretch of time that figures are of."""
    step_s = told.settled_ns / told.settled_steps / NS_PER_S if told.settled_steps else None
    sync_s = None
    if step_s is not None and told.knows_sync and is_exchange_seen:
        sync_s = min(step_s, told.sync_ns / told.settled_steps / NS_PER_S)
    part = None if waiting is None else waiting.part.get(told.who.rank)
    return RankStats(
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


def _scored(rows: Sequence[RankStats], found: Sequence[Cause | None], told: Sequence[RankSummary]) -> list[RankStats]:
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
        history = history_of(sums.step_times, sums.steps - sums.settled_steps)
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


def _shares(rows: Iterable[RankStats]) -> tuple[float | None, float | None, float | None]:
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


def _hosts(rows: Sequence[RankStats], told: Sequence[RankSummary]) -> tuple[HostStats, ...]:
    by_host: dict[HostKey, list[RankStats]] = {}
    for row, one in zip(rows, told, strict=True):
        by_host.setdefault(host_of(one), []).append(row)
    names = Counter(name for name, _ in by_host)
    hosts = [
        HostStats(
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
