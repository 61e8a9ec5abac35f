"""Rules about work between steps that is done in a costlier way than it needs."""

from typing import Final

from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.recording.known_sections import FORWARD_PASS, VALIDATION_EPOCH
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import duration_text

VALIDATION_WITH_GRADIENTS: Final = "validation-with-gradients"
# Of a forward pass; measured on the CPU for MLPs, convolutions, LSTMs and attention: 3 to 35 %.
RECORDING_COSTS: Final = 0.15


@RULES.rule(VALIDATION_WITH_GRADIENTS, threshold=0.0, saving=Saving.RUN)  # share of the run
def validation_with_gradients(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag forward passes of validation that record gradients; None if they take 20 ms or less in total.

    What recording costs is not measured in the run: the saving is that of a usual model.
    """
    count, spent_s = snapshot.with_grad_count, snapshot.with_grad_s
    if not count or not snapshot.wall_s or spent_s <= MIN_SAVING_S or spent_s / snapshot.wall_s <= threshold:
        return None
    share = spent_s / snapshot.wall_s
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
