"""The time of each section on each rank: the spread over ranks, and the section that makes a rank slow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.summary import RankSection, RankSummary
from training_profiler.snapshot.ranks import RankId, SectionSpread
from training_profiler.statistics.arrays import Floats, Ints
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS, SYNCHRONIZATION

MOST_SECTIONS: Final = 60  # those with most time over all ranks, because each rank may have names of its own
NO_SECTION: Final = RankSection()
# Ranks wait for each other inside these (DDP, FSDP), so the waiting rank would be the slowest.
PASSES: Final = (FORWARD_PASS, BACKWARD_PASS)


@dataclass(frozen=True, slots=True)
class SectionTable:
    """The sections of all ranks: ``rows[section, rank, field of RankSection]``, zeros if a rank has none."""

    names: list[str]
    rows: Ints
    who: list[RankId]
    settled_steps: Ints

    def column(self, field: str) -> Ints:
        """Return one field, shape (sections, ranks)."""
        return np.asarray(self.rows[:, :, RankSection._fields.index(field)], np.int64)


class Cause(NamedTuple):
    """The section with the most time beyond the median of the other ranks."""

    section: str
    extra_s: float  # per step


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
    found: list[SectionSpread] = []
    for at, name in enumerate(table.names):
        never_on = tuple(rank.who.rank for rank in of_run if not _is_entered(rank.sections.get(name, NO_SECTION)))
        spread = _spread(table, at, never_on)
        if spread is not None:
            found.append(spread)
    return tuple(sorted(found, key=lambda spread: (not spread.is_of_step, -spread.max_s, spread.name)))


def _is_entered(row: RankSection) -> bool:
    return row.spans > 0 or row.own_step_ns > 0


def _spread(table: SectionTable, at: int, never_on: tuple[int, ...]) -> SectionSpread | None:
    rows = table.rows[at]
    spans, total_ns, step_ns, own_ns, device_count, device_ns, device_step_ns, device_own_ns = rows.T
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
    of_device = device_step_ns if is_of_step else device_ns
    of_host = step_ns if is_of_step else total_ns
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


def causes(table: SectionTable) -> list[Cause | None]:
    """Return for each rank the section whose self time per step most exceeds the median of the other ranks.

    It is the accelerator's time if that is known of all ranks. ``synchronization`` is never a cause: there the other
    ranks wait.
    """
    working = np.flatnonzero(table.settled_steps > 0)
    longest_on: list[Cause | None] = [None] * len(table.who)
    candidates = [at for at, name in enumerate(table.names) if name != SYNCHRONIZATION]
    if len(working) < 2 or not candidates:
        return longest_on
    by_host, by_device = table.column("own_step_ns"), table.column("device_own_ns")
    has_spans = table.column("spans") > 0
    own_s = np.zeros((len(candidates), len(working)))
    for row, at in enumerate(candidates):
        is_device = (by_device[at, working] > 0) | ~has_spans[at, working]
        by = by_device if is_device.all() and by_device[at, working].any() else by_host
        own_s[row] = by[at, working] / table.settled_steps[working] / NS_PER_S
    extra_s = own_s - medians_of_others(own_s)
    longest = extra_s.argmax(axis=0)
    for column, rank in enumerate(working.tolist()):
        row = int(longest[column])
        if extra_s[row, column] > 0:
            longest_on[rank] = Cause(table.names[candidates[row]], float(extra_s[row, column]))
    return longest_on


def medians_of_others(values: Floats) -> Floats:
    """Return for each value the median of the others in its row, shape as given: (rows, 2 or more)."""
    count = values.shape[-1]
    order = np.argsort(values, axis=-1, kind="stable")
    in_order = np.take_along_axis(values, order, axis=-1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.broadcast_to(np.arange(count), order.shape), axis=-1)

    def of_others(place: int) -> Floats:
        """Return the value at ``place`` among the others in ascending order."""
        return np.asarray(np.where(places > place, in_order[..., [place]], in_order[..., [place + 1]]), np.float64)

    others = count - 1
    if others % 2:
        return of_others(others // 2)
    return (of_others(others // 2 - 1) + of_others(others // 2)) / 2
