"""Rules about what runs without gradients: evaluation that costs more than it needs, and a model that acts."""

from collections.abc import Sequence
from typing import Final

from training_profiler.base.framework_frames import ENVIRONMENT, REPLAY
from training_profiler.base.sections import (
    BACKWARD_PASS,
    DATA_LOADING,
    FIRST_FETCH,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    ROLLOUT,
    VALIDATION_EPOCH,
    WITHIN,
    WORKER_START,
)
from training_profiler.base.units import duration_text, ms_text, time_text
from training_profiler.diagnosis.finding import RECORDING_COSTS, Action, Change, Finding, Fix, joined
from training_profiler.diagnosis.loader_fixes import REMADE, THEN_KEPT, first_batch_fix
from training_profiler.diagnosis.places import places_named, places_text, with_a_quarter
from training_profiler.diagnosis.registry import RULES, Saving, cost_of_run, cost_of_steps, has_enough_steps
from training_profiler.model.program import LOADER
from training_profiler.model.snapshot import LineStats, LoaderStats, SectionStats, Snapshot

SINGLE_ROWS: Final = 1.5  # rows of an action, on average: calls for one observation
MOST_ENVIRONMENTS: Final = 16
LITTLE: Final = 0.25  # of the environment's time: what the policy may take beside it
_BUFFER_CALLS: Final = frozenset(("add", "append", "push", "store", "extend"))
_ENVIRONMENT_CALLS: Final = frozenset(("step", "reset"))


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


@RULES.rule(
    "rollout-heavy",
    0.15,  # of step time
    label="ROLLOUT",
    says_where=True,
    claims=(ROLLOUT, FORWARD_WITHOUT_GRAD),
    saves=(0.3, 1.2),
    changes=(Change.OTHER_BATCHES,),
    try_=("num_threads",),
)
def rollout_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag rollouts over 15 % of step time in which the policy gets one observation a call; None for larger batches.

    More environments share a call. One of as many rows takes longer by what a row takes in the training's forward pass.
    """
    rollout, policy = snapshot.sections.get(ROLLOUT), snapshot.sections.get(FORWARD_WITHOUT_GRAD)
    acting, training = snapshot.program.acting, snapshot.sections.get(FORWARD_PASS)
    if rollout is None or policy is None or training is None or acting is None or acting.rows > SINGLE_ROWS:
        return None
    if not (policy.count and training.count and policy.total_s):
        return None
    policy_s = snapshot.total_of_step_s(FORWARD_WITHOUT_GRAD) or 0.0
    whole_s = snapshot.total_of_step_s(ROLLOUT) or 0.0
    if policy.parent != ROLLOUT:
        whole_s += policy_s
    if not whole_s:  # all of it lies in steps that are left out
        return None
    others_s = max(0.0, whole_s - policy_s)
    number = next((n for n in (2, 4, 8, MOST_ENVIRONMENTS) if policy_s <= LITTLE * n * others_s), MOST_ENVIRONMENTS)
    call_s, row_s = policy.total_s / policy.count, training.total_s / training.count / acting.training_rows
    left = min(1.0, 1 / number + (1 - 1 / number) * row_s / call_s)  # of the policy's time: each row takes its own
    of_loop_s = 0.9 * (1 - 1 / number) * _part_of_loop(snapshot) * others_s
    saved = (0.9 * (1 - left) * policy_s + of_loop_s) / whole_s  # environments at once have work of their own
    cost, parts = cost_of_steps(snapshot, threshold, whole_s, saved=saved), _parts(snapshot, others_s)
    split = ", ".join(
        f"{name} {part_s / whole_s:.0%}" for name, part_s in (("policy", policy_s), *parts) if part_s >= 0.01 * whole_s
    )
    lines = _lines(snapshot, rollout.share + policy.share)
    action = f"{number} environments at once (gymnasium.vector, VecEnv), each 1/{number} of the steps"
    device = ", the policy on the CPU while it acts" if snapshot.device is not None else ""
    message = (
        f"{cost.share:.1%} of step time is spent in rollouts ({cost.per_step} per step: {split}), with one observation "
        f"a call of the policy ({policy.count} calls, {ms_text(call_s)} each)"
    )
    return cost.finding(
        f"{message}; above all in {lines}" if lines else message,
        Fix(
            f"Let {number} environments act at once: one call of the policy serves all of them. Act under "
            f"torch.inference_mode(), with torch.set_num_threads(1){device}",
            (Change.OTHER_BATCHES,),
            (Action(action, (Change.OTHER_BATCHES,)),),
        ),
        calls=policy.count,
        rows=acting.rows,
        environments=number,
        policy_s=policy_s,
        lines=lines,
        **{f"{name}_s": part_s for name, part_s in parts},
    )


def _lines(snapshot: Snapshot, share: float) -> str:
    lines = [line for name in (ROLLOUT, FORWARD_WITHOUT_GRAD) for line in snapshot.lines_of_steps(name)]
    lines.sort(key=lambda line: -line.share)
    return places_text(with_a_quarter(places_named(lines, share), lines, share), share)


def _parts(snapshot: Snapshot, others_s: float) -> list[tuple[str, float]]:
    """Return the time beside the policy by what it is for, as far as lines say; the rest is "other"."""
    lines = snapshot.lines_of_steps(ROLLOUT)
    whole = sum(line.share for line in lines)
    known = [(name, sum(line.share for line in lines if _is(line, phase, calls))) for name, phase, calls in _KINDS]
    parts = [(name, others_s * share / whole) for name, share in known if whole and share]
    rest_s = others_s - sum(part_s for _, part_s in parts)
    return [*parts, *([("other", rest_s)] if rest_s > 0 else [])]


def _part_of_loop(snapshot: Snapshot) -> float:
    """Return the part of rollouts, beside the policy, in the loop that trains: what it calls may be an environment."""
    lines = snapshot.lines_of_steps(ROLLOUT)
    loops = {(line.file, line.function) for line in snapshot.lines_of_steps(BACKWARD_PASS)}
    of_loop = [line for line in lines if line.function == "<module>" or (line.file, line.function) in loops]
    own = sum(line.share for line in of_loop if not (line.inside or _is(line, ENVIRONMENT, _ENVIRONMENT_CALLS)))
    return own / sum(line.share for line in lines) if own else 0.0


_KINDS: Final = (("environment", ENVIRONMENT, _ENVIRONMENT_CALLS), ("buffers", REPLAY, _BUFFER_CALLS))


def _is(line: LineStats, phase: str, calls: frozenset[str]) -> bool:
    if line.phase:
        return line.phase.endswith(phase)
    owner, _, method = line.function.rpartition(".")
    return bool(owner and method in calls) or any(
        name.rpartition(".")[2] in calls and share > 0.5 * line.share for name, share in line.called.items()
    )
