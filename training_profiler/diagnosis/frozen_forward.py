"""The rule about a frozen module that computes the same features in each epoch."""

from statistics import median
from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import EpochStats, Snapshot
from training_profiler.tables.sections import DATA_LOADING, FORWARD_PASS, FORWARD_WITHOUT_GRAD, ROLLOUT

FROZEN_FORWARD: Final = "frozen-forward"
BATCHES_NEEDED: Final = 8  # that were looked at
PASSES: Final = (FORWARD_PASS, FORWARD_WITHOUT_GRAD, ROLLOUT)
LOADING_S: Final = "loading_s"  # of the evidence: kept outputs take the place of the inputs, and may be read faster
GOES_ON: Final = 0.5  # of its time in early steps, which the forward passes of later epochs take at least


@RULES.rule(FROZEN_FORWARD, threshold=0.15)  # of step time
def frozen_forward(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a module that is not trained and has a batch as its input, in over 15 % of step time, from epoch to epoch.

    Inputs need not be loaded either then: at most, that time is saved as well. Silent with less than two epochs, and
    where later epochs do without it: they may read what the first one kept.
    """
    step, facts = snapshot.step, snapshot.program.frozen
    epochs = max(len(snapshot.epochs), snapshot.program.epochs)
    if step is None or facts is None or not has_enough_steps(snapshot) or not step.settled_s:
        return None
    if facts.batches < BATCHES_NEEDED or epochs < 2 or not _goes_on(snapshot.epochs, facts.seconds):
        return None
    frozen_s = min(step.settled_s, facts.part * sum(snapshot.total_of_step_s(name) or 0.0 for name in PASSES))
    share = frozen_s / step.settled_s
    again = 1 - _first_part(snapshot.epochs, epochs)
    if share <= threshold or again * frozen_s < MIN_SAVING_S:
        return None
    at = f" (called at {facts.place})" if facts.place else ""
    more = f" and {facts.modules - 1} more" if facts.modules > 1 else ""
    does = "are not trained, and compute their" if more else "is not trained, and computes its"
    return Finding(
        code=FROZEN_FORWARD,
        message=f"{facts.module}{more}{at} {does} outputs again in each of {epochs} epochs: "
        f"{ms_text(frozen_s / step.settled_count)} per step, {share:.0%} of step time",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "part_of_forward": facts.part,
            "epochs": epochs,
            "with_gradients": int(facts.has_grad),
            "module": facts.module,
            "lines": facts.place,
            LOADING_S: again * (snapshot.total_of_step_s(DATA_LOADING) or 0.0),
        },
        potential_saving_s=again * frozen_s,
        fix="If each epoch has the same inputs, without random augmentation, compute these outputs once, keep them in "
        "memory or in a file, and train on them",
    )


def _first_part(epochs: tuple[EpochStats, ...], count: int) -> float:
    """Return the part of the steps that the first epoch has: there, the features have to be computed."""
    all_steps = sum(epoch.steps for epoch in epochs)
    return epochs[0].steps / all_steps if len(epochs) == count and all_steps else 1 / count


def _goes_on(epochs: tuple[EpochStats, ...], batch_s: float) -> bool:
    """Return whether later epochs have these forward passes, too, as far as their times are known."""
    passes_s = [
        sum(epoch.self_s.get(name, 0.0) for name in PASSES) / (epoch.batches or epoch.steps)
        for epoch in epochs[1:]
        if epoch.steps
    ]
    return not passes_s or median(passes_s) >= GOES_ON * batch_s
