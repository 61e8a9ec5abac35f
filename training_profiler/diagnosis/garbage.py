"""The rule about garbage collections."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.pauses import ASKED, FULL, YOUNG, CollectionStats
from training_profiler.snapshot.snapshot import Snapshot

GARBAGE: Final = "garbage-collection"
GARBAGE_COLLECTION: Final = "garbage collection"  # as the cause of uneven steps, where others have a section
STEPS_WITH: Final = 3  # single steps with a collection may be chance
OFTEN: Final = 0.9  # of the steps: then a collection is part of each step
FREEZE: Final = (
    "Call gc.collect() and gc.freeze() once after the first steps: later collections leave out all objects made until "
    "then (training-profiler try measures what it brings). Objects that are made later, as in a buffer of lists, cost "
    "less as tensors or arrays"
)
_ASK_LESS: Final = "Call gc.collect() less often, such as every 100th step: it goes through all objects"
_COLLECTS: Final = "gc.collect"
_FEWER: Final = (
    "Make fewer objects of Python that outlive a line (lists of numbers, dicts, tuples: use tensors), or collect less "
    "often: gc.set_threshold(50_000, 20, 20)"
)


@RULES.rule(GARBAGE, threshold=0.03)  # of step time
def garbage_collection(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag garbage collections that take over 3 % of step time after the first ten steps, in three steps or more."""
    step, garbage = snapshot.step, snapshot.garbage
    if step is None or garbage is None or not has_enough_steps(snapshot):
        return None
    seconds = garbage.share_of_step * step.settled_s
    kinds = {
        "full": (garbage.of(FULL), FREEZE),
        "of gc.collect()": (garbage.of(ASKED), _ASK_LESS),
        "young": (garbage.of(*YOUNG), _FEWER),
    }
    kind = max(kinds, key=lambda kind: kinds[kind][0].step_total_s)
    stats, fix = kinds[kind]
    if garbage.share_of_step <= threshold or seconds < MIN_SAVING_S or stats.steps < STEPS_WITH:
        return None
    part = stats.step_total_s / garbage.step_total_s
    place = _asked_at(snapshot) if fix == _ASK_LESS else ""
    return Finding(
        code=GARBAGE,
        message=f"Garbage collection takes {garbage.share_of_step:.0%} of step time "
        f"({ms_text(seconds / step.settled_count)} per step): {_text(kind, stats, garbage.steps)}"
        + (f"; above all at {place}" if place else ""),
        evidence={
            "share_of_step": garbage.share_of_step,
            "threshold": threshold,
            "seconds": seconds,
            "kind": kind,
            "collections": stats.step_count,
            "steps": stats.steps,
            "longest_s": stats.longest_s,
            "longest_step": stats.longest_step,
            "explained": garbage.explained,
            "lines": place,
        },
        potential_saving_s=part * seconds,
        fix=fix,
    )


def _asked_at(snapshot: Snapshot) -> str:
    """Return the line that spends most time in ``gc.collect()``; "" if it was never sampled there."""
    shares = {
        f"{line.place} {line.what}": line.called.get(_COLLECTS, 0.0)
        for lines in snapshot.lines.values()
        for line in lines
    }
    place = max(shares, key=lambda place: shares[place], default="")
    return place if shares.get(place) else ""


def _text(kind: str, stats: CollectionStats, steps: int) -> str:
    count, mean_s = stats.step_count, stats.step_total_s / stats.step_count
    often = "nearly every step" if stats.steps >= OFTEN * steps else f"{stats.steps} of {steps} steps"
    return (
        f"{count} {kind}, {ms_text(mean_s)} each, in {often} (longest {ms_text(stats.longest_s)} at step "
        f"{stats.longest_step})"
    )
