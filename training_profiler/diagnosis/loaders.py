"""Rules about several data loaders: which one is slow, and whether their mix is the configured one."""

from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.recording.known_sections import DATA_LOADING, FIRST_FETCH, WORKER_START
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot
from training_profiler.units import ms_text

LOADER_RESTARTED: Final = "loader-restarted"
PASSES_NEEDED: Final = 10
NEARLY_ALL: Final = 0.9  # of the batches: the first of their pass
BATCHES_NEEDED: Final = 8  # of a loader before its mean is compared: the first batches fill queues
SLOW_SHARE: Final = 0.01  # of the run, spent waiting for the loader
CHANCE: Final = 3.0  # standard deviations of a random mix; exceeded by chance in 0.3 % of runs


@RULES.rule("loader-slow", threshold=2.0)  # x the mean of the others
def loader_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a loader whose batches take over twice as long as the others', and over 1 % of the run in total."""
    known = [(loader.data_avg_s, loader) for loader in _training(snapshot) if loader.data_avg_s is not None]
    if len(known) < 2:
        return None
    slow_s, slow = max(known, key=lambda item: item[0])
    others = [(data_s, loader) for data_s, loader in known if loader is not slow]
    others_s = sum(data_s * loader.batches for data_s, loader in others) / sum(loader.batches for _, loader in others)
    waited_s = slow_s * slow.batches
    potential_saving_s = waited_s - others_s * slow.batches
    if slow_s <= threshold * others_s or waited_s <= SLOW_SHARE * snapshot.wall_s or potential_saving_s < MIN_SAVING_S:
        return None
    of = others[0][1].name if len(others) == 1 else "the others"
    part = waited_s / sum(data_s * loader.batches for data_s, loader in known)
    return Finding(
        code="loader-slow",
        message=f"Loader {slow.name} is slow: {ms_text(slow_s)} per batch, against {ms_text(others_s)} for {of}; "
        f"it causes {part:.0%} of the wait for batches",
        evidence={
            "loader": slow.name,
            "data_avg_s": slow_s,
            "others_avg_s": others_s,
            "threshold": threshold,
            "batches": slow.batches,
        },
        potential_saving_s=potential_saving_s,
        fix=f"Raise num_workers and prefetch_factor for loader {slow.name} only, or do less work in its dataset",
    )


@RULES.rule(LOADER_RESTARTED, threshold=0.05)  # of step time
def loader_restarted(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a loader that begins a pass for each batch, as `next(iter(loader))` does, over 5 % of step time.

    None where epochs are known: a loop over a loader of a single batch makes such passes too, and needs them.
    """
    step, first = snapshot.step, snapshot.sections.get(FIRST_FETCH)
    fetches, start = snapshot.sections.get(DATA_LOADING), snapshot.sections.get(WORKER_START)
    if step is None or first is None or fetches is None or not has_enough_steps(snapshot) or not step.total_s:
        return None
    if snapshot.epochs or snapshot.program.epochs or first.count < max(PASSES_NEEDED, NEARLY_ALL * fetches.count):
        return None
    spent_s = first.total_s + (0.0 if start is None else start.total_s)
    share = min(1.0, spent_s / step.total_s)
    potential_saving_s = share * step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code=LOADER_RESTARTED,
        message=f"{first.count} of {fetches.count} batches are the first of a new pass over the data loader, as "
        f"next(iter(loader)) makes it: {ms_text(spent_s / first.count)} each, {share:.0%} of step time. A pass begins "
        f"with {'starting workers' if start is not None and start.count else 'an order of all samples'}",
        evidence={"share_of_step": share, "threshold": threshold, "passes": first.count, "batches": fetches.count},
        potential_saving_s=potential_saving_s,
        fix="Take all batches of a pass: for batch in loader, or batches = iter(loader) once and next(batches) in each "
        "step, and iter(loader) again at StopIteration",
    )


@RULES.rule("loader-mix", threshold=0.01, saving=Saving.UNKNOWN)  # of all batches
def loader_mix(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag loaders whose share of the batches is not the configured one: by over 1 point, and more than by chance."""
    loaders = _training(snapshot)
    batches = sum(loader.batches for loader in loaders)
    evidence: dict[str, float | int | str] = {"threshold": threshold, "batches": batches}
    off = []
    for loader in loaders:
        share, asked = loader.proportion, loader.asked_proportion
        if share is None or asked is None:
            continue
        by_chance = (asked * (1 - asked) / batches) ** 0.5
        if abs(share - asked) > max(threshold, CHANCE * by_chance):
            off.append(f"{loader.name} {share:.1%} instead of {asked:.1%}")
            evidence |= {loader.name: share, f"{loader.name} asked": asked}
    if not off:
        return None
    return Finding(
        code="loader-mix",
        message=f"The mix of loaders differs from the configured one: {', '.join(off)}",
        evidence=evidence,
        potential_saving_s=0.0,
        fix="Check for a loader that ran out of batches, or a schedule that does not count batches",
    )


def _training(snapshot: Snapshot) -> list[LoaderStats]:
    return [loader for loader in snapshot.loaders if loader.phase == "train" and loader.batches >= BATCHES_NEEDED]
