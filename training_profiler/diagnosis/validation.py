"""Rules about work between steps that is done in a costlier way than it needs."""

from typing import Final

from training_profiler.base.units import duration_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.tables.sections import FORWARD_PASS, VALIDATION_EPOCH

PASSES_BEFORE_TRAINING: Final = "passes-before-training"
VALIDATION_WITH_GRADIENTS: Final = "validation-with-gradients"
MOST_OF_IT: Final = 0.9  # of the time in validations, which includes these passes
# Of a forward pass; measured on the CPU for MLPs, convolutions, LSTMs and attention: 3 to 35 %.
RECORDING_COSTS: Final = 0.15


@RULES.rule(VALIDATION_WITH_GRADIENTS, threshold=0.0, saving=Saving.RUN)  # share of the run
def validation_with_gradients(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag forward passes of validation that record gradients; None if recording takes less than 20 ms in total.

    What recording costs is not measured in the run: the saving is that of a usual model.
    """
    count, spent_s = snapshot.with_grad_count, snapshot.with_grad_s
    share = spent_s / snapshot.wall_s if snapshot.wall_s else 0.0
    if not count or share <= threshold or RECORDING_COSTS * spent_s < MIN_SAVING_S:
        return None
    passes = "1 forward pass" if count == 1 else f"{count} forward passes"
    evidence: dict[str, float | int | str] = {
        "share_of_run": share,
        "threshold": threshold,
        "seconds": spent_s,
        "count": count,
    }
    spent = f"{duration_text(spent_s)}, {share:.0%} of the run"
    message = f"Validation records gradients that nothing uses, in {passes} ({spent})"
    # The lines of the loop itself show where to change something; those of its forward passes may be the model's.
    hottest = snapshot.hottest(VALIDATION_EPOCH) or snapshot.hottest(f"{VALIDATION_EPOCH}/{FORWARD_PASS}")
    if hottest:
        evidence["lines"] = f"{hottest[0].file}:{hottest[0].line} {hottest[0].function}"
        message += f": {evidence['lines']}"
    return Finding(
        code=VALIDATION_WITH_GRADIENTS,
        message=message,
        evidence=evidence,
        potential_saving_s=RECORDING_COSTS * spent_s,
        fix="Evaluate under torch.no_grad() or torch.inference_mode(), which needs less memory and less time",
    )


@RULES.rule(PASSES_BEFORE_TRAINING, threshold=0.10, saving=Saving.RUN)  # share of the run
def passes_before_training(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag passes without gradients over loaders before the first step that no validation goes through later.

    They may make features of a frozen model, or be a single validation: neither is done less often.
    """
    facts = snapshot.program.passes_before
    if facts is None or not snapshot.wall_s or not has_enough_steps(snapshot) or facts.seconds < MIN_SAVING_S:
        return None
    share = facts.seconds / snapshot.wall_s
    if share <= threshold:
        return None
    validation = snapshot.sections.get(VALIDATION_EPOCH)
    is_all = validation is not None and facts.seconds >= MOST_OF_IT * validation.total_s
    often = "one pass" if facts.passes == 1 else f"{facts.passes} passes"
    return Finding(
        code=PASSES_BEFORE_TRAINING,
        message=f"{share:.1%} of the run is {often} without gradients over a data loader before the first step "
        f"({duration_text(facts.seconds)})",
        evidence={
            "share_of_run": share,
            "threshold": threshold,
            "seconds": facts.seconds,
            "count": facts.passes,
            "is_all": int(is_all),
        },
        potential_saving_s=facts.seconds,
        fix="If it computes the same in each run, such as features of a frozen model, keep the result in a file for "
        "the next run; else take larger batches there, or raise num_workers of its loader if that is slow",
    )
