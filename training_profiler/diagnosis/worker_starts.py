"""Rules about workers that are started and ended for each pass over the data, outside of training steps."""

from typing import Final, NamedTuple

from training_profiler.base.units import duration_text, time_text
from training_profiler.diagnosis.loader_fixes import REMADE, first_batch_fix
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.findings.registry import Saving
from training_profiler.snapshot.snapshot import LoaderStats, SectionStats, Snapshot
from training_profiler.tables.sections import (
    DATA_LOADING,
    FIRST_FETCH,
    VALIDATION_EPOCH,
    WITHIN,
    WORKER_START,
)

WORKERS_RESTARTED: Final = "workers-restarted"
VALIDATION_WORKERS: Final = "validation-workers-restarted"
FEW_TO_MAKE: Final = 0.5  # of the data loading of validations: then making the batches without workers is cheaper


class _Passes(NamedTuple):
    """What starting and ending workers took."""

    number: int
    start_s: float  # starting them
    first_s: float  # until their first batch, without making it
    end_s: float  # ending them

    @property
    def total_s(self) -> float:
        return self.start_s + self.first_s + self.end_s


@RULES.rule(WORKERS_RESTARTED, threshold=0.02, saving=Saving.RUN)  # of the run
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
    passes = _Passes(start.count, start_s, 0.0, end_s)
    saving_s = passes.total_s * (1 - len(loaders) / passes.number) if passes.number else 0.0
    return _finding(snapshot, WORKERS_RESTARTED, threshold, passes, saving_s, first_batch_fix(snapshot))


@RULES.rule(VALIDATION_WORKERS, threshold=0.02, saving=Saving.RUN)  # of the run
def validation_workers_restarted(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag workers of validation loaders that start and end in each validation, over 2 % of the run."""
    loaders = [loader for loader in snapshot.loaders if loader.phase == "val" and loader.num_workers]
    start, fetches = _in_validation(snapshot, WORKER_START), _in_validation(snapshot, DATA_LOADING)
    if (
        start is None
        or fetches is None
        or all(loader.persistent_workers and not loader.is_remade for loader in loaders)
    ):
        return None
    first = _in_validation(snapshot, FIRST_FETCH)
    first_s = 0.0 if first is None else first.total_s
    # Without knowledge of how long a batch takes, the first may have been made all the time.
    making_s = max((loader.workers.batch_avg_s for loader in loaders if loader.workers), default=float("inf"))
    waited_s = sum(loader.wait_s for loader in snapshot.loaders if loader.phase == "val")
    passes = _Passes(
        start.count,
        start.total_s,
        max(0.0, first_s - start.count * making_s),
        min(start.total_s, max(0.0, fetches.total_s - start.total_s - waited_s)),
    )
    saving_s = passes.total_s * (1 - len(loaders) / passes.number) if passes.number else 0.0
    loader = max(loaders, key=lambda loader: loader.wait_s)
    is_quick = len(loaders) == 1 and _making_s(loader) < FEW_TO_MAKE * fetches.total_s
    if is_quick:  # taking batches over from workers is saved, too
        saving_s = max(saving_s, fetches.total_s - _making_s(loader))
    fix = _fix_of_validation(loader, passes, is_quick)
    return _finding(snapshot, VALIDATION_WORKERS, threshold, passes, saving_s, fix)


def _finding(
    snapshot: Snapshot, code: str, threshold: float, passes: _Passes, saving_s: float, fix: str
) -> Finding | None:
    share = passes.total_s / snapshot.wall_s if snapshot.wall_s else 0.0
    if share <= threshold or saving_s < MIN_SAVING_S or not has_enough_steps(snapshot):
        return None
    parts = (("to start", passes.start_s), ("until the first batch", passes.first_s), ("to end", passes.end_s))
    each = ", ".join(f"{time_text(seconds / passes.number)} {what}" for what, seconds in parts if seconds)
    of, when = ("validation", " in validation") if code == VALIDATION_WORKERS else ("training", " between steps")
    return Finding(
        code=code,
        message=f"The workers of the {of} loader are started {passes.number} times, once for each pass: {each}, "
        f"{duration_text(passes.total_s)}{when}, {share:.1%} of the run",
        evidence={
            "share_of_run": share,
            "threshold": threshold,
            "seconds": passes.total_s,
            "passes": passes.number,
        },
        potential_saving_s=saving_s,
        fix=fix,
    )


def _fix_of_validation(loader: LoaderStats, passes: _Passes, is_quick: bool) -> str:
    at = f" at {loader.made_at}" if loader.made_at else ""
    kept = f"Set persistent_workers=True in the validation's DataLoader{at}: it keeps the workers"
    if loader.is_remade:
        kept = f"{REMADE}{at}; then persistent_workers=True keeps its workers"
    if not is_quick:
        return kept
    making_s = _making_s(loader)
    return (
        f"Set num_workers=0 in the validation's DataLoader{at}: making the {round(loader.batches / passes.number)} "
        f"batches of a pass takes {time_text(making_s / passes.number)}, and taking them over from workers takes "
        "longer. Otherwise persistent_workers=True keeps the workers, if the DataLoader is made once"
    )


def _making_s(loader: LoaderStats) -> float:
    """Return how long making all batches took the workers; infinite where that is unknown."""
    return float("inf") if loader.workers is None else loader.workers.batch_avg_s * loader.batches


def _in_validation(snapshot: Snapshot, name: str) -> SectionStats | None:
    """Return a section as far as it lies in validation; None if it is not there.

    A section that is only there keeps its plain name.
    """
    own = snapshot.sections.get(f"{VALIDATION_EPOCH}{WITHIN}{name}")
    if own is not None:
        return own
    plain = snapshot.sections.get(name)
    inside = (VALIDATION_EPOCH, f"{VALIDATION_EPOCH}{WITHIN}{DATA_LOADING}")
    if plain is None:
        return None
    if plain.parent in inside:
        return plain
    loading = snapshot.sections.get(plain.parent or "")
    return plain if loading is not None and loading.name == DATA_LOADING and loading.parent in inside else None
