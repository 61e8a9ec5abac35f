"""The rule about batches so small that a step would take hardly longer with more samples."""

from typing import Final, NamedTuple

from training_profiler.diagnosis.program import NEARLY_EMPTY, per_step
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot
from training_profiler.tables.sections import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP

TINY_BATCHES: Final = "tiny-batches"
TINY: Final = 4.0  # samples
LARGER: Final = 8.0  # times, with which it is compared
BATCHES_NEEDED: Final = 10
STEPS_NEEDED: Final = 5
MANY_SLICES: Final = 4.0  # a step; fewer may be parts that fit in memory
MOST_OF_THEM: Final = 0.9  # of the training's batches: from one loader


@RULES.rule(TINY_BATCHES, threshold=0.25)  # of step time
def tiny_batches(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a training on the CPU with at most 4 samples, or parts of a batch, at once, whose operators hardly compute.

    The shortest passes count: others may have been delayed. None where operators were not counted, or where each has
    much to do, as with one long sequence or one large graph.
    """
    parts, cpu, step = _parts(snapshot), snapshot.program.cpu, snapshot.step
    if parts is None or cpu is None or step is None or not has_enough_steps(snapshot):
        return None
    operators, shortest_s = snapshot.program.operators, _shortest_s(snapshot)
    if not operators or not shortest_s or shortest_s > NEARLY_EMPTY * cpu.operator_s * operators:
        return None
    computing_s = snapshot.computing_s()
    # Longer passes than the shortest may have more to compute: more samples would take as much longer.
    spent_s = min(computing_s, shortest_s * step.settled_count) + parts.update_s
    potential_saving_s = spent_s * (1 - 1 / min(LARGER, parts.times))
    share = potential_saving_s / step.settled_s if step.settled_s else 0.0
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    return Finding(
        code=TINY_BATCHES,
        message=f"{parts.text}: an operator takes {shortest_s / operators * 1e6:.1f} us, and starting one "
        f"{cpu.operator_s * 1e6:.1f} us, so {parts.effect}",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "samples": parts.samples,
            "slices": parts.slices,
            "seconds_per_operator": shortest_s / operators,
            "least_seconds_per_operator": cpu.operator_s,
            "lines": parts.place,
        },
        potential_saving_s=potential_saving_s,
        fix=parts.fix,
    )


class _Parts(NamedTuple):
    """What goes through the model at once."""

    samples: float
    slices: float  # of a batch; 1: the whole batch goes through at once
    text: str
    effect: str
    place: str
    fix: str
    update_s: float  # of the optimizer, if fewer updates are part of the fix
    times: float  # as many samples could go through it at once


def _parts(snapshot: Snapshot) -> _Parts | None:
    """Return what goes through the model: slices of a batch, or small batches; None for anything else."""
    facts, loader = snapshot.program.slices, _main_loader(snapshot)
    if facts is not None and facts.steps >= STEPS_NEEDED and facts.slices >= MANY_SLICES * facts.steps:
        slices = facts.slices / facts.steps
        at = f" ({facts.place})" if facts.place else ""
        return _Parts(
            facts.rows,
            slices,
            f"A batch of {facts.of_rows} goes through the model in {slices:.3g} calls of {_samples(facts.rows)} each"
            f"{at}",
            f"one call with {min(LARGER, facts.of_rows / facts.rows):.3g} times the samples would take about as long",
            facts.place,
            "Compute a whole batch or sequence at once instead of looping over it in Python: torch.func.vmap where "
            "each sample needs a gradient of its own",
            0.0,
            facts.of_rows / facts.rows,
        )
    samples = loader.samples / loader.batches if loader is not None and loader.samples else 0.0
    if loader is None or not samples or samples > TINY:
        return None
    where = f" ({loader.made_at})" if loader.made_at else ""
    return _Parts(
        samples,
        1.0,
        f"Batches of {_samples(samples)}{where}",
        f"a step with {LARGER:.0f} times the samples would take about as long",
        loader.made_at,
        "Use larger batches if the training allows them: the same samples then make fewer updates, usually with "
        "another learning rate",
        snapshot.total_of_step_s(OPTIMIZER_STEP) or 0.0,
        LARGER,
    )


def _samples(count: float) -> str:
    return "1 sample" if count == 1 else f"{count:.2g} samples"


def _main_loader(snapshot: Snapshot) -> LoaderStats | None:
    """Return the loader that makes nearly all batches of the training; None if there is no such loader."""
    loaders = [loader for loader in snapshot.loaders if loader.phase == "train"]
    most = max(loaders, key=lambda loader: loader.batches, default=None)
    if most is None or most.batches < max(BATCHES_NEEDED, MOST_OF_THEM * sum(loader.batches for loader in loaders)):
        return None
    return most


def _shortest_s(snapshot: Snapshot) -> float:
    """Return the time of a step's forward and backward passes if none is delayed; 0 if unknown."""
    shortest_s = 0.0
    for name in (FORWARD_PASS, BACKWARD_PASS):
        section = snapshot.sections.get(name)
        if section is None or not section.min_s:
            return 0.0
        shortest_s += section.min_s * per_step(snapshot, name)
    return shortest_s
