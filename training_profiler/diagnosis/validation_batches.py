"""A rule: validation that gives the model a few samples at once, though the training gives it many."""

from typing import Final

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.program import per_step
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.program import RowFacts
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot
from training_profiler.tables.sections import DATA_LOADING, FORWARD_PASS, VALIDATION_EPOCH, WITHIN

SMALL_VALIDATION_BATCHES: Final = "validation-tiny-batches"
FEW_LOADED: Final = 4.0  # samples of a batch
CALLS_NEEDED: Final = 32
LARGER: Final = 8.0  # times the samples: those of a forward pass of the training
MOST_OF_THEM: Final = 0.9
AFTER_MOST: Final = 0.8  # of the batches: otherwise it may be one sample that is made, as a text or an image
EVENLY: Final = 4.0  # times the mean, at most, after one batch
ALIKE: Final = 1.5  # times the numbers in a row
CLOSE: Final = 0.25
AGAIN: Final = 1.5  # calls for each sample: such as one for each token


@RULES.rule(SMALL_VALIDATION_BATCHES, threshold=0.05, saving=Saving.RUN)  # of the run
def validation_tiny_batches(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag validations whose forward passes get at most 4 samples, where those of the training get many times that.

    The saving compares a sample with one of the training. None where samples are larger than there, and without a
    loader: then it may be one sample that is made step by step, as a text or an image.
    """
    facts, whole = snapshot.program.rows, snapshot.sections.get(VALIDATION_EPOCH)
    loaders = [loader for loader in snapshot.loaders if loader.phase == "val" and loader.samples]
    if facts is None or whole is None or not loaders or not snapshot.wall_s or not has_enough_steps(snapshot):
        return None
    batches, samples = sum(loader.batches for loader in loaders), sum(loader.samples or 0 for loader in loaders)
    passes = snapshot.sections.get(f"{VALIDATION_EPOCH}{WITHIN}{FORWARD_PASS}")
    rows = 0.0 if passes is None else passes.count * facts.rows
    training_s = _training_s(snapshot, facts)
    if passes is None or not rows or training_s is None or batches < 2 * whole.count or not _is_one_by_one(facts):
        return None
    now_s = passes.total_s / rows
    if abs(facts.calls / facts.batches * batches / passes.count - 1) > CLOSE or training_s > now_s / 2:
        return None
    # A pass with many rows takes at least as long as one with few.
    passes_s = rows * (training_s + now_s * facts.rows / facts.training_rows)
    saving_s = max(0.0, passes.total_s - passes_s) + whole.self_s * (1 - facts.rows / facts.training_rows)
    is_loaded_so = samples <= FEW_LOADED * batches
    if is_loaded_so:
        saving_s += _saved_loading_s(snapshot, loaders)
    share = saving_s / snapshot.wall_s
    if share <= threshold or saving_s < MIN_SAVING_S:
        return None
    times = rows / samples
    again = f", {times:.3g} times for each" if times > AGAIN else ""
    at_once = "1 sample" if round(facts.rows, 1) == 1 else f"{facts.rows:.2g} samples"
    many = f"{facts.training_rows:.0f}"
    return Finding(
        code=SMALL_VALIDATION_BATCHES,
        message=f"Validation calls the model on {at_once} at a time{again}: a forward pass takes {ms_text(now_s)} a "
        f"sample, and {ms_text(training_s)} in the training, on {many}",
        evidence={
            "share_of_run": share,
            "threshold": threshold,
            "rows": facts.rows,
            "training_rows": facts.training_rows,
            "seconds_per_sample": now_s,
            "training_seconds_per_sample": training_s,
            "calls_per_sample": times,
        },
        potential_saving_s=saving_s,
        fix=_fix(loaders, is_loaded_so, times > AGAIN, many),
    )


def _is_one_by_one(facts: RowFacts) -> bool:
    return (
        facts.calls >= CALLS_NEEDED
        and facts.batches > 0
        and facts.few >= MOST_OF_THEM * facts.calls
        and facts.few_batches >= AFTER_MOST * facts.batches
        and facts.most * facts.batches <= EVENLY * facts.calls
        and facts.training_rows >= LARGER * facts.rows
        and facts.elements <= ALIKE * facts.training_elements
    )


def _training_s(snapshot: Snapshot, facts: RowFacts) -> float | None:
    """Return the time of a forward pass of the training for each sample; None if its batches are not known."""
    step, total_s = snapshot.step, snapshot.total_of_step_s(FORWARD_PASS)
    loaders = [loader for loader in snapshot.loaders if loader.phase == "train" and loader.samples]
    batches = sum(loader.batches for loader in loaders)
    if step is None or not step.settled_count or not total_s or not batches:
        return None
    loaded = sum(loader.samples or 0 for loader in loaders) / batches
    if abs(facts.training_rows / loaded - 1) > CLOSE:  # the first dimension may be another one
        return None
    return total_s / step.settled_count / (max(1.0, per_step(snapshot, FORWARD_PASS)) * facts.training_rows)


def _saved_loading_s(snapshot: Snapshot, loaders: list[LoaderStats]) -> float:
    """Return what loading as large batches as the training has would save, without workers."""
    loading = snapshot.sections.get(f"{VALIDATION_EPOCH}{WITHIN}{DATA_LOADING}")
    training = [loader for loader in snapshot.loaders if loader.phase == "train" and loader.samples]
    if loading is None or any(loader.num_workers != 0 for loader in (*loaders, *training)):
        return 0.0
    waited_s, samples = sum(loader.wait_s for loader in training), sum(loader.samples or 0 for loader in training)
    loaded = sum(loader.samples or 0 for loader in loaders)
    return max(0.0, loading.total_s - waited_s / samples * loaded)


def _fix(loaders: list[LoaderStats], is_loaded_so: bool, is_again: bool, many: str) -> str:
    """Return what to change; ``many`` is how many samples the training has at once."""
    most = max(loaders, key=lambda loader: loader.batches)
    at = f" ({most.made_at})" if most.made_at else ""
    loader = f": batch_size={many} for its DataLoader{at}" if is_loaded_so else ""
    again = "; go through all samples of a batch together, until the last of them has ended" if is_again else ""
    return (
        f"Compute as many samples at once in validation as in the training{loader}{again}; pad samples of other lengths"
    )
