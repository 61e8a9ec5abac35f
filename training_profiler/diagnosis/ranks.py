"""Rules about the ranks of a training: which rank stopped reporting, how long ranks wait for each other."""

from typing import Final

from training_profiler.base.units import duration_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.diagnosis.shares import StepShare
from training_profiler.diagnosis.stragglers import host_slow, straggler
from training_profiler.findings.finding import Evidence, Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.ranks import RankStats
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import SYNCHRONIZATION

MOST_NAMED: Final = 4
BUCKET_BYTES: Final = 25 * 2**20  # DDP's default
BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
EXPLAINED: Final = 0.5  # of the waiting; a cause that explains more is named


@RULES.rule("rank-silent", threshold=0.0, saving=Saving.UNKNOWN)  # share of ranks
def rank_silent(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name ranks that stopped reporting before their end, or never reported."""
    ranks = snapshot.ranks
    if ranks is None or (len(ranks.silent) + len(ranks.missing)) / ranks.world_size <= threshold:
        return None
    silent = sorted((rank for rank in ranks.ranks if rank.who.rank in set(ranks.silent)), key=_steps)
    lost = [_last_update(rank) for rank in silent[:MOST_NAMED]]
    if len(silent) > MOST_NAMED:
        lost.append(f"{len(silent) - MOST_NAMED} more")
    if ranks.missing:
        numbers = ", ".join(map(str, ranks.missing[:MOST_NAMED]))
        more = ", ..." if len(ranks.missing) > MOST_NAMED else ""
        lost.append(f"{len(ranks.missing)} never reported ({numbers}{more})")
    evidence: dict[str, float | int | str] = {"silent": len(ranks.silent), "missing": len(ranks.missing)}
    if silent:
        evidence |= {"rank": silent[0].who.rank, "host": silent[0].who.host, "last_step": silent[0].steps}
        evidence |= {"inside": " > ".join(silent[0].inside)}
    return Finding(
        code="rank-silent",
        message=f"{len(ranks.silent) + len(ranks.missing)} of {ranks.world_size} ranks do not report: "
        + "; ".join(lost),
        evidence=evidence,
        potential_saving_s=0.0,
        fix="Check the rank's own output and exit status (torchrun prints the first failure), and dmesg for the "
        "kernel's out-of-memory killer; if the rank still runs, find where it hangs: py-spy dump --pid PID; a rank "
        "without the profiler, or with another run folder, does not report either",
    )


@RULES.rule("uneven-work", threshold=0.10)  # of step time
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
    message = f"Ranks wait for each other for {ranks.waiting_share:.1%} of step time, but none is slower on average"
    evidence: dict[str, float | int | str] = {
        "waiting_share": ranks.waiting_share,
        "threshold": threshold,
        "compared_steps": ranks.compared_steps,
    }
    on_some_ranks = [section for section in ranks.sections if not section.is_of_step and section.never_on]
    longest = max(on_some_ranks, key=lambda section: section.slowest_total_s, default=None)
    if longest is not None and longest.slowest_total_s >= EXPLAINED * potential_saving_s:
        message += f": only {longest.slowest} spends time in {longest.name} ({duration_text(longest.slowest_total_s)})"
        evidence |= {"cause": longest.name, "rank": longest.slowest.rank, "seconds": longest.slowest_total_s}
        fix = f"Run {longest.name} less often, asynchronously, or share it among ranks"
    else:
        fix = (
            "A different rank is late each time: check for batches of uneven length (bucket them by length, the same "
            "on all ranks), data loading that stalls, garbage collection (gc.freeze) and other work on the machines"
        )
    return Finding(
        code="uneven-work", message=message, evidence=evidence, potential_saving_s=potential_saving_s, fix=fix
    )


@RULES.rule("synchronization-heavy", threshold=0.10)
def synchronization_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps with over 10 % synchronization: of this rank, or the mean over ranks if that is known.

    The saving excludes what the rules about slow or uneven ranks already claim.
    """
    ranks, step = snapshot.ranks, snapshot.step
    fix = "use fewer and larger collectives, overlap them with computation, or use a faster network"
    if snapshot.exchange is not None:
        larger = "larger DDP buckets (bucket_cap_mb), " if _has_many_buckets(snapshot) else ""
        fix = f"use {larger}gradient accumulation under no_sync(), or a faster network"
    if ranks is None or ranks.sync_share is None or step is None or not has_enough_steps(snapshot):
        return StepShare(
            "synchronization-heavy",
            SYNCHRONIZATION,
            threshold,
            "waiting for other ranks",
            f"Look for the slowest rank first; then {fix}",
        ).find(snapshot, threshold)
    total_s = ranks.sync_share * step.settled_s
    if ranks.sync_share <= threshold or total_s < MIN_SAVING_S:
        return None
    message = f"{ranks.sync_share:.1%} of step time is synchronization (mean over ranks)"
    evidence: dict[str, float | int | str] = {
        "share_of_step": ranks.sync_share,
        "threshold": threshold,
        "steps": step.settled_count,
    }
    if ranks.waiting_share is not None and ranks.transfer_share is not None:
        message += f": {ranks.waiting_share:.1%} waiting for slower ranks, {ranks.transfer_share:.1%} transfer"
        evidence |= {"waiting_share": ranks.waiting_share, "transfer_share": ranks.transfer_share}
    rules = (straggler, host_slow, uneven_work)
    claims = [finding for rule in rules if (finding := rule(snapshot, snapshot.thresholds)) is not None]
    claimed_s = sum(claim.potential_saving_s for claim in claims)
    first = next((name for name in (_culprit(claim) for claim in claims) if name), "")
    waiting_s = (ranks.sync_share if ranks.waiting_share is None else ranks.waiting_share) * step.settled_s
    if first and claimed_s >= EXPLAINED * waiting_s:
        message += f"; most of the waiting is for {first}"
        evidence["waits_for"] = first
        fix = f"Fix {first} first; then {fix}"
    else:
        fix = fix[0].upper() + fix[1:]
    return Finding(
        code="synchronization-heavy",
        message=message,
        evidence=evidence,
        potential_saving_s=max(0.0, total_s - claimed_s),
        fix=fix,
    )


def _has_many_buckets(snapshot: Snapshot) -> bool:
    """Return whether the gradients fill more of DDP's buckets than the first, which is small, and another one."""
    optimizer = snapshot.program.optimizer
    if optimizer is None:
        return False
    each = max((BYTES.get(dtype, 0) for dtype in optimizer.dtypes), default=0)
    return optimizer.numbers * each > 2 * BUCKET_BYTES


def _culprit(finding: Finding) -> str:
    """Return the rank or host that a finding is about; "" if it names none."""
    evidence: Evidence = finding.evidence
    if finding.code == "host-slow":
        return f"host {evidence['host']}"
    if "rank" not in evidence:
        return ""
    return f"rank {evidence['rank']} ({evidence['cause']})" if "cause" in evidence else f"rank {evidence['rank']}"


def _last_update(rank: RankStats) -> str:
    age = "" if rank.heard_s_ago is None else f" {rank.heard_s_ago:.0f} s ago,"
    inside = f" inside {' > '.join(rank.inside)}" if rank.inside else ""
    return f"{rank.who}, last update{age} after {rank.steps} steps{inside}"


def _steps(rank: RankStats) -> tuple[int, int]:
    return rank.steps, rank.who.rank
