"""Rules about several data loaders: which is slow, and whether their mix is the one asked for."""

from statistics import median
from typing import Final

from training_profiler.diagnosis.insight import Insight
from training_profiler.diagnosis.rule import WORTH_AT_LEAST_S, has_enough_steps, rule
from training_profiler.snapshot import LoaderFigures, Snapshot
from training_profiler.units import seconds_text

BATCHES_NEEDED: Final = 10  # of each loader
HALF: Final = 0.5  # of all waiting; below, another loader matters more
CHANCE: Final = 3.0  # standard deviations of a mix drawn at random; a true one is beyond in 0.3 % of the runs


@rule("loader-slow", threshold=3.0)  # times the median of the others
def loader_slow(snapshot: Snapshot, threshold: float) -> Insight | None:
    """Flag a loader whose batch takes over 3 times that of the others and over half of all waiting."""
    known = [(one.data_avg_s, one) for one in _training(snapshot) if one.data_avg_s is not None]
    if len(known) < 2 or not has_enough_steps(snapshot):
        return None
    slow_s, slow = max(known, key=lambda item: item[0])
    others_s = median(data_s for data_s, one in known if one is not slow)
    waited_s = sum(data_s * one.batches for data_s, one in known)
    worth_s = (slow_s - others_s) * slow.batches
    if slow_s <= threshold * others_s or slow_s * slow.batches <= HALF * waited_s or worth_s < WORTH_AT_LEAST_S:
        return None
    return Insight(
        code="loader-slow",
        finding=f"loader {slow.name} is slow: {seconds_text(slow_s)} a batch against {seconds_text(others_s)}; it is "
        f"{slow_s * slow.batches / waited_s:.0%} of all waiting for batches",
        evidence={
            "loader": slow.name,
            "data_avg_s": slow_s,
            "others_avg_s": others_s,
            "threshold": threshold,
            "batches": slow.batches,
        },
        worth_s=worth_s,
        remedy=f"more num_workers and prefetch_factor for loader {slow.name} alone, or less work in its dataset",
    )


@rule("loader-mix", threshold=0.01, is_of_step=False)  # of all batches
def loader_mix(snapshot: Snapshot, threshold: float) -> Insight | None:
    """Flag a loader whose share of the batches is not the one asked for: by over 1 point, and more than by chance."""
    loaders = _training(snapshot)
    batches = sum(one.batches for one in loaders)
    off = []
    for one in loaders:
        if one.proportion is None or one.asked_proportion is None or not batches:
            continue
        difference = abs(one.proportion - one.asked_proportion)
        by_chance = (one.asked_proportion * (1 - one.asked_proportion) / batches) ** 0.5
        if difference > threshold and difference > CHANCE * by_chance:
            off.append((difference, one))
    if not off:
        return None
    _, worst = max(off, key=lambda item: item[0])
    realized, asked = worst.proportion or 0.0, worst.asked_proportion or 0.0
    return Insight(
        code="loader-mix",
        finding=f"loader {worst.name} gave {realized:.1%} of the batches, {asked:.1%} were asked for",
        evidence={"loader": worst.name, "proportion": realized, "asked": asked, "threshold": threshold},
        worth_s=0.0,
        remedy="a loader that ran out of batches, or a schedule that counts something else than batches",
    )


def _training(snapshot: Snapshot) -> list[LoaderFigures]:
    return [one for one in snapshot.loaders if one.phase == "train" and one.batches >= BATCHES_NEEDED]
