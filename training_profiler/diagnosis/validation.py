"""Rules about work between steps that is done in a costlier way than it needs."""

from collections.abc import Sequence

from training_profiler.base.sections import (
    DATA_LOADING,
    FIRST_FETCH,
    FORWARD_PASS,
    VALIDATION_EPOCH,
    WITHIN,
    WORKER_START,
)
from training_profiler.base.units import duration_text, time_text
from training_profiler.diagnosis.finding import RECORDING_COSTS, Change, Finding, Fix, joined
from training_profiler.diagnosis.loader_fixes import REMADE, THEN_KEPT, first_batch_fix
from training_profiler.diagnosis.registry import RULES, Saving, cost_of_run, has_enough_steps
from training_profiler.model.program import LOADER
from training_profiler.model.snapshot import LoaderStats, SectionStats, Snapshot


@RULES.rule(
    "validation-with-gradients",
    threshold=0.0,  # share of the run
    saving=Saving.RUN,
    label="VALIDATION",
    claims=(VALIDATION_EPOCH,),
    saves=(0.2, 2.3),
    changes=(Change.NO_GRAD,),
)
def validation_with_gradients(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag forward passes of validation that record gradients; None if recording takes less than 20 ms in total.

    What recording costs is not measured in the run: the saving is that of a usual model.
    """
    count, spent_s = snapshot.with_grad_count, snapshot.with_grad_s
    cost = cost_of_run(snapshot, threshold, spent_s, saving_s=RECORDING_COSTS * spent_s)
    if not count:
        return None
    passes = "1 forward pass" if count == 1 else f"{count} forward passes"
    spent = f"{duration_text(spent_s)}, {cost.share:.0%} of the run"
    # The lines of the loop itself show where to change something; those of its forward passes may be the model's.
    hottest = snapshot.hottest(VALIDATION_EPOCH) or snapshot.hottest(f"{VALIDATION_EPOCH}/{FORWARD_PASS}")
    lines = {"lines": f"{hottest[0].file}:{hottest[0].line} {hottest[0].function}"} if hottest else {}
    return cost.finding(
        f"Validation records gradients that nothing uses, in {passes} ({spent})"
        + "".join(f": {line}" for line in lines.values()),
        "Evaluate under torch.no_grad() or torch.inference_mode(), which needs less memory and less time",
        seconds=spent_s,
        count=count,
        **lines,
    )


@RULES.rule(
    "passes-before-training",
    threshold=0.10,  # share of the run
    saving=Saving.RUN,
    label="BEFORE TRAINING",
    is_before_training=True,
    lies_in=lambda finding: (VALIDATION_EPOCH,) if finding.evidence["is_all"] else (),
    saves=(0.0, 1.0),
    changes=(Change.KEPT_RESULTS, Change.OTHER_BATCHES),
)
def passes_before_training(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag passes without gradients over loaders before the first step that no validation goes through later.

    They may make features of a frozen model, or be a single validation: neither is done less often.
    """
    facts = snapshot.program.passes_before
    if facts is None or not has_enough_steps(snapshot):
        return None
    cost = cost_of_run(snapshot, threshold, facts.seconds)
    validation = snapshot.sections.get(VALIDATION_EPOCH)
    is_all = validation is not None and facts.seconds >= 0.9 * validation.total_s
    often = "one pass" if facts.passes == 1 else f"{facts.passes} passes"
    return cost.finding(
        f"{cost.share:.1%} of the run is {often} without gradients over a data loader before the first step "
        f"({duration_text(facts.seconds)})",
        "If it computes the same in each run, such as features of a frozen model, keep the result in a file for "
        "the next run; else take larger batches there, or raise num_workers of its loader if that is slow",
        seconds=facts.seconds,
        count=facts.passes,
        is_all=int(is_all),
    )


@RULES.rule(
    "workers-restarted",
    threshold=0.02,  # of the run
    saving=Saving.RUN,
    label="WORKER STARTS",
    saves=(0.6, 1.1),
    try_=("persistent_workers",),
    call=LOADER,
    is_of_host=True,
)
def workers_restarted(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag workers of the training that start and end between steps again and again, over 2 % of the run.

    A loop over a loader makes them before its first step, and ends them after its last. What lies in steps has other
    rules.
    """
    start, fetches = snapshot.sections.get(WORKER_START), snapshot.sections.get(DATA_LOADING)
    loaders = [loader for loader in snapshot.loaders if loader.phase == "train" and loader.num_workers]
    if start is None or fetches is None or start.parent != DATA_LOADING or not loaders:
        return None
    start_s = start.total_s - start.step_total_s
    # The rest of the loading between steps is the end of passes, or the begin of those that were left before a step.
    end_s = min(start.total_s, max(0.0, fetches.total_s - fetches.step_total_s - start_s))
    return _of_workers(snapshot, threshold, loaders, start.count, (start_s, 0.0, end_s), fix=first_batch_fix(snapshot))


@RULES.rule(
    "validation-workers-restarted",
    threshold=0.02,  # of the run
    saving=Saving.RUN,
    label="WORKER STARTS",
    claims=(VALIDATION_EPOCH,),
    saves=(0.6, 1.8),
    try_=("persistent_workers",),
)
def validation_workers_restarted(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag workers of validation loaders that start and end in each validation, over 2 % of the run."""
    loaders = [loader for loader in snapshot.loaders if loader.phase == "val" and loader.num_workers]
    start, fetches = _in_validation(snapshot, WORKER_START), _in_validation(snapshot, DATA_LOADING)
    if start is None or fetches is None:
        return None
    if all(loader.persistent_workers and not loader.is_remade for loader in loaders):
        return None
    first = _in_validation(snapshot, FIRST_FETCH)
    first_s = 0.0 if first is None else first.total_s
    # Without knowledge of how long a batch takes, the first may have been made all the time.
    making_s = max((loader.workers.batch_avg_s for loader in loaders if loader.workers), default=float("inf"))
    waited_s = sum(loader.wait_s for loader in snapshot.loaders if loader.phase == "val")
    end_s = min(start.total_s, max(0.0, fetches.total_s - start.total_s - waited_s))
    took_s = start.total_s, max(0.0, first_s - start.count * making_s), end_s
    least_s = 0.0
    loader = max(loaders, key=lambda loader: loader.wait_s)
    at = f" at {loader.made_at}" if loader.made_at else ""
    fix = Fix(
        f"Set persistent_workers=True in the validation's DataLoader{at}: it keeps the workers", THEN_KEPT.changes
    )
    if loader.is_remade:
        fix = joined([Fix(f"{REMADE}{at}", REMADE.changes), THEN_KEPT])
    making_s = float("inf") if loader.workers is None else loader.workers.batch_avg_s * loader.batches
    if len(loaders) == 1 and making_s < 0.5 * fetches.total_s:  # then making batches without workers is cheaper
        least_s = fetches.total_s - making_s  # taking batches over from workers is saved, too
        fix = Fix(
            f"Set num_workers=0 in the validation's DataLoader{at}: making the {round(loader.batches / start.count)} "
            f"batches of a pass takes {time_text(making_s / start.count)}, and taking them over from workers takes "
            "longer. Otherwise persistent_workers=True keeps the workers, if the DataLoader is made once",
            (Change.NUM_WORKERS, Change.PERSISTENT_WORKERS),
        )
    return _of_workers(snapshot, threshold, loaders, start.count, took_s, fix=fix, least_s=least_s)


def _of_workers(
    snapshot: Snapshot,
    threshold: float,
    loaders: Sequence[LoaderStats],
    passes: int,
    took_s: tuple[float, float, float],  # to start workers, until their first batches without making these, to end
    *,
    fix: Fix,
    least_s: float = 0.0,
) -> Finding | None:
    if not passes or not has_enough_steps(snapshot):
        return None
    total_s = took_s[0] + took_s[1] + took_s[2]
    saving_s = max(least_s, total_s * (1 - len(loaders) / passes))
    cost = cost_of_run(snapshot, threshold, total_s, saving_s=saving_s)
    parts = zip(took_s, ("to start", "until the first batch", "to end"), strict=True)
    each = ", ".join(f"{time_text(seconds / passes)} {what}" for seconds, what in parts if seconds)
    of, when = ("training", "between steps") if loaders[0].phase == "train" else ("validation", "in validation")
    return cost.finding(
        f"The workers of the {of} loader are started {passes} times, once for each pass: {each}, "
        f"{duration_text(total_s)} {when}, {cost.share:.1%} of the run",
        fix,
        seconds=total_s,
        passes=passes,
    )


def _in_validation(snapshot: Snapshot, name: str) -> SectionStats | None:
    """Return a section as far as it lies in validation, also where it keeps its plain name; None if it is not there."""
    own, plain = (snapshot.sections.get(each) for each in (f"{VALIDATION_EPOCH}{WITHIN}{name}", name))
    if own is not None or plain is None:
        return own
    inside = (VALIDATION_EPOCH, f"{VALIDATION_EPOCH}{WITHIN}{DATA_LOADING}")
    loading = snapshot.sections.get(plain.parent or "")
    is_of_loading = loading is not None and loading.name == DATA_LOADING and loading.parent in inside
    return plain if plain.parent in inside or is_of_loading else None
