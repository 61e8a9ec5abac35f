"""What ranks measured between two tellings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from training_profiler.statistics.rank_sums import RankSection, RankSums


def latest(told: Sequence[RankSums]) -> list[RankSums]:
    """Return what each rank told last, by its number."""
    by_rank: dict[int, RankSums] = {}
    for one in told:
        known = by_rank.get(one.who.rank)
        if known is None or _age(known) <= _age(one):
            by_rank[one.who.rank] = one
    return [by_rank[rank] for rank in sorted(by_rank)]


def _age(told: RankSums) -> tuple[int, int, bool]:
    return told.who.attempt, told.number, told.is_final


def since(now: RankSums, before: RankSums | None) -> RankSums:
    """Return ``now`` with the sums of what followed ``before``; its paces stay those of the whole run.

    Warm-up may have become longer in between, so that a sum is less than it was: it counts as nothing then.
    """
    if before is None or before.who.attempt != now.who.attempt or before.number > now.number:
        return now
    return replace(
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
