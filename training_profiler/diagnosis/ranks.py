"""Rules about the ranks of a training: who is not heard of, what is exchange and what waiting."""

from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.shares import StepShare
from training_profiler.diagnosis.stragglers import host_slow, straggler
from training_profiler.findings.finding import Evidence, Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.ranks import RankStats
from training_profiler.snapshot.snapshot import Snapshot

MOST_NAMED: Final = 4
EXPLAINED: Final = 0.5  # of the waiting, from which on one cause is told as what the others wait for


@RULES.rule("rank-silent", threshold=0.0, saving=Saving.UNKNOWN)  # share of ranks
def rank_silent(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name ranks that fell silent before their end, or were never heard of."""
    ranks = snapshot.ranks
    if ranks is None or (len(ranks.silent) + len(ranks.missing)) / ranks.world_size <= threshold:
        return None
    silent = sorted((one for one in ranks.ranks if one.who.rank in set(ranks.silent)), key=_steps)
    told = [_last_of(one) for one in silent[:MOST_NAMED]]
    if len(silent) > MOST_NAMED:
        told.append(f"{len(silent) - MOST_NAMED} more")
    if ranks.missing:
        numbers = ", ".join(map(str, ranks.missing[:MOST_NAMED]))
        more = ", ..." if len(ranks.missing) > MOST_NAMED else ""
        told.append(f"never heard of {len(ranks.missing)} ({numbers}{more})")
    evidence: dict[str, float | int | str] = {"silent": len(ranks.silent), "missing": len(ranks.missing)}
    if silent:
        evidence |= {"rank": silent[0].who.rank, "host": silent[0].who.host, "last_step": silent[0].steps}
        evidence |= {"inside": " > ".join(silent[0].inside)}
    return Finding(
        code="rank-silent",
        message=f"{len(ranks.silent) + len(ranks.missing)} of {ranks.world_size} ranks are not heard of: "
        + "; ".join(told),
        evidence=evidence,
        potential_saving_s=0.0,
        fix="look at that rank's own output and exit status (torchrun prints the first failure), for the "
        "kernel's out-of-memory killer in dmesg, and if it still runs, at where it hangs: py-spy dump --pid; a rank "
        "without a profiler or a run folder of its own is not heard of either",
    )


@RULES.rule("uneven-work", threshold=0.10)  # of step time, spent waiting
def uneven_work(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag ranks that wait for each other for over 10 % of step time though none of them is slower on average."""
    ranks, step = snapshot.ranks, snapshot.step
    if ranks is None or ranks.waiting_share is None or step is None or not has_enough_steps(snapshot):
        return None
    potential_saving_s = ranks.waiting_share * step.settled_s
    if ranks.waiting_share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    if any(rule(snapshot, snapshot.thresholds) for rule in (straggler, host_slow)):
        return None
    message = f"ranks wait for each other for {ranks.waiting_share:.1%} of step time, and none is slower on average"
    evidence: dict[str, float | int | str] = {
        "waiting_share": ranks.waiting_share,
        "threshold": threshold,
        "compared_steps": ranks.compared_steps,
    }
    alone = [one for one in ranks.sections if not one.is_of_step and one.never_on]
    most = max(alone, key=lambda one: one.slowest_total_s, default=None)
    if most is not None and most.slowest_total_s >= EXPLAINED * potential_saving_s:
        message += f": meanwhile {most.slowest} alone is in {most.name} ({most.slowest_total_s:.2f}s in all)"
        evidence |= {"cause": most.name, "rank": most.slowest.rank, "seconds": most.slowest_total_s}
        fix = f"{most.name} less often, asynchronously, or shared among ranks"
    else:
        fix = (
            "now one rank is late and now another: batches of uneven length (bucket them by length, the same on all "
            "ranks), data loading that stalls, garbage collection (gc.freeze), other work on the machines"
        )
    return Finding(
        code="uneven-work", message=message, evidence=evidence, potential_saving_s=potential_saving_s, fix=fix
    )


@RULES.rule("synchronization-heavy", threshold=0.10)
def synchronization_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps of which exchange and waiting for other ranks are over 10 %: the mean over ranks where it is known.

    What a rule about slow or uneven ranks claims already, this one does not claim once more.
    """
    ranks, step = snapshot.ranks, snapshot.step
    fix = "fewer and larger exchanges, asynchronous where something can be computed meanwhile, a faster network"
    if snapshot.exchange is not None:
        fix = "larger DDP buckets (bucket_cap_mb), gradient accumulation under no_sync(), a faster network"
    if ranks is None or ranks.sync_share is None or step is None or not has_enough_steps(snapshot):
        return StepShare(
            "synchronization-heavy",
            "synchronization",
            threshold,
            "waiting for other ranks",
            f"look for the slowest rank first; then {fix}",
        ).find(snapshot, threshold)
    total_s = ranks.sync_share * step.settled_s
    if ranks.sync_share <= threshold or total_s < MIN_SAVING_S:
        return None
    message = f"{ranks.sync_share:.1%} of step time is synchronization, mean over ranks"
    evidence: dict[str, float | int | str] = {
        "share_of_step": ranks.sync_share,
        "threshold": threshold,
        "steps": step.settled_count,
    }
    if ranks.waiting_share is not None and ranks.transfer_share is not None:
        message += f": {ranks.waiting_share:.1%} waiting for slower ranks, {ranks.transfer_share:.1%} exchange as such"
        evidence |= {"waiting_share": ranks.waiting_share, "transfer_share": ranks.transfer_share}
    rules = (straggler, host_slow, uneven_work)
    others = [finding for rule in rules if (finding := rule(snapshot, snapshot.thresholds)) is not None]
    claimed_s = sum(other.potential_saving_s for other in others)
    first = next((name for name in (_named(other) for other in others) if name), "")
    waiting_s = (ranks.sync_share if ranks.waiting_share is None else ranks.waiting_share) * step.settled_s
    if first and claimed_s >= EXPLAINED * waiting_s:
        message += f"; most of the waiting is for {first}"
        fix = f"{first} first; then {fix}"
    return Finding(
        code="synchronization-heavy",
        message=message,
        evidence=evidence,
        potential_saving_s=max(0.0, total_s - claimed_s),
        fix=fix,
    )


def _named(found: Finding) -> str:
    evidence: Evidence = found.evidence
    if found.code == "host-slow":
        return f"host {evidence['host']}"
    if "rank" not in evidence:
        return ""
    return f"rank {evidence['rank']} ({evidence['cause']})" if "cause" in evidence else f"rank {evidence['rank']}"


def _last_of(one: RankStats) -> str:
    seconds = "" if one.heard_s_ago is None else f" for {one.heard_s_ago:.0f}s"
    inside = f" inside {' > '.join(one.inside)}" if one.inside else ""
    return f"{one.who}{seconds}, last after {one.steps} steps{inside}"


def _steps(one: RankStats) -> tuple[int, int]:
    return one.steps, one.who.rank
