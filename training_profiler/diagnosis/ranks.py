"""Rules about the ranks of a training: silent, slow, and waiting for each other."""

from statistics import mean, median
from typing import Final, NamedTuple

from training_profiler.base.sections import (
    BACKWARD_PASS,
    DEVICE_SECTIONS,
    FORWARD_PASS,
    OPTIMIZER_STEP,
    SYNCHRONIZATION,
    name_of,
)
from training_profiler.base.units import BYTES_PER_MIB, duration_text, ms_text
from training_profiler.diagnosis.finding import Action, Change, Evidence, Finding, Fix, record_steps
from training_profiler.diagnosis.registry import (
    MIN_SAVING_S,
    RULES,
    STEPS_NEEDED,
    Saving,
    cost_of_steps,
    found,
    has_enough_steps,
    per_step,
    row_of,
)
from training_profiler.diagnosis.shares import StepShare
from training_profiler.model.program import DDP
from training_profiler.model.ranks import RankStats
from training_profiler.model.snapshot import OTHER, Snapshot

MOST_NAMED: Final = 4
BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
NEARLY_ALL: Final = 0.9  # of the samples, and of the steps
MOST_AGAIN: Final = 0.25  # of the samples that ranks have in common: a rank has them more than once
MOST_DUPLICATES: Final = 0.02  # of the samples of a rank; with more, they are drawn with replacement
EXPLAINED: Final = 0.5  # of the waiting; a cause that explains more is named
DEFAULT_CAP_MB: Final = 25.0  # of DDP's buckets
SEVERAL: Final = 1.9  # averages of the gradients for an update; a capture may hide one


COMPUTING: Final = (FORWARD_PASS, BACKWARD_PASS)
EVEN_BATCHES: Final = Fix(
    "Give each rank batches of the same size: deal out samples sorted by length in turn, or fill batches up to a "
    "number of tokens instead of samples",
    (Change.OTHER_BATCHES,),
)


class Slow(NamedTuple):
    """A rank, or the ranks of a host, with more work than others; times are per step."""

    name: str
    work_s: float
    others_s: float  # the median of the others
    saved_s: float  # if it were like the next slowest

    def saving_s(self, snapshot: Snapshot, threshold: float) -> float:
        """Return what the run would save; 0 if that is too little to report."""
        step = snapshot.step
        saving_s = 0.0 if step is None else self.saved_s * step.settled_count
        least_s = 0.0 if step is None else max(MIN_SAVING_S, 0.5 * threshold * step.settled_s)  # less is ignored
        return saving_s if saving_s >= least_s else 0.0


@RULES.rule("straggler", 0.10, is_of_other_rank=True)  # of work, beyond the median of the other ranks
def straggler(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name the rank with the most work per step if it exceeds the others' median by 10 %; None below 10 steps."""
    slow_ranks = _slowest_rank(snapshot, threshold)
    if slow_ranks is None:
        return None
    slowest, several, slow = slow_ranks
    larger = _larger_inputs(slowest, snapshot)
    if larger is not None:  # even batches leave each rank with the mean
        slow = slow._replace(saved_s=slow.work_s - mean(map(_work_s, _working(snapshot) or ())))
    saving_s, excess = slow.saving_s(snapshot, threshold), slow.work_s / slow.others_s - 1
    if not saving_s:
        return None
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
        where = "no section" if slowest.cause == OTHER else name_of(slowest.cause)
        cause = f"; {ms_text(slowest.cause_s)} of that in {where}{place}"
        evidence |= {"cause": slowest.cause, "cause_s": slowest.cause_s, "place": slowest.place}
    if slowest.slower_since_step is not None:
        cause += f"; slower since step {slowest.slower_since_step}"
        evidence |= {"slower_since_step": slowest.slower_since_step}
    if larger is not None:
        cause += f"; its forward passes have {larger[0]:,.0f} input elements, {larger[1]:,.0f} on other ranks"
        evidence |= {"input_elements": larger[0], "median_of_others": larger[1]}
    also = "" if several == 1 else f"; {several - 1} more {'is' if several == 2 else 'are'} nearly as slow"
    return found(
        f"All ranks wait for {slow.name}: it works {ms_text(slow.work_s)} per step, the median of the "
        f"others is {ms_text(slow.others_s)} ({_beyond(excess)}){also}{cause}",
        evidence,
        _fix_of_straggler(slowest) if larger is None else EVEN_BATCHES,
        saving_s=saving_s,
    )


def _beyond(excess: float) -> str:
    return f"+{excess:.0%}" if excess < 1 else f"{1 + excess:.0f} times as much"


@RULES.rule(
    "host-slow", 0.10, label="SLOW HOST", is_of_other_rank=True
)  # of work, beyond the median of the ranks on other hosts
def host_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name the host whose ranks all work 10 % longer than the median elsewhere; None if it has a single rank."""
    slow = _slowest_host(snapshot, threshold)
    saving_s = 0.0 if slow is None else slow.saving_s(snapshot, threshold)
    if slow is None or not saving_s:
        return None
    excess = slow.work_s / slow.others_s - 1
    return found(
        f"All ranks of host {slow.name} are slow: {ms_text(slow.work_s)} of work per step, against "
        f"{ms_text(slow.others_s)} elsewhere ({_beyond(excess)})",
        {
            "host": slow.name,
            "work_s": slow.work_s,
            "median_of_others_s": slow.others_s,
            "excess": excess,
            "threshold": threshold,
        },
        f"Run top and nvidia-smi -q -d PERFORMANCE on {slow.name}, or train without it: other jobs, clocks and heat, "
        "fewer CPU cores, slower memory, disk or network than elsewhere",
        saving_s=saving_s,
    )


def _slowest_rank(snapshot: Snapshot, threshold: float) -> tuple[RankStats, int, Slow] | None:
    """Return the straggler, how many ranks are slow, and how slow it is; None if its whole host is slow instead."""
    ranks = _working(snapshot)
    if ranks is None:
        return None
    slowest, *others = sorted(ranks, key=lambda rank: -_work_s(rank))
    others_s = median([_work_s(rank) for rank in others])
    if not others_s or _work_s(slowest) <= others_s * (1 + threshold):
        return None
    # Work comes from totals with partly estimated synchronization, waiting from single steps. They contradict each
    # other where the others do not wait about as much longer.
    waiting_s = [rank.waiting_s for rank in others if rank.waiting_s is not None]
    least_s = 0.5 * (_work_s(slowest) - others_s)
    if slowest.waiting_s is not None and waiting_s and median(waiting_s) - slowest.waiting_s < least_s:
        return None
    host = host_slow(snapshot, snapshot.thresholds)
    at = slowest.who.host, slowest.who.node
    neighbours = [_work_s(rank) for rank in others if (rank.who.host, rank.who.node) == at]
    if host is not None and neighbours and _work_s(slowest) <= median(neighbours) * (1 + threshold):
        return None
    # Several slow ranks share one saving. On a slow host, a rank's saving is its excess over its neighbours.
    nearly_s = _work_s(slowest) - 0.5 * (_work_s(slowest) - max([others_s, *(neighbours if host else [])]))
    like_it = [rank for rank in others if _work_s(rank) > nearly_s]
    next_s = max(_work_s(rank) for rank in others if _work_s(rank) <= nearly_s)
    return slowest, 1 + len(like_it), Slow(str(slowest.who), _work_s(slowest), others_s, _work_s(slowest) - next_s)


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
    name, works_s = max(hosts, key=lambda host: median(host[1]))
    elsewhere = [work_s for host, host_works_s in hosts if host != name for work_s in host_works_s]
    others_s = median(elsewhere)
    if len(works_s) < 2 or min(works_s) <= others_s * (1 + threshold):
        return None
    return Slow(name, median(works_s), others_s, max(0.0, median(works_s) - max(elsewhere)))


def _working(snapshot: Snapshot) -> list[RankStats] | None:
    """Return the ranks whose work is known; None if there are fewer than two, or too few steps."""
    if snapshot.ranks is None or not has_enough_steps(snapshot):
        return None
    ranks = [rank for rank in snapshot.ranks.ranks if rank.work_s is not None and rank.steps >= STEPS_NEEDED]
    return ranks if len(ranks) > 1 else None


def _larger_inputs(slowest: RankStats, snapshot: Snapshot) -> tuple[float, float] | None:
    """Return the elements of a rank's inputs and the median on others, where these explain most of its longer work."""
    ranks = _working(snapshot) or ()
    others = [rank.input_elements for rank in ranks if rank is not slowest and rank.input_elements]
    if len(others) < len(ranks) - 1 or not slowest.input_elements or slowest.cause not in (*COMPUTING, ""):
        return None
    excess = _work_s(slowest) / median([_work_s(rank) for rank in ranks if rank is not slowest]) - 1
    mid = median(others)
    return (slowest.input_elements, mid) if slowest.input_elements / mid - 1 >= EXPLAINED * excess else None


def _fix_of_straggler(slowest: RankStats) -> Fix:
    """Return what to check: less work at its line where that is known, else a capture, which every rank makes."""
    action, where = record_steps(slowest.steps), f" at {slowest.place}" if slowest.place else ""
    if slowest.place and slowest.cause not in DEVICE_SECTIONS:
        action = Action(f"do less{where} on {slowest.who}, or share it among the ranks", (Change.CHEAPER_LINES,))
    return Fix(
        f"Check what only this rank does{where}: its data and workers, transfers, clocks and heat of its device, "
        "longer batches (bucket them by length), other work on its CPU cores",
        (Change.OTHER_BATCHES,),
        (action,),
    )


def _work_s(rank: RankStats) -> float:
    return rank.work_s or 0.0


@RULES.rule("rank-silent", 0.0, saving=Saving.UNKNOWN, is_first=True, is_risk=True)  # share of ranks
def rank_silent(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Name ranks that stopped reporting before their end, or never reported."""
    ranks = snapshot.ranks
    if ranks is None or (len(ranks.unresponsive) + len(ranks.missing)) / ranks.world_size <= threshold:
        return None
    silent = [rank for rank in ranks.ranks if rank.who.rank in set(ranks.unresponsive)]
    silent.sort(key=lambda rank: (rank.steps, rank.who.rank))
    lost = []
    for rank in silent[:MOST_NAMED]:
        age = "" if rank.last_message_s_ago is None else f" {rank.last_message_s_ago:.0f} s ago,"
        inside = f" inside {' > '.join(rank.inside)}" if rank.inside else ""
        lost.append(f"{rank.who}, last update{age} after {rank.steps} steps{inside}")
    if len(silent) > MOST_NAMED:
        lost.append(f"{len(silent) - MOST_NAMED} more")
    if ranks.missing:
        numbers = ", ".join(map(str, ranks.missing[:MOST_NAMED]))
        more = ", ..." if len(ranks.missing) > MOST_NAMED else ""
        lost.append(f"{len(ranks.missing)} never reported ({numbers}{more})")
    evidence: dict[str, float | int | str] = {"unresponsive": len(ranks.unresponsive), "missing": len(ranks.missing)}
    if silent:
        evidence |= {"rank": silent[0].who.rank, "host": silent[0].who.host, "last_step": silent[0].steps}
        evidence |= {"inside": " > ".join(silent[0].inside)}
    return found(
        f"{len(ranks.unresponsive) + len(ranks.missing)} of {ranks.world_size} ranks do not report: " + "; ".join(lost),
        evidence,
        "Read the rank's own output and dmesg there, or run training-profiler stacks while it runs; torchrun prints "
        "the first failure; a rank without the profiler, or with another run folder, does not report either",
    )


@RULES.rule(
    "ranks-repeat",
    threshold=0.05,  # of the samples of a rank: those that each other rank trains on, too
    saving=Saving.RUN,
    label="REPEATED DATA",
    changes=(Change.OTHER_BATCHES,),
    is_first=True,
    is_risk=True,
)
def ranks_repeat(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag ranks that train on the same samples in a pass over the data, though they average their gradients.

    They have all samples in common, or as many as by chance where each draws from all in an order of its own. None
    where a rank itself has samples again nearly as often, as of constant, few or drawn ones. Steps are saved where the
    training ends with an epoch.
    """
    repeats, step = None if snapshot.ranks is None else snapshot.ranks.repeats, snapshot.step
    if repeats is None or step is None or not has_enough_steps(snapshot):
        return None
    ranks, whole = repeats.workers, {epoch.steps for epoch in snapshot.epochs if epoch.is_complete}
    epochs = [epoch for epoch in snapshot.epochs if epoch.steps in whole]  # a trainer may leave the last one at its end
    share = (repeats.times - 1) / (ranks - 1)
    seen = min(1.0, repeats.each / max([1, repeats.each, *(epoch.samples or 0 for epoch in epochs)]))  # of a pass
    by_chance = (ranks * seen / (1 - (1 - seen) ** ranks) - 1) / (ranks - 1)
    is_known = share >= NEARLY_ALL or (bool(epochs) and 0.7 * by_chance < share < 1.4 * by_chance)
    is_drawn, repeated_s = repeats.again > MOST_DUPLICATES, (1 - 1 / ranks) * step.total_s
    if not is_known or share <= threshold or repeats.again > MOST_AGAIN * share or repeated_s < MIN_SAVING_S:
        return None
    training = [loader for loader in snapshot.loaders if loader.phase == "train"]
    made = f" at {training[0].made_at}" if len(training) == 1 and training[0].made_at else ""
    divide = f"DataLoader(..., sampler=DistributedSampler(dataset)){made}"
    if any(loader.is_map_style is False for loader in training):
        divide = f"yield every get_world_size()-th sample, from get_rank() on, in {training[0].data_set}.__iter__"
    elif is_drawn:  # by another sampler, whose pass is as long as it is set
        divide = f"DataLoader(..., sampler=...) with a generator that has another seed on each rank{made}"
    return found(
        f"The {ranks} ranks train on the same samples{'' if share >= NEARLY_ALL else ', each in an order of its own'}: "
        f"a pass over them takes {ranks} times the steps that it needs",
        {"share": share, "threshold": threshold, "ranks": ranks, "samples": repeats.samples, "again": repeats.again},
        Fix(f"Give each rank samples of its own: {divide}", (), (Action(divide, (Change.OTHER_BATCHES,)),)),
        saving_s=repeated_s if not is_drawn and sum(each.steps for each in epochs) >= NEARLY_ALL * step.count else 0.0,
    )


@RULES.rule("uneven-work", 0.10, is_of_other_rank=True)  # of step time
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
        fix = Fix(f"Run {longest.name} less often, asynchronously, or share it among ranks", (Change.LESS_OFTEN,))
    else:
        fix = Fix(
            "Check for batches of uneven length (bucket them by length, the same on all ranks), data loading that "
            "stalls, garbage collection (gc.freeze) and other work on the machines: a different rank is late each time",
            (Change.GC_FREEZE, Change.OTHER_BATCHES),
            (record_steps(snapshot.steps),),
        )
    return found(message, evidence, fix, saving_s=potential_saving_s)


@RULES.rule(
    "synchronization-heavy",
    threshold=0.10,
    label="SYNC-BOUND",
    says_where=True,
    claims=(SYNCHRONIZATION,),
    try_=("gradient_as_bucket_view", "static_graph", "bucket_cap_mb"),
    explains_idle=True,
    follows=lambda finding, other: "waits_for" in finding.evidence and row_of(other).is_of_other_rank,
)
def synchronization_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag steps with over 10 % synchronization: of this rank, or the mean over ranks if that is known.

    The saving excludes what the rules about slow or uneven ranks already claim.
    """
    ranks, step = snapshot.ranks, snapshot.step
    fix = _fix_of_sync(snapshot)
    if ranks is None or ranks.sync_share is None or step is None or not has_enough_steps(snapshot):
        return StepShare(
            "",
            threshold,
            section=SYNCHRONIZATION,
            activity="waiting for other ranks",
            fix=Fix(
                f"Look for the slowest rank first; then {fix}",
                fix.changes,
                fix.actions or (record_steps(snapshot.steps),),
            ),
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
        text = f"Fix {first} first; then {fix}"
    else:
        text = fix[0].upper() + fix[1:]
    return found(message, evidence, Fix(text, fix.changes, fix.actions), saving_s=max(0.0, total_s - claimed_s))


def _fix_of_sync(snapshot: Snapshot) -> Fix:
    """Return how to synchronize less; of gradients that DDP averages several times before an update, all but once."""
    sync, step, program = snapshot.gradient_sync, snapshot.step, snapshot.program
    if sync is None:
        text = "use fewer and larger collectives, overlap them with computation, or use a faster network"
        return Fix(text, (Change.LARGER_COLLECTIVES,))
    modules, updates = sum(call.kind == DDP for call in program.calls), per_step(snapshot, OPTIMIZER_STEP)
    times = min(sync.count / step.count, per_step(snapshot, BACKWARD_PASS)) if step is not None and step.count else 0.0
    if times >= SEVERAL and modules == 1 and updates < SEVERAL:
        often = round(times)
        text = (
            f"enter model.no_sync() for the first {often - 1} of the {often} batches of an update, forward and backward"
        )
        action = Action(text[0].upper() + text[1:], (Change.NO_SYNC,), 1 - 1 / often)
        return Fix(text, action.changes, (action,))
    # The gradients fill more of DDP's buckets than the first, which is small, and another one.
    optimizer, has_many = program.optimizer, False
    arguments = [argument for call in program.calls if call.kind == DDP for argument in call.arguments]
    cap_mb = min((float(value) for name, value in arguments if name == "bucket_cap_mb"), default=DEFAULT_CAP_MB)
    if optimizer is not None:
        each = max((BYTES.get(dtype, 0) for dtype in optimizer.dtypes), default=0)
        has_many = optimizer.numbers * each > 2 * cap_mb * BYTES_PER_MIB
    now = f", now {cap_mb:.2g}" if cap_mb < DEFAULT_CAP_MB else ""
    larger = f"larger DDP buckets (bucket_cap_mb{now}), " if has_many else ""
    changes = (Change.BUCKET_CAP_MB, Change.ACCUMULATION) if has_many else (Change.ACCUMULATION,)
    return Fix(f"use {larger}gradient accumulation under no_sync(), or a faster network", changes)


@RULES.rule(
    "unneeded-search",
    threshold=0.002,  # of step time
    claims=(FORWARD_PASS,),
    saves=(0.9, 3.0),
    changes=(Change.NO_SEARCH,),
    call=DDP,
)
def unneeded_search(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag DDP that searches each graph for unused parameters where no rank has any; None below 20 known searches.

    The time of the search counts. The ranks' exchange of what they found, in the backward pass, is not measured.
    """
    ranks, step = snapshot.ranks, snapshot.step
    searched = None if ranks is None else ranks.searched
    if (
        ranks is None
        or searched is None
        or step is None
        or searched.found
        or searched.looked_at < 20 * ranks.world_size
    ):
        return None
    cost = cost_of_steps(snapshot, threshold, searched.seconds / ranks.world_size * step.settled_count / step.count)
    return cost.finding(
        f"DDP searches the graph after each forward pass for parameters without a gradient ({cost.per_step} per step), "
        f"which ranks then exchange: none was found in {searched.looked_at:,} searches on {ranks.world_size} ranks",
        "Leave find_unused_parameters=True out of DistributedDataParallel(...), where no step leaves a parameter out",
        searches=searched.searches,
        looked_at=searched.looked_at,
    )


def _culprit(finding: Finding) -> str:
    """Return the rank or host that a finding is about; "" if it names none."""
    evidence: Evidence = finding.evidence
    if finding.code == "host-slow":
        return f"host {evidence['host']}"
    if "rank" not in evidence:
        return ""
    return f"rank {evidence['rank']} ({evidence['cause']})" if "cause" in evidence else f"rank {evidence['rank']}"
