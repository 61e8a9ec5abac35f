"""Rules about several data loaders: which is slow, and whether their mix is the one asked for."""

from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot
from training_profiler.units import seconds_text

BATCHES_NEEDED: Final = 8  # of a loader before a mean is worth comparing: the first has to fill queues
SLOW_SHARE: Final = 0.01  # of the run that waiting for it takes; less is not worth a sentence
CHANCE: Final = 3.0  # standard deviations of a mix drawn at random; a true one is beyond in 0.3 % of the runs


@RULES.rule("loader-slow", threshold=2.0)  # times the mean of the others
def loader_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a loader whose batch takes over twice as long as those of the others, and over 1 % of the run in all."""
    known = [(one.data_avg_s, one) for one in _training(snapshot) if one.data_avg_s is not None]
    if len(known) < 2:
        return None
    slow_s, slow = max(known, key=lambda item: item[0])
    others = [(data_s, one) for data_s, one in known if one is not slow]
    others_s = sum(data_s * one.batches for data_s, one in others) / sum(one.batches for _, one in others)
    waited_s = slow_s * slow.batches
    potential_saving_s = waited_s - others_s * slow.batches
    if slow_s <= threshold * others_s or waited_s <= SLOW_SHARE * snapshot.wall_s or potential_saving_s < MIN_SAVING_S:
        return None
    of = others[0][1].name if len(others) == 1 else "the others"
    part = waited_s / sum(data_s * one.batches for data_s, one in known)
    return Finding(
        code="loader-slow",
        message=f"loader {slow.name} is slow: {seconds_text(slow_s)} a batch against {seconds_text(others_s)} of {of}; "
        f"it is {part:.0%} of the waiting for batches",
        evidence={
            "loader": slow.name,
            "data_avg_s": slow_s,
            "others_avg_s": others_s,
            "threshold": threshold,
            "batches": slow.batches,
        },
        potential_saving_s=potential_saving_s,
        fix=f"more num_workers and prefetch_factor for loader {slow.name} alone, or less work in its dataset",
    )


@RULES.rule("loader-mix", threshold=0.01, saving=Saving.UNKNOWN)  # of all batches
def loader_mix(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag loaders whose share of the batches is not the one asked for: by over 1 point, and more than by chance."""
    loaders = _training(snapshot)
    batches = sum(one.batches for one in loaders)
    evidence: dict[str, float | int | str] = {"threshold": threshold, "batches": batches}
    off = []
    for one in loaders:
        share, asked = one.proportion, one.asked_proportion
        if share is None or asked is None:
            continue
        by_chance = (asked * (1 - asked) / batches) ** 0.5
        if abs(share - asked) > max(threshold, CHANCE * by_chance):
            off.append(f"{one.name} {share:.1%} instead of {asked:.1%}")
            evidence |= {one.name: share, f"{one.name} asked": asked}
    if not off:
        return None
    return Finding(
        code="loader-mix",
        message=f"the mix of loaders differs from the one asked for: {', '.join(off)}",
        evidence=evidence,
        potential_saving_s=0.0,
        fix="a loader that ran out of batches, or a schedule that counts something else than batches",
    )


def _training(snapshot: Snapshot) -> list[LoaderStats]:
    return [one for one in snapshot.loaders if one.phase == "train" and one.batches >= BATCHES_NEEDED]
