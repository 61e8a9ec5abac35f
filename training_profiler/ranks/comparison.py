"""Compares the summaries of all ranks: clocks, histories, waiting, and the spread of each section's time."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from training_profiler.base.sections import BACKWARD_PASS, FORWARD_PASS, SYNCHRONIZATION
from training_profiler.base.units import NS_PER_S
from training_profiler.model.loader_workers import repeats_among
from training_profiler.model.ranks import (
    BLOCK_STEPS,
    FIRST_STEPS,
    AllRanksStats,
    ClockStats,
    HostStats,
    RankId,
    RankStats,
    SectionSpread,
    UnusedSearch,
)
from training_profiler.ranks.summary import RankSection, RankSummary, StepTimeBucket
from training_profiler.statistics.arrays import Floats, Ints
from training_profiler.statistics.trend import median

HostKey = tuple[str, int | None]  # name, and number of the node: machines may share a name


class Offset(NamedTuple):
    """How far the first machine's clock is ahead of another's: an interval in ns."""

    low_ns: int
    high_ns: int
    sync_points: int


def clock_offsets(summaries: Sequence[RankSummary]) -> dict[HostKey, Offset | None]:
    """Return the offset of each machine's clock from the lowest rank's machine; None if unknown.

    No rank leaves a sync point before all have entered, so the last enter on one machine precedes the first leave on
    another. Each sync point gives an interval that contains the offset. If they have nothing in common, a clock was
    set in between.
    """
    points: dict[HostKey, dict[str, tuple[int, int]]] = {}  # last enter and first leave on each machine
    for summary in sorted(summaries, key=lambda summary: summary.who.rank):
        of_host = points.setdefault((summary.who.host, summary.who.node), {})
        for key, enter_ns, leave_ns in summary.sync_points:
            last_ns, first_ns = of_host.get(key, (enter_ns, leave_ns))
            of_host[key] = max(last_ns, enter_ns), min(first_ns, leave_ns)
    first = next(iter(points.values()), {})
    offsets: dict[HostKey, Offset | None] = {}
    for host, other in points.items():
        offset, common = None, [key for key in first if key in other]
        if other is first:
            offset = Offset(0, 0, 0)
        elif common:
            low_ns = max(first[key][0] - other[key][1] for key in common)
            high_ns = min(first[key][1] - other[key][0] for key in common)
            offset = Offset(low_ns, high_ns, len(common)) if low_ns <= high_ns else None
        offsets[host] = offset
    return offsets


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
        sync_points=max(offset.sync_points for offset in known),
    )


BUCKETS_NEEDED: Final = 8
BUCKETS_A_SIDE: Final = 3
STEPS_A_SIDE: Final = 10
CHANGE_AT_LEAST: Final = 0.10
EXPLAINS_AT_LEAST: Final = 0.6  # of the variance; the best split of 8 random buckets explains as much once in 10 times


def history_of(buckets: Sequence[StepTimeBucket], warmup_steps: int = 0) -> tuple[float | None, int | None]:
    """Return recent work per step over earlier work, and the step since which it is clearly more; None if unknown.

    The split is the one with the least variance within its two sides. If the change there is not clear, the later half
    is compared with the earlier half. Buckets that contain warm-up steps do not count.
    """
    ends = np.cumsum([bucket.steps for bucket in buckets])
    warm = int(np.searchsorted(ends, warmup_steps, side="left")) + 1 if warmup_steps else 0
    kept = buckets[warm:]
    if len(kept) < BUCKETS_NEEDED:
        return None, None
    first_step = int(ends[warm - 1]) if warm else 0
    steps = np.array([bucket.steps for bucket in kept], np.float64)
    work_ns = np.array([max(0, bucket.step_ns - bucket.sync_ns) for bucket in kept], np.float64)
    steps_before = np.cumsum(steps)[:-1]
    work_before_ns = np.cumsum(work_ns)[:-1]
    means_before = work_before_ns / steps_before
    means_after = (work_ns.sum() - work_before_ns) / (steps.sum() - steps_before)
    between = steps_before * (steps.sum() - steps_before) / steps.sum() * (means_after - means_before) ** 2
    at = np.arange(1, len(kept))
    allowed = (at >= BUCKETS_A_SIDE) & (len(kept) - at >= BUCKETS_A_SIDE)
    allowed &= (steps_before >= STEPS_A_SIDE) & (steps.sum() - steps_before >= STEPS_A_SIDE)
    if not allowed.any() or not (means_before > 0).all():
        return None, None
    split = int(np.argmax(np.where(allowed, between, -1.0)))
    step_work_ns = work_ns / steps
    mean_ns = work_ns.sum() / steps.sum()
    variance = float((steps * (step_work_ns - mean_ns) ** 2).sum())
    ratio = float(means_after[split] / means_before[split])
    if abs(ratio - 1) > CHANGE_AT_LEAST and between[split] >= EXPLAINS_AT_LEAST * variance:
        return ratio, first_step + int(steps_before[split]) if ratio > 1 else None
    half = int(np.argmin(np.abs(steps_before - steps.sum() / 2)))
    return float(means_after[half] / means_before[half]), None


def latest(summaries: Sequence[RankSummary]) -> list[RankSummary]:
    """Return the latest summary of each rank, by rank."""
    in_order = sorted(summaries, key=lambda each: (each.who.attempt, each.number, each.is_final))
    by_rank = {summary.who.rank: summary for summary in in_order}
    return [by_rank[rank] for rank in sorted(by_rank)]


def since(now: RankSummary, before: RankSummary | None) -> RankSummary:
    """Return ``now`` with the sums of the time since ``before``; its step times stay those of the whole run.

    Warm-up may have become longer in between, which makes a sum smaller than before; it then counts as 0.
    """
    if before is None or before.who.attempt != now.who.attempt or before.number > now.number:
        return now
    sections = {
        name: RankSection(*(max(0, a - b) for a, b in zip(row, before.sections.get(name, NO_SECTION), strict=True)))
        for name, row in now.sections.items()
    }
    return structs.replace(
        now,
        settled_steps=max(0, now.settled_steps - before.settled_steps),
        settled_ns=max(0, now.settled_ns - before.settled_ns),
        sync_ns=max(0, now.sync_ns - before.sync_ns),
        exchanges=max(0, now.exchanges - before.exchanges),
        sections={name: row for name, row in sections.items() if row.spans or row.step_ns},
        blocks={first: ns for first, ns in now.blocks.items() if first >= before.steps},
    )


STEPS_NEEDED: Final = 8


class RankWaiting(NamedTuple):
    """The part of synchronization that is waiting, by rank, 0 to 1; and the number of steps compared."""

    part: dict[int, float]
    steps: int


def waiting_parts(summaries: Sequence[RankSummary], warmup_steps: int = 0) -> RankWaiting | None:
    """Return which part of its synchronization each rank waits; None with too few steps to compare.

    The last rank to arrive does not wait. So the least time of all ranks in a step is the communication itself, and the
    excess of another rank is waiting. A step counts if every rank that completed it has a value for it; ranks that
    ended before are not missing. The first ``warmup_steps`` do not count.
    """
    ranks = [summary for summary in summaries if summary.knows_sync and summary.blocks]
    if len(ranks) < 2:
        return None
    columns, absent = [], [np.nan] * BLOCK_STEPS
    for first in sorted({first for rank in ranks for first in rank.blocks}):
        reached = [rank for rank in ranks if rank.steps >= first + BLOCK_STEPS]
        holders = [rank for rank in reached if first in rank.blocks]
        if first + BLOCK_STEPS <= warmup_steps or len(holders) < max(2, len(reached)):
            continue
        block_ns = np.array([rank.blocks.get(first, absent) for rank in ranks], np.float64)
        block_ns = block_ns[:, max(0, warmup_steps - first) :]
        columns.append(block_ns[:, np.all(~(block_ns < 0), axis=0)])  # NaN is not below 0
    if not columns:
        return None
    sync_ns = np.concatenate(columns, axis=1)  # [rank][step]; NaN for ranks that have not come so far
    compared = sync_ns.shape[1]
    if compared < STEPS_NEEDED:
        return None
    waiting_ns = np.nansum(sync_ns - np.nanmin(sync_ns, axis=0), axis=1)
    total_ns = np.nansum(sync_ns, axis=1)
    part = np.divide(waiting_ns, total_ns, out=np.zeros_like(waiting_ns), where=total_ns > 0)
    steps_known = (~np.isnan(sync_ns)).sum(axis=1).tolist()
    return RankWaiting({rank.who.rank: float(part[at]) for at, rank in enumerate(ranks) if steps_known[at]}, compared)


MOST_SECTIONS: Final = 60  # those with most time over all ranks, because each rank may have names of its own
NO_SECTION: Final = RankSection()
# Ranks wait for each other inside these (DDP, FSDP), so the waiting rank would be the slowest.
PASSES: Final = (FORWARD_PASS, BACKWARD_PASS)


class SectionTable(NamedTuple):
    """The sections of all ranks: ``rows[section, rank, field of RankSection]``, zeros if a rank has none."""

    names: list[str]
    rows: Ints
    who: list[RankId]
    settled_steps: Ints


def section_table(summaries: Sequence[RankSummary]) -> SectionTable:
    """Return the sections with most time over all ranks."""
    total_ns: dict[str, int] = {}
    for summary in summaries:
        for name, row in summary.sections.items():
            total_ns[name] = total_ns.get(name, 0) + max(row.total_ns, row.own_step_ns)
    names = sorted(total_ns, key=lambda name: (-total_ns[name], name))[:MOST_SECTIONS]
    rows = [[summary.sections.get(name, NO_SECTION) for summary in summaries] for name in names]
    return SectionTable(
        names=names,
        rows=np.array(rows, np.int64).reshape(len(names), len(summaries), len(RankSection._fields)),
        who=[summary.who for summary in summaries],
        settled_steps=np.array([summary.settled_steps for summary in summaries], np.int64),
    )


def spreads(table: SectionTable, of_run: Sequence[RankSummary]) -> tuple[SectionSpread, ...]:
    """Return the spread of each section over the ranks that entered it, the longest per step first.

    Forward and backward passes are compared without nested sections if there is ``synchronization``.

    ``of_run`` shows which ranks never entered a section: within one interval a rank may just not have reached it.
    """
    found = []
    for at, name in enumerate(table.names):
        of_ranks = [(rank.who.rank, rank.sections.get(name, NO_SECTION)) for rank in of_run]
        never_on = tuple(rank for rank, row in of_ranks if row.spans <= 0 and row.own_step_ns <= 0)
        spread = _spread(table, at, never_on)
        if spread is not None:
            found.append(spread)
    return tuple(sorted(found, key=lambda spread: (not spread.is_of_step, -spread.max_s, spread.name)))


def _spread(table: SectionTable, at: int, never_on: tuple[int, ...]) -> SectionSpread | None:
    spans, total_ns, step_ns, own_ns, device_count, device_ns, device_step_ns, device_own_ns = table.rows[at].T
    if table.names[at] in PASSES and SYNCHRONIZATION in table.names:
        step_ns, device_step_ns = own_ns, device_own_ns
    entered = (spans > 0) | (own_ns > 0)
    is_of_step = bool((step_ns > 0).any())
    counts = table.settled_steps if is_of_step else spans
    known = entered & (counts > 0)
    if not known.any():
        return None
    is_device = bool((device_step_ns[known] > 0).all() if is_of_step else (device_count[known] > 0).all())
    if is_device and not is_of_step:
        device_ns = device_ns * spans // np.maximum(device_count, 1)
    of_host, of_device = (step_ns, device_step_ns) if is_of_step else (total_ns, device_ns)
    total = of_device if is_device else of_host
    seconds = total[known] / counts[known] / NS_PER_S
    slowest = int(np.flatnonzero(known)[np.argmax(seconds)])
    mean = float(seconds.mean())
    return SectionSpread(
        name=table.names[at],
        ranks=int(known.sum()),
        min_s=float(seconds.min()),
        median_s=float(np.median(seconds)),
        max_s=float(seconds.max()),
        slowest=table.who[slowest],
        imbalance=max(0.0, float(seconds.max()) / mean - 1) if mean else 0.0,
        is_of_step=is_of_step,
        is_device=is_device,
        slowest_total_s=float(total[slowest]) / NS_PER_S,
        never_on=never_on,
    )


def causes(table: SectionTable) -> list[tuple[str, float | None]]:
    """Return for each rank the section whose self time per step, in s, most exceeds the median of the other ranks.

    It is the accelerator's time if that is known of all ranks. ``synchronization`` is never a cause: there the other
    ranks wait.
    """
    working = np.flatnonzero(table.settled_steps > 0)
    longest_on: list[tuple[str, float | None]] = [("", None)] * len(table.who)
    candidates = [at for at, name in enumerate(table.names) if name != SYNCHRONIZATION]
    if len(working) < 2 or not candidates:
        return longest_on
    own_s = np.zeros((len(candidates), len(working)))
    for row, at in enumerate(candidates):
        spans, _, _, by_host, _, _, _, by_device = table.rows[at, working].T
        is_device = bool(((by_device > 0) | (spans <= 0)).all() and by_device.any())
        own_s[row] = (by_device if is_device else by_host) / table.settled_steps[working] / NS_PER_S
    extra_s = own_s - medians_of_others(own_s)
    longest = extra_s.argmax(axis=0)
    for column, rank in enumerate(working.tolist()):
        row = int(longest[column])
        if extra_s[row, column] > 0:
            longest_on[rank] = table.names[candidates[row]], float(extra_s[row, column])
    return longest_on


def medians_of_others(values: Floats) -> Floats:
    """Return for each value the median of the others in its row, shape as given: (rows, 2 or more)."""
    in_order, others = np.sort(values, axis=-1), values.shape[-1] - 1

    def of_others(place: int) -> Floats:  # in ascending order
        at, following = in_order[..., [place]], in_order[..., [place + 1]]
        return np.asarray(np.where(values > at, at, following), np.float64)

    if others % 2:
        return of_others(others // 2)
    return (of_others(others // 2 - 1) + of_others(others // 2)) / 2


LONGER_AT_LEAST: Final = 0.01  # work beyond the median of the others that is worth explaining


def all_ranks_stats(
    summaries: Sequence[RankSummary],
    world_size: int,
    *,
    before: Mapping[int, RankSummary] | None = None,
    age_s: Mapping[int, float] | None = None,
    silent_after_s: float | None = None,
) -> AllRanksStats | None:
    """Return the stats of all ranks; None for a single rank, or without any summary.

    Args:
        summaries: the latest of each rank, in any order.
        world_size: number of ranks.
        before: the summaries at the last report, by rank; stats then cover the steps since. None for the whole run.
        age_s: time since the last sign of each rank; None if the summaries come from files.
        silent_after_s: age beyond which a rank that has not ended is silent.
    """
    of_run = latest(summaries)
    if world_size < 2 or not of_run:
        return None
    before, age_s = before or {}, age_s or {}
    # Sections are compared after the longest warm-up of all ranks; the other ranks' warm-up is part of it.
    warmup = min(
        FIRST_STEPS, max((rank.steps - rank.settled_steps for rank in of_run if rank.settled_steps), default=0)
    )
    stretch = [since(rank, before.get(rank.who.rank)) for rank in of_run]
    table = section_table(stretch)
    has_sync = any(rank.knows_sync and rank.sync_ns for rank in of_run)
    waiting = waiting_parts(stretch, warmup) if has_sync else None
    rows = [_row(rank, has_sync, waiting, age_s.get(rank.who.rank)) for rank in stretch]
    rows = _scored(rows, causes(table), of_run)
    known = {rank.who.rank for rank in of_run}
    late = {rank for rank, s in age_s.items() if silent_after_s is not None and s > silent_after_s}
    shares = _shares(rows)
    searched = [rank.searched for rank in of_run if rank.searched]
    trained = [rank.trained for rank in of_run if rank.trained and rank.trained.places]
    return AllRanksStats(
        world_size=world_size,
        ranks=tuple(rows),
        missing=tuple(rank for rank in range(world_size) if rank not in known),
        unresponsive=tuple(row.who.rank for row in rows if row.who.rank in late and not row.is_final),
        sections=spreads(table, of_run),
        hosts=_hosts(rows),
        step_s=_median(row.step_s for row in rows),
        sync_share=shares[0],
        waiting_share=shares[1],
        transfer_share=shares[2],
        compared_steps=0 if waiting is None else waiting.steps,
        clocks=clock_stats(of_run),
        repeats=repeats_among(trained) if len(trained) == world_size else None,
        searched=UnusedSearch(*map(sum, zip(*searched, strict=True))) if len(searched) == world_size else None,
    )


def _row(summary: RankSummary, has_sync: bool, waiting: RankWaiting | None, age_s: float | None) -> RankStats:
    """Return the stats of one rank by itself; ``summary`` covers the stretch of the stats."""
    step_s = summary.settled_ns / summary.settled_steps / NS_PER_S if summary.settled_steps else None
    sync_s = None
    if step_s is not None and summary.knows_sync and has_sync:
        sync_s = min(step_s, summary.sync_ns / summary.settled_steps / NS_PER_S)
    part = None if waiting is None else waiting.part.get(summary.who.rank)
    return RankStats(
        who=summary.who,
        steps=summary.steps,
        step_s=step_s,
        work_s=None if step_s is None or sync_s is None else step_s - sync_s,
        sync_s=sync_s,
        waiting_s=None if part is None or sync_s is None else part * sync_s,
        input_elements=summary.input_elements or None,
        last_message_s_ago=age_s,
        is_final=summary.is_final,
        ended_by=summary.ended_by,
        inside=tuple(summary.inside),
    )


def _scored(
    rows: Sequence[RankStats], causes_of: Sequence[tuple[str, float | None]], summaries: Sequence[RankSummary]
) -> list[RankStats]:
    """Return the rows with work relative to the best rank, to the other ranks, and to the rank's earlier work."""
    known = [at for at, row in enumerate(rows) if row.work_s]
    scored = list(rows)
    if len(known) < 2:
        return scored
    work_s = np.array([rows[at].work_s for at in known], np.float64)
    beyond = work_s / medians_of_others(work_s[None, :])[0] - 1
    for of_known, at in enumerate(known):
        work_over_best = float(work_s[of_known] / work_s.min())
        if beyond[of_known] <= LONGER_AT_LEAST:  # with a thousand ranks, the rest takes too long
            scored[at] = replace(rows[at], work_over_best=work_over_best)
            continue
        summary = summaries[at]
        work_over_earlier, since_step = history_of(summary.step_times, summary.steps - summary.settled_steps)
        cause, cause_s = causes_of[at]
        scored[at] = replace(
            rows[at],
            work_over_best=work_over_best,
            work_over_earlier=work_over_earlier,
            slower_since_step=since_step,
            cause=cause,
            cause_s=cause_s,
            place=summary.hottest_lines.get(cause, ""),
        )
    return scored


def _shares(rows: Iterable[RankStats]) -> tuple[float | None, float | None, float | None]:
    """Return the shares of step time for synchronization, waiting and transfer: means over ranks."""
    sync = [(row.sync_s / row.step_s, row.waiting_s) for row in rows if row.sync_s is not None and row.step_s]
    if not sync:
        return None, None, None
    compared = [
        (row.sync_s / row.step_s, row.waiting_s / row.step_s)
        for row in rows
        if row.sync_s is not None and row.waiting_s is not None and row.step_s
    ]
    share = float(np.mean([sync_share for sync_share, _ in sync]))
    compared_share = float(np.mean([sync_share for sync_share, _ in compared])) if compared else 0.0
    if not compared_share:
        return share, None, None
    # Ranks that were not compared are assumed to wait like the others, so that the two shares add up.
    waiting_share = min(share, share * float(np.mean([waiting for _, waiting in compared])) / compared_share)
    return share, waiting_share, share - waiting_share


def _hosts(rows: Sequence[RankStats]) -> tuple[HostStats, ...]:
    by_host: dict[HostKey, list[RankStats]] = {}
    for row in rows:
        by_host.setdefault((row.who.host, row.who.node), []).append(row)
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
    return tuple(replace(host, work_over_best=host.work_s / least_s if host.work_s else None) for host in hosts)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
