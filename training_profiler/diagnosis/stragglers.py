"""Rules about a rank, or a host, that all others wait for."""

from typing import Final, NamedTuple

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, STEPS_NEEDED, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.recording.section_names import name_of
from training_profiler.snapshot.ranks import RankStats
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.tables.sections import DATA_TRANSFER, DEVICE_SECTIONS, INPUT_SECTIONS

GAIN: Final = 0.5  # of the threshold: a rank or host that makes steps less than that much longer is ignored
NEARLY: Final = 0.5  # of the slowest rank's excess over the median; ranks with more excess are nearly as slow
UNATTRIBUTED: Final = "no section"
WAITED_FOR: Final = 0.5  # of the same excess; the others must wait at least that much longer


class Slow(NamedTuple):
    """A rank, or the ranks of a host, with more work than others."""

    name: str
    work_s: float  # per step
    others_s: float  # the median of the others
    saved_s: float  # per step, if it were like the next slowest


@RULES.rule("straggler", threshold=0.10)  # of work, beyond the median of the other ranks
def straggler(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name the rank with the most work per step if it exceeds the others' median by 10 %; None below 10 steps."""
    slow_ranks = _slowest_rank(snapshot, threshold)
    if slow_ranks is None or snapshot.step is None:
        return None
    slowest, several, slow = slow_ranks
    potential_saving_s = slow.saved_s * snapshot.step.settled_count
    if potential_saving_s < max(MIN_SAVING_S, GAIN * threshold * snapshot.step.settled_s):
        return None
    excess = slow.work_s / slow.others_s - 1
    evidence: dict[str, float | int | str] = {
        "rank": slowest.who.rank,
        "host": slowest.who.host,
        "work_s": slow.work_s,
        "median_of_others_s": slow.others_s,
        "excess": excess,
        "threshold": threshold,
        "slow_ranks": several,
    }
    cause = ""
    if slowest.cause and slowest.cause_s is not None:
        place = f", {slowest.place}" if slowest.place else ""
        where = UNATTRIBUTED if slowest.cause == OTHER else name_of(slowest.cause)
        cause = f"; {ms_text(slowest.cause_s)} of that in {where}{place}"
        evidence |= {"cause": slowest.cause, "cause_s": slowest.cause_s, "place": slowest.place}
    if slowest.slower_since_step is not None:
        cause += f"; slower since step {slowest.slower_since_step}"
        evidence |= {"slower_since_step": slowest.slower_since_step}
    also = "" if several == 1 else f"; {several - 1} more {'is' if several == 2 else 'are'} nearly as slow"
    return Finding(
        code="straggler",
        message=f"All ranks wait for {slow.name}: it works {ms_text(slow.work_s)} per step, the median of the "
        f"others is {ms_text(slow.others_s)} (+{excess:.0%}){also}{cause}",
        evidence=evidence,
        potential_saving_s=potential_saving_s,
        fix=_fix(slowest),
    )


@RULES.rule("host-slow", threshold=0.10)  # of work, beyond the median of the ranks on other hosts
def host_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name the host whose ranks all work 10 % longer than the median elsewhere; None if it has a single rank."""
    slow = _slowest_host(snapshot, threshold)
    if slow is None or snapshot.step is None:
        return None
    potential_saving_s = slow.saved_s * snapshot.step.settled_count
    if potential_saving_s < max(MIN_SAVING_S, GAIN * threshold * snapshot.step.settled_s):
        return None
    excess = slow.work_s / slow.others_s - 1
    return Finding(
        code="host-slow",
        message=f"All ranks of host {slow.name} are slow: {ms_text(slow.work_s)} of work per step, against "
        f"{ms_text(slow.others_s)} elsewhere (+{excess:.0%})",
        evidence={
            "host": slow.name,
            "work_s": slow.work_s,
            "median_of_others_s": slow.others_s,
            "excess": excess,
            "threshold": threshold,
        },
        potential_saving_s=potential_saving_s,
        fix="Check that host: clocks and temperature, other jobs on it, fewer CPU cores or slower memory than "
        "elsewhere, its disk or network for the data; run without it and compare",
    )


def _slowest_rank(snapshot: Snapshot, threshold: float) -> tuple[RankStats, int, Slow] | None:
    """Return the straggler, how many ranks are slow, and how slow it is; None if its whole host is slow instead."""
    ranks = _working(snapshot)
    if ranks is None:
        return None
    slowest, *others = sorted(ranks, key=lambda rank: -_work_s(rank))
    others_s = _median([_work_s(rank) for rank in others])
    if not others_s or _work_s(slowest) <= others_s * (1 + threshold):
        return None
    if not _is_waited_for(slowest, others, _work_s(slowest) - others_s):
        return None
    host = host_slow(snapshot, snapshot.thresholds)
    neighbours = [_work_s(rank) for rank in others if _host_of(rank) == _host_of(slowest)]
    if host is not None and neighbours and _work_s(slowest) <= _median(neighbours) * (1 + threshold):
        return None
    # Several slow ranks share one saving. On a slow host, a rank's saving is its excess over its neighbours.
    nearly_s = _work_s(slowest) - NEARLY * (_work_s(slowest) - max([others_s, *(neighbours if host else [])]))
    like_it = [rank for rank in others if _work_s(rank) > nearly_s]
    next_s = max(_work_s(rank) for rank in others if _work_s(rank) <= nearly_s)
    return slowest, 1 + len(like_it), Slow(str(slowest.who), _work_s(slowest), others_s, _work_s(slowest) - next_s)


def _is_waited_for(slowest: RankStats, others: list[RankStats], extra_s: float) -> bool:
    """Return whether the others wait about as much longer as the slowest works longer; True if that is unknown.

    Work comes from totals with partly estimated synchronization, waiting from single steps. If the two contradict
    each other, there is no finding.
    """
    waiting_s = [rank.waiting_s for rank in others if rank.waiting_s is not None]
    if slowest.waiting_s is None or not waiting_s:
        return True
    return _median(waiting_s) - slowest.waiting_s >= WAITED_FOR * extra_s


def _slowest_host(snapshot: Snapshot, threshold: float) -> Slow | None:
    """Return the host whose ranks work longest, if each of them is slow."""
    ranks = _working(snapshot)
    if ranks is None or snapshot.ranks is None:
        return None
    by_rank = {rank.who.rank: _work_s(rank) for rank in ranks}
    known = [(host.host, [by_rank[rank] for rank in host.ranks if rank in by_rank]) for host in snapshot.ranks.hosts]
    hosts = [(name, works_s) for name, works_s in known if works_s]
    if len(hosts) < 2:
        return None
    name, works_s = max(hosts, key=lambda host: _median(host[1]))
    elsewhere = [work_s for host, host_works_s in hosts if host != name for work_s in host_works_s]
    others_s = _median(elsewhere)
    if len(works_s) < 2 or min(works_s) <= others_s * (1 + threshold):
        return None
    return Slow(name, _median(works_s), others_s, max(0.0, _median(works_s) - max(elsewhere)))


def _working(snapshot: Snapshot) -> list[RankStats] | None:
    """Return the ranks whose work is known; None if there are fewer than two, or too few steps."""
    if snapshot.ranks is None or not has_enough_steps(snapshot):
        return None
    ranks = [rank for rank in snapshot.ranks.ranks if rank.work_s is not None and rank.steps >= STEPS_NEEDED]
    return ranks if len(ranks) > 1 else None


def _fix(slowest: RankStats) -> str:
    cause = slowest.cause
    if cause in INPUT_SECTIONS:
        return (
            "Check its input: DataLoader workers, the disk or network it reads from, other work on its CPU cores, or a "
            "shard whose samples cost more"
        )
    if cause == DATA_TRANSFER:
        return "Check its transfers to the device: pinned memory, the PCIe slot, other transfers at the same time"
    if cause in DEVICE_SECTIONS:
        line = f"what only this rank does at {slowest.place}; " if slowest.place else ""
        return (
            f"Check {line}its device: clocks, temperature and other jobs on it; and whether its batches are longer "
            "than those of other ranks (bucket them by length)"
        )
    if slowest.place:
        return f"Check what it does at {slowest.place} that other ranks do not, or do for less time"
    where = "outside all sections" if cause in ("", OTHER) else f"in {name_of(cause)}"
    return f"Check what it does {where} that other ranks do not, and other work on its CPU cores"


def _work_s(rank: RankStats) -> float:
    return rank.work_s or 0.0


def _host_of(rank: RankStats) -> tuple[str, int | None]:
    return rank.who.host, rank.who.node


def _median(values: list[float]) -> float:
    """Return the median; 0 for no values. Written here because ``statistics`` is slow to import."""
    in_order = sorted(values)
    half = len(in_order) // 2
    if not in_order:
        return 0.0
    return in_order[half] if len(in_order) % 2 else (in_order[half - 1] + in_order[half]) / 2
