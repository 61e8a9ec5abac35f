"""Rules about a rank, or a machine, that all others wait for."""

from typing import Final, NamedTuple

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, STEPS_NEEDED, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.ranks import RankStats
from training_profiler.snapshot.snapshot import OTHER, Snapshot
from training_profiler.units import seconds_text

GAIN: Final = 0.5  # of the threshold: a rank or host that makes steps longer by less of their time is left alone
NEARLY: Final = 0.5  # of what the slowest rank has beyond the median: ranks that have more are as slow
WAITED_FOR: Final = 0.5  # of that, by which the others wait longer at least
ON_DEVICE: Final = ("forward_pass", "backward_pass", "optimizer_step", "gradient_clipping", "ema_update")
ON_INPUT: Final = ("data_loading", "data_generation", "first_fetch", "worker_start")


class Slow(NamedTuple):
    """A rank, or the ranks of a machine, with more work than others."""

    name: str
    work_s: float  # a step
    others_s: float  # the median of the others
    saved_s: float  # by which a step would be shorter, were it like the next slowest


@RULES.rule("straggler", threshold=0.10)  # of work, beyond the median of the other ranks
def straggler(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name the rank with the most work a step, if that is 10 % beyond the other ranks' median; None below 10 steps."""
    found = _slowest_rank(snapshot, threshold)
    if found is None or snapshot.step is None:
        return None
    slowest, several, slow = found
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
        cause = f"; {seconds_text(slowest.cause_s)} of that in {slowest.cause}{place}"
        evidence |= {"cause": slowest.cause, "cause_s": slowest.cause_s, "place": slowest.place}
    if slowest.slower_since_step is not None:
        cause += f"; slower since step {slowest.slower_since_step}"
        evidence |= {"slower_since_step": slowest.slower_since_step}
    alone = "" if several == 1 else f"; {several - 1} more {'is' if several == 2 else 'are'} nearly as slow"
    return Finding(
        code="straggler",
        message=f"all ranks wait for {slow.name}: it works {seconds_text(slow.work_s)} a step, the median of the "
        f"others {seconds_text(slow.others_s)} (+{excess:.0%}){alone}{cause}",
        evidence=evidence,
        potential_saving_s=potential_saving_s,
        fix=_remedy(slowest),
    )


@RULES.rule("host-slow", threshold=0.10)  # of work, beyond the median of the ranks on other hosts
def host_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name the machine of which all ranks work 10 % longer than the median elsewhere; None of a single rank on it."""
    slow = _slowest_host(snapshot, threshold)
    if slow is None or snapshot.step is None:
        return None
    potential_saving_s = slow.saved_s * snapshot.step.settled_count
    if potential_saving_s < max(MIN_SAVING_S, GAIN * threshold * snapshot.step.settled_s):
        return None
    excess = slow.work_s / slow.others_s - 1
    return Finding(
        code="host-slow",
        message=f"all ranks of host {slow.name} are slow: {seconds_text(slow.work_s)} of work a step against "
        f"{seconds_text(slow.others_s)} elsewhere (+{excess:.0%})",
        evidence={
            "host": slow.name,
            "work_s": slow.work_s,
            "median_of_others_s": slow.others_s,
            "excess": excess,
            "threshold": threshold,
        },
        potential_saving_s=potential_saving_s,
        fix="something of that machine: its clocks and temperature, other jobs on it, fewer CPU cores or slower "
        "memory than elsewhere, its disk or network for the data; leave it out and compare",
    )


def _slowest_rank(snapshot: Snapshot, threshold: float) -> tuple[RankStats, int, Slow] | None:
    """Return the straggler, how many ranks are slow, and its figures; None where its whole machine is slow instead."""
    ranks = _working(snapshot)
    if ranks is None:
        return None
    slowest, *others = sorted(ranks, key=lambda one: -_work_s(one))
    others_s = _median([_work_s(one) for one in others])
    if not others_s or _work_s(slowest) <= others_s * (1 + threshold):
        return None
    if not _is_waited_for(slowest, others, _work_s(slowest) - others_s):
        return None
    host = host_slow(snapshot, snapshot.thresholds)
    neighbours = [_work_s(one) for one in others if _host_of(one) == _host_of(slowest)]
    if host is not None and neighbours and _work_s(slowest) <= _median(neighbours) * (1 + threshold):
        return None
    # Several slow ranks are worth it together. Of one on a slow machine, it is what it has beyond its neighbours.
    nearly_s = _work_s(slowest) - NEARLY * (_work_s(slowest) - max([others_s, *(neighbours if host else [])]))
    like_it = [one for one in others if _work_s(one) > nearly_s]
    next_s = max(_work_s(one) for one in others if _work_s(one) <= nearly_s)
    return slowest, 1 + len(like_it), Slow(str(slowest.who), _work_s(slowest), others_s, _work_s(slowest) - next_s)


def _is_waited_for(slowest: RankStats, others: list[RankStats], extra_s: float) -> bool:
    """Return whether the others wait longer than the slowest by what it works longer, as far as that is known.

    Work is from sums in which some exchange may be estimated, and waiting from single steps: where they contradict each
    other, nothing is said.
    """
    waiting_s = [one.waiting_s for one in others if one.waiting_s is not None]
    if slowest.waiting_s is None or not waiting_s:
        return True
    return _median(waiting_s) - slowest.waiting_s >= WAITED_FOR * extra_s


def _slowest_host(snapshot: Snapshot, threshold: float) -> Slow | None:
    """Return the machine whose ranks work longest, if each of them is slow; the slowest of all ranks is on it."""
    ranks = _working(snapshot)
    if ranks is None or snapshot.ranks is None:
        return None
    by_rank = {one.who.rank: _work_s(one) for one in ranks}
    known = [(host.host, [by_rank[rank] for rank in host.ranks if rank in by_rank]) for host in snapshot.ranks.hosts]
    hosts = [(name, works_s) for name, works_s in known if works_s]
    if len(hosts) < 2:
        return None
    name, works_s = max(hosts, key=lambda host: _median(host[1]))
    elsewhere = [work_s for other, its_s in hosts if other != name for work_s in its_s]
    others_s = _median(elsewhere)
    if len(works_s) < 2 or min(works_s) <= others_s * (1 + threshold):
        return None
    return Slow(name, _median(works_s), others_s, max(0.0, _median(works_s) - max(elsewhere)))


def _working(snapshot: Snapshot) -> list[RankStats] | None:
    """Return the ranks whose work is known; None where that are too few, or too few steps."""
    if snapshot.ranks is None or not has_enough_steps(snapshot):
        return None
    ranks = [one for one in snapshot.ranks.ranks if one.work_s is not None and one.steps >= STEPS_NEEDED]
    return ranks if len(ranks) > 1 else None


def _remedy(slowest: RankStats) -> str:
    cause = slowest.cause
    if cause in ON_INPUT:
        return (
            "its data: its DataLoader's workers, the disk or network it reads from, other work on its CPU cores; or a "
            "shard whose samples cost more"
        )
    if cause == "data_transfer":
        return "its way to the device: pinned memory, the PCIe slot, other transfers at the same time"
    if cause in ON_DEVICE:
        line = f"what it does at {slowest.place}, if the others do not; " if slowest.place else ""
        return (
            f"{line}its device: clocks, temperature and other jobs on it; else batches that are longer than those of "
            "other ranks (bucket them by length)"
        )
    if slowest.place:
        return f"what it does at {slowest.place} and the others do not, or for less long"
    where = "outside of any section" if cause in ("", OTHER) else f"in {cause}"
    return f"what it does {where} and the others do not; other work on its CPU cores"


def _work_s(one: RankStats) -> float:
    return one.work_s or 0.0


def _host_of(one: RankStats) -> tuple[str, int | None]:
    return one.who.host, one.who.node


def _median(values: list[float]) -> float:
    """Return the median; 0 of nothing. A diagnosis needs no more than the language has."""
    in_order = sorted(values)
    half = len(in_order) // 2
    if not in_order:
        return 0.0
    return in_order[half] if len(in_order) % 2 else (in_order[half - 1] + in_order[half]) / 2
