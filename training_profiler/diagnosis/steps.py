"""Rules about how step time varies: spread, warm-up, trend, first batches."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from training_profiler.base.sections import (
    ACTING_SECTIONS,
    DATA_GENERATION,
    DATA_LOADING,
    DATA_TRANSFER,
    FIRST_FETCH,
    SYNCHRONIZATION,
    WORKER_START,
    name_of,
)
from training_profiler.base.units import duration_text, ms_text, time_text
from training_profiler.diagnosis.change import (
    ALL_ALIKE,
    COPIED,
    OF_THE_MACHINE,
    abrupt_rise,
    cause_of,
    copying_part,
    less_at,
    names_growth,
    rest_of_rise,
    when_text,
    work_of,
)
from training_profiler.diagnosis.device import MOSTLY, host_runs_ahead, idle_time_s, varies_most
from training_profiler.diagnosis.finding import RECORD_SLOW_STEPS, Change, Evidence, Finding, Fix, record_steps
from training_profiler.diagnosis.loader_fixes import first_batch_fix, stalls_fix
from training_profiler.diagnosis.pauses import FREEZE, GARBAGE_COLLECTION, lost_in_long_steps_s
from training_profiler.diagnosis.registry import (
    MIN_SAVING_S,
    RULES,
    WORTH_SAYING,
    Saving,
    claimed_in_steps_s,
    found,
    moves_with,
    row_of,
)
from training_profiler.model.program import COMPILE, LOADER
from training_profiler.model.snapshot import INPUT_ELEMENTS, OTHER, SectionStats, Snapshot, StepChange, StepStats

RISE_NEEDS: Final = 100  # steps after warm-up
RISE_P_VALUE: Final = 0.001  # strict: neighbouring steps are correlated, so random rises are common
FIRST_FETCH_SHARE: Final = 0.01  # of the epoch
OF_BATCHES: Final = "the samples of a batch", "the length of a batch", "the width of a batch"
OF_IMAGES: Final = OF_BATCHES[0], "the channels of images", "the height of images", "the width of images"
COUPLED: Final = 0.30  # of the variance of step time; from here on the section is named as the cause

OF_LOADERS: Final = (DATA_LOADING, FIRST_FETCH, WORKER_START)
LONG_STEPS: Final = Fix(
    "Record steps that take long: changing shapes, stalls of data, a late rank, logging, other work on the machine",
    (),
    (RECORD_SLOW_STEPS,),
)
_FIXES: Final[dict[str, Fix | Callable[[Snapshot], Fix]]] = {
    DATA_LOADING: stalls_fix,
    DATA_GENERATION: Fix(
        "The cost of data varies: generate it ahead of time, in workers", (Change.AHEAD_OF_TIME, Change.NUM_WORKERS)
    ),
    DATA_TRANSFER: Fix(
        "Use pinned memory and .to(device, non_blocking=True)", (Change.PIN_MEMORY, Change.NON_BLOCKING)
    ),
    FIRST_FETCH: first_batch_fix,
    WORKER_START: first_batch_fix,
    GARBAGE_COLLECTION: FREEZE,
}


def _rest(finding: Finding, others: Sequence[Finding], snapshot: Snapshot) -> Finding | None:
    """Return what uneven steps cost beyond the claimed sections, and beyond a rise, which makes steps uneven, too.

    None where another finding promises the same action: it saves what it can there.
    """
    settled_s = 0.0 if snapshot.step is None else snapshot.step.settled_s
    if not settled_s:
        return finding
    section, explained = moves_with(finding, snapshot)
    is_claimed = any(row_of(each).claims and section in row_of(each).sections_of(each) for each in others)
    in_steps = min(1.0, claimed_in_steps_s(others) / settled_s)  # where time above the median lies as much
    left_s = finding.potential_saving_s * (1 - max(explained if is_claimed else 0.0, in_steps))
    left_s -= sum(each.potential_saving_s for each in others if row_of(each).is_rise)
    least_s = max(MIN_SAVING_S, WORTH_SAYING * settled_s)
    promising = [each for each in others if row_of(each).claims and each.potential_saving_s]
    promised = {action.text for each in promising for action in each.actions if action.part}
    is_new = left_s >= least_s and promised.isdisjoint(action.text for action in finding.actions)
    return replace(finding, potential_saving_s=left_s) if is_new else None


@RULES.rule(
    "step-time-varies",
    threshold=0.10,  # standard deviation over mean
    label="UNEVEN STEPS",
    try_=("prefetch_factor", "gc_freeze", "jemalloc", "tcmalloc"),
    call=lambda finding: LOADER if finding.evidence.get("moves_with") in OF_LOADERS else "",
    is_uneven=True,
    rest=_rest,
)
def step_time_varies(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step times whose deviation is above 10 % of their mean; None below 20 steps after warm-up.

    Steps before which the model acts are longer than others by the order of the program, and so are those with more
    forward passes, as of longer episodes, or with larger inputs, as of sequences of any length, and those in which the
    host waits for what it queued in the steps before.
    """
    step = snapshot.step
    if step is None or step.settled_count - step.disturbed_count < 20 or not step.avg_s or not step.has_own_pace:
        return None  # the deviation of fewer steps is too uncertain
    variation = step.std_s / step.avg_s
    potential_saving_s, idle_s = lost_in_long_steps_s(snapshot), idle_time_s(snapshot)
    if idle_s is not None:  # a step takes as long as the device works, whichever step the host waits in
        potential_saving_s = min(potential_saving_s, idle_s)
    if variation <= threshold or potential_saving_s < max(MIN_SAVING_S, WORTH_SAYING * step.settled_s):
        return None
    if any(step.explained.get(name, 0.0) >= 0.05 for name in ACTING_SECTIONS):  # the least that is known
        return None
    if steps_do_more(snapshot, snapshot.thresholds) is not None or varies_with_work(step) or host_runs_ahead(snapshot):
        return None
    cause, part = varies_most(step)
    section, waits = snapshot.sections.get(cause), snapshot.sections.get(SYNCHRONIZATION)
    # The variance of a step knows only the section: DDP reports its synchronization after the step.
    is_inside = section is not None and waits is not None and waits.parent == cause and section.step_total_s
    if section is not None and waits is not None and is_inside:
        cause = SYNCHRONIZATION if waits.step_self_s >= MOSTLY * section.step_total_s else cause
    part = min(1.0, part)
    if snapshot.garbage is not None and snapshot.garbage.explained >= COUPLED:
        cause, part = GARBAGE_COLLECTION, snapshot.garbage.explained  # a cause, which lies in some section
    shown = "time in no section" if cause == OTHER else name_of(cause)
    named = f"; {part:.0%} of the variation comes from {shown}" if part >= COUPLED else ""
    evidence: dict[str, float | int | str] = {
        "coefficient_of_variation": variation,
        "threshold": threshold,
        "avg_s": step.avg_s,
        "std_s": step.std_s,
        "max_s": step.max_s,
        "max_step": step.max_step,
    }
    if named:
        evidence |= {"moves_with": cause, "explained": part}
    of_cause = _FIXES.get(cause, LONG_STEPS) if named else LONG_STEPS
    return found(
        f"Step time varies by {variation:.0%} of its mean (longest {ms_text(step.max_s)} at step {step.max_step}, "
        f"median {ms_text(step.median_s)}){named}",
        evidence,
        of_cause if isinstance(of_cause, Fix) else of_cause(snapshot),
        saving_s=potential_saving_s,
    )


def varies_with_work(step: StepStats) -> bool:
    """Return whether steps are mostly longer where they have more forward passes, or larger inputs."""
    return max(step.explained_by_calls, step.explained_by_inputs) >= 0.5  # of the variance


@RULES.rule("warm-up", 3.0, saving=Saving.UNKNOWN, is_harmless=True)  # x the median step
def warm_up(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Report first steps that took over 3 times the median, and the mean; None without such steps.

    Where the host runs ahead of a device, the median step only queues its work.
    """
    step = snapshot.step
    if step is None or not step.warmup_count or not step.settled_count:
        return None
    fetched, compiled = snapshot.program.fetched_before, snapshot.program.compiled
    warmup_s = (
        step.warmup_s - step.inspected_s - (fetched.seconds if fetched is not None and fetched.is_skipped else 0.0)
    )
    extra_s, avg_s = warmup_s - step.warmup_count * step.avg_s, warmup_s / step.warmup_count
    later_s = max(step.median_s, step.avg_s)
    if extra_s < MIN_SAVING_S or avg_s <= threshold * later_s:
        return None
    counted = snapshot.throughput is not None and snapshot.throughput.flops_per_step is not None
    once = "worker start, torch.compile, cuDNN autotuning" + (" and FLOP counting" if counted else "")
    is_one = step.warmup_count == 1
    first = "step was" if is_one else f"{step.warmup_count} steps were"
    of_it = keep = ""
    if compiled is not None and compiled.seconds >= 0.5 * extra_s:
        at, graphs = snapshot.program.places_of(COMPILE), compiled.cache_hits + compiled.cache_misses
        of_it = f"; torch.compile took {duration_text(min(warmup_s, compiled.seconds))} of it{at and f' ({at})'}"
        of_it += f", with {compiled.cache_hits} of {graphs} kernels from its cache on the disk" if graphs else ""
        keep = "; the next start compiles less where TORCHINDUCTOR_CACHE_DIR lasts" if compiled.cache_misses else ""
    return found(
        f"The first {first} warm-up: {time_text(avg_s)}{'' if is_one else ' each'}, against "
        f"{time_text(later_s)} later{of_it}; step averages exclude {'it' if is_one else 'them'}",
        {"warmup_steps": step.warmup_count, "warmup_s": warmup_s, "median_s": step.median_s},
        f"Nothing to fix in a long run: {once} happen only once{keep}",
    )


def does_more(step: StepStats) -> bool:
    """Return whether steps become longer because they do more, as far as their work explains it.

    The time of a forward pass may rise with the square of its input, as in attention.
    """
    if not step.work_unit or step.rise is None:
        return False
    allowed = 1 + step.work_rise if step.work_unit == INPUT_ELEMENTS else 1.25  # later passes may differ
    return step.unit_rise_p_value > RISE_P_VALUE or 1 + step.unit_rise <= allowed


@RULES.rule("steps-do-more", 0.05, saving=Saving.UNKNOWN, is_harmless=True)  # more work at the end of the run
def steps_do_more(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Report steps that become longer because they do over 5 % more at the end; None below 100 steps."""
    step = snapshot.step
    if (change := abrupt_rise(snapshot, threshold)) is not None and (work := work_of(change)) is not None:
        unit, times = work
        rise = change.after_s / change.before_s
        return found(
            f"Steps take longer since {when_text(change)} because they do more: {times:.1f}x the {unit}, in "
            f"{rise:.1f}x the time{larger_text(snapshot, change)}",
            {
                "rise": rise - 1,
                "threshold": threshold,
                "work_rise": times - 1,
                "unit": unit,
                "step": change.step,
                "first_step": change.first_step,
                "last_step": change.last_step,
            },
        )
    if step is None or step.rise is None or step.rise_p_value is None or step.settled_count < RISE_NEEDS:
        return None
    if step.rise_p_value > RISE_P_VALUE or step.rise <= threshold or step.work_rise <= threshold:
        return None
    if not does_more(step):
        return None
    return found(
        f"Steps become longer because they do more: {1 + step.work_rise:.1f}x the {step.work_unit} of a step "
        f"at the end of the run, in {1 + step.rise:.1f}x the time{larger_text(snapshot, step.change or step.halves)}",
        {
            "rise": step.rise,
            "threshold": threshold,
            "work_rise": step.work_rise,
            "unit": step.work_unit,
            "unit_rise": step.unit_rise,
        },
    )


def larger_text(snapshot: Snapshot, change: StepChange | None) -> str:
    """Return from what to what the sizes of inputs grew while the step did; "" where none grew by a tenth."""
    if change is None or change.after_s <= change.before_s:
        return ""
    shapes = snapshot.program.shapes
    before = [shape for update, shape in shapes if update < change.first_step]
    after = [shape for update, shape in shapes if update >= change.last_step]
    if not before or not after or len({len(shape) for shape in (*before, *after)}) != 1:
        return ""
    sizes = [tuple(map(median, zip(*each, strict=True))) for each in (before, after)]
    grown = [at for at, (small, large) in enumerate(zip(*sizes, strict=True)) if large > 1.1 * small]
    whole = "inputs of {}".format(" x ".join(f"{size:.0f}" for size in sizes[1]))
    names = OF_IMAGES if len(sizes[0]) == len(OF_IMAGES) else OF_BATCHES
    texts = [f"{names[at]} grew from {sizes[0][at]:,.0f} to {sizes[1][at]:,.0f}" for at in grown if at < len(names)]
    took = f"while the step grew from {time_text(change.before_s)} to {time_text(change.after_s)}"
    return f"; {' and '.join(texts)} ({whole}), {took}" if texts else ""


@RULES.rule("slowing-down", 0.05, saves=(0.5, 1.1), is_uneven=True, is_rise=True, rest=rest_of_rise)  # over the run
def slowing_down(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag step times that rise significantly, by over 5 % from start to end; None below 100 steps.

    Where steps do more and more, the time for one unit of that work counts instead. A jump is ``slower-since``. A rise
    below a half that no part of the step carries is that of a machine whose speed changes.
    """
    step = snapshot.step
    if step is None or step.rise is None or step.rise_p_value is None or step.settled_count < RISE_NEEDS:
        return None
    if does_more(step) or abrupt_rise(snapshot, threshold) is not None or names_growth(snapshot):
        return None
    rise, p_value, of = step.rise, step.rise_p_value, "Step time"
    if step.work_unit:
        rise, p_value, of = step.unit_rise, step.unit_rise_p_value, f"Step time for the same {step.work_unit}"
    # Compared with the step time at the start, a linear rise by r costs half of r on average.
    potential_saving_s = step.avg_s * step.settled_count * (rise / 2) / (1 + rise / 2)
    if rise <= threshold or p_value > RISE_P_VALUE or potential_saving_s < MIN_SAVING_S:
        return None
    change, where = step.change or step.halves, ""
    fix = Fix(
        "Look for something that grows: a list of losses that keep their graphs (use .item() or .detach()), a cache, "
        "a log; or check whether the machine throttles",
        (Change.DETACH,),
        (record_steps(step.count, step.count // 4, step.count * 3 // 4),),
    )
    if change is not None and change.after_s > change.before_s:
        cause, reason = cause_of(change)
        fix = Fix(fix, fix.changes, less_at(snapshot, change, cause) or fix.actions)
        is_dated = not reason or cause in change.sections
        where = reason if is_dated else f", compared before and after step {change.step}{reason}"
        if copied := copying_part(change):
            fix, potential_saving_s = COPIED, copied * potential_saving_s
        elif cause in OF_THE_MACHINE:  # nothing of the program grows
            fix = Fix(OF_THE_MACHINE[cause])
        elif reason and not cause:
            fix = Fix(ALL_ALIKE)
    if change is not None and change.sections and not where and rise < 0.5:
        return None
    grew = f"grew {1 + rise:.1f}x" if rise >= 1 else f"grew by {rise:.0%}"
    return found(
        f"{of} {grew} from start to end of the run{where}",
        {"rise": rise, "threshold": threshold, "p_value": p_value, "steps": step.settled_count},
        fix,
        saving_s=potential_saving_s,
    )


@RULES.rule(
    "first-batch-slow",
    threshold=5.0,  # x the median fetch
    saving=Saving.RUN,
    label="INPUT-BOUND",
    says_where=True,
    claims=(DATA_LOADING,),
    try_=("persistent_workers",),
    call=LOADER,
    is_of_host=True,
    is_uneven=True,
)
def first_batch_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag first fetches, with worker start, of over 5 median fetches and 1 % of step time, or of the epoch."""
    first, fetches = snapshot.sections.get(FIRST_FETCH), snapshot.sections.get(DATA_LOADING)
    if first is None or not first.count or fetches is None or fetches.p50_s is None:
        slow = _slow_in_epochs(snapshot, threshold)
    elif sum(each.phase == "train" for each in snapshot.loaders) > 1:
        slow = _workers_start_slowly(snapshot)
    else:
        slow = _first_fetch_slow(snapshot, threshold, first, fetches.p50_s)
    if slow is None or slow[2] < MIN_SAVING_S:
        return None
    message, evidence, saving_s = slow
    return found(message, evidence, first_batch_fix(snapshot), saving_s=saving_s)


_Slow = tuple[str, Evidence, float] | None  # a message, its evidence, and what is saved in s


def _slow_in_epochs(snapshot: Snapshot, threshold: float) -> _Slow:
    """Return what epochs say, where sections do not."""
    slow = [
        (epoch.first_fetch_s - epoch.median_fetch_s, epoch)
        for epoch in snapshot.epochs
        if epoch.first_fetch_s is not None
        and epoch.median_fetch_s is not None
        and epoch.is_complete
        and epoch.first_fetch_s > threshold * epoch.median_fetch_s
        and epoch.first_fetch_s - epoch.median_fetch_s > FIRST_FETCH_SHARE * epoch.wall_s
    ]
    if len(slow) < 2:
        return None
    extra_s, epochs_s = sum(extra_s for extra_s, _ in slow), sum(epoch.wall_s for _, epoch in slow)
    first_s = sum(epoch.first_fetch_s or 0.0 for _, epoch in slow) / len(slow)
    return (
        f"The first batch of each epoch takes {time_text(first_s)} on average, "
        f"{extra_s / epochs_s:.1%} of the time of {len(slow)} epochs",
        {"first_fetch_s": first_s, "share_of_epochs": extra_s / epochs_s, "epochs": len(slow)},
        extra_s * (len(slow) - 1) / len(slow),  # the first epoch has to start its workers in any case
    )


def _first_fetch_slow(snapshot: Snapshot, threshold: float, first: SectionStats, median_s: float) -> _Slow:
    """Return what the sections ``first_fetch`` and ``worker_start`` say, as far as they lie in steps."""
    start = snapshot.sections.get(WORKER_START)
    start_s = 0.0 if start is None else start.step_total_s
    spent_s, passes = first.step_total_s + start_s, round(first.spans_in_steps)
    extra_s = spent_s - passes * median_s
    step_s = 0.0 if snapshot.step is None else snapshot.step.total_s
    if passes < 2 or spent_s <= threshold * median_s * passes or extra_s <= FIRST_FETCH_SHARE * step_s:
        return None
    workers = f" ({time_text(start_s / passes)} of it to start workers)" if start_s else ""
    return (
        f"The first batch of each epoch takes {time_text(spent_s / passes)} on average{workers}, "
        f"against {time_text(median_s)} later; that adds {duration_text(extra_s)} in {passes} epochs",
        {"first_fetch_s": spent_s / passes, "median_fetch_s": median_s, "extra_s": extra_s, "passes": passes},
        extra_s * (passes - 1) / passes,  # the first epoch has to start its workers in any case
    )


def _workers_start_slowly(snapshot: Snapshot) -> _Slow:
    """Return what several loaders say: only starting workers belongs to the begin of a pass for sure."""
    start, loaders = snapshot.sections.get(WORKER_START), sum(each.phase == "train" for each in snapshot.loaders)
    passes, spent_s = (0, 0.0) if start is None else (round(start.spans_in_steps), start.step_total_s)
    step_s = 0.0 if snapshot.step is None else snapshot.step.total_s
    if passes <= loaders or spent_s <= FIRST_FETCH_SHARE * step_s:
        return None
    return (
        f"Workers of the {loaders} loaders are started {passes} times, which takes "
        f"{time_text(spent_s / passes)} each and {duration_text(spent_s)} in all",
        {"worker_start_s": spent_s / passes, "extra_s": spent_s, "passes": passes},
        spent_s * (passes - loaders) / passes,
    )
