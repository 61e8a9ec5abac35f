"""Rules about data loaders and their samplers."""

from typing import Final

from training_profiler.base.framework_frames import SAMPLER
from training_profiler.base.sections import DATA_LOADING, FIRST_FETCH, WORKER_START
from training_profiler.base.units import bytes_text, ms_text
from training_profiler.diagnosis.finding import Action, Change, Evidence, Finding, Fix
from training_profiler.diagnosis.loader_fixes import LOADING_TRIALS, actions_for
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, Saving, found, has_enough_steps
from training_profiler.model.program import LOADER
from training_profiler.model.snapshot import OTHER, LoaderStats, Snapshot

PASSES_NEEDED: Final = 10
NEARLY_ALL: Final = 0.9  # of the batches: the first of their pass
BATCHES_NEEDED: Final = 8  # of a loader before its mean is compared: the first batches fill queues
MOST_AGAIN: Final = 0.1  # of a worker's samples: it yields them more than once
OUTSIDE_FETCHES_S: Final = "outside_fetches_s"  # of the evidence
_FETCHING: Final = (DATA_LOADING, FIRST_FETCH, WORKER_START)  # sections in which a loader asks its sampler


@RULES.rule(
    "loader-slow",
    threshold=2.0,  # x the mean of the others
    label="INPUT-BOUND",
    says_where=True,
    claims=(DATA_LOADING,),
    try_=LOADING_TRIALS,
    call=LOADER,
    is_of_workers=True,
)
def loader_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a loader whose batches take over twice as long as the others', and over 1 % of the run in total."""
    known = [(loader.data_avg_s, loader) for loader in _training(snapshot) if loader.data_avg_s is not None]
    if len(known) < 2:
        return None
    slow_s, slow = max(known, key=lambda item: item[0])
    others = [(data_s, loader) for data_s, loader in known if loader is not slow]
    others_s = sum(data_s * loader.batches for data_s, loader in others) / sum(loader.batches for _, loader in others)
    waited_s = slow_s * slow.batches
    potential_saving_s = waited_s - others_s * slow.batches
    if slow_s <= threshold * others_s or waited_s <= 0.01 * snapshot.wall_s or potential_saving_s < MIN_SAVING_S:
        return None
    of = others[0][1].name if len(others) == 1 else "the others"
    part = waited_s / sum(data_s * loader.batches for data_s, loader in known)
    return found(
        f"Loader {slow.name} is slow: {ms_text(slow_s)} per batch, against {ms_text(others_s)} for {of}; "
        f"it causes {part:.0%} of the wait for batches",
        {
            "loader": slow.name,
            "data_avg_s": slow_s,
            "others_avg_s": others_s,
            "threshold": threshold,
            "batches": slow.batches,
        },
        Fix(
            f"Raise num_workers and prefetch_factor for loader {slow.name} only, or do less work in its dataset",
            (Change.NUM_WORKERS, Change.PREFETCH_FACTOR, Change.LESS_PREPROCESSING),
            actions_for(snapshot, slow),
        ),
        saving_s=potential_saving_s,
    )


@RULES.rule(
    "loader-restarted",
    threshold=0.05,  # of step time
    label="INPUT-BOUND",
    claims=lambda finding: (DATA_LOADING, OTHER) if OUTSIDE_FETCHES_S in finding.evidence else (DATA_LOADING,),
    saves=(0.5, 1.3),
    changes=(Change.WHOLE_PASSES,),
    call=LOADER,
    is_of_host=True,
)
def loader_restarted(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a loader that begins a pass for each batch, as `next(iter(loader))` does, over 5 % of step time.

    It is one of several, or the only one. None where epochs are known and no such pass was left early: a loop over a
    loader of a single batch makes passes of one batch too, and needs them.
    """
    step, restarts = snapshot.step, _restarts(snapshot)
    if step is None or restarts is None or not has_enough_steps(snapshot) or not step.total_s:
        return None
    passes, batches, fetch_s, start_s, loader = restarts
    outside_s = _outside_fetches_s(snapshot)
    spent_s = fetch_s + start_s
    share = min(1.0, spent_s / step.total_s + (outside_s / step.settled_s if step.settled_s else 0.0))
    potential_saving_s = share * step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    evidence: Evidence = {"share_of_step": share, "threshold": threshold, "passes": passes, "batches": batches}
    if outside_s:
        evidence = {**evidence, OUTSIDE_FETCHES_S: outside_s}
    of = f" of loader {loader}" if loader else ""
    return found(
        f"{passes} of {batches} batches{of} are the first of a new pass over the data loader, as "
        f"next(iter(loader)) makes it: {ms_text(share * step.total_s / passes)} each, {share:.0%} of step time. A pass "
        f"begins with {'starting workers' if start_s > 0 else 'an order of all samples'}",
        {**evidence, "loader": loader} if loader else evidence,
        "Take all batches of a pass: for batch in loader, or batches = iter(loader) once and next(batches) in each "
        "step, and iter(loader) again at StopIteration",
        saving_s=potential_saving_s,
    )


def _outside_fetches_s(snapshot: Snapshot) -> float:
    """Return the unattributed time of the lines that fetch batches, in which they make iterators and drop them."""
    other = snapshot.sections.get(OTHER)
    places = {line.place for name in (DATA_LOADING, FIRST_FETCH) for line in snapshot.lines_of_steps(name)}
    share = sum(
        part
        for line in snapshot.lines_of_steps(OTHER)
        if line.place in places
        for name, part in line.called.items()
        if name in ("iter", "next")  # they make an iterator, and drop the one before
    )
    return 0.0 if other is None or not other.share else min(1.0, share / other.share) * other.settled_total_s


def _restarts(snapshot: Snapshot) -> tuple[int, int, float, float, str] | None:
    """Return passes cut after a batch, batches, their time, that of starting workers, the loader if one of several."""
    loaders, start = _training(snapshot), snapshot.sections.get(WORKER_START)
    start_s = 0.0 if start is None else start.step_total_s
    cut = [loader for loader in loaders if loader.cut_passes >= max(PASSES_NEEDED, NEARLY_ALL * loader.batches - 1)]
    if len(loaders) > 1 and len(cut) == 1:
        (loader,) = cut
        others_start = any(each.num_workers for each in loaders if each is not loader)
        start_s = start_s if loader.num_workers and not others_start else 0.0
        return loader.cut_passes, loader.batches, loader.wait_s, start_s, loader.name
    first, fetches = snapshot.sections.get(FIRST_FETCH), snapshot.sections.get(DATA_LOADING)
    if first is None or fetches is None or snapshot.epochs or snapshot.program.epochs:
        return None
    if first.count < max(PASSES_NEEDED, NEARLY_ALL * fetches.count):
        return None
    return first.count, fetches.count, first.step_total_s, start_s, ""


@RULES.rule("loader-mix", 0.01, saving=Saving.UNKNOWN)  # of all batches
def loader_mix(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag loaders whose share of the batches is not the configured one: by over 1 point, and more than by chance."""
    loaders = _training(snapshot)
    batches = sum(loader.batches for loader in loaders)
    evidence: dict[str, float | int | str] = {"threshold": threshold, "batches": batches}
    off = []
    for loader in loaders:
        share, asked = loader.proportion, loader.requested_proportion
        if share is None or asked is None:
            continue
        by_chance = (asked * (1 - asked) / batches) ** 0.5
        if abs(share - asked) > max(threshold, 3 * by_chance):  # exceeded by chance in 0.3 % of runs
            off.append(f"{loader.name} {share:.1%} instead of {asked:.1%}")
            evidence |= {loader.name: share, f"{loader.name} asked": asked}
    if not off:
        return None
    return found(
        f"The mix of loaders differs from the configured one: {', '.join(off)}",
        evidence,
        "Print which loader gives each batch: one may have run out, or the schedule may not count batches",
    )


@RULES.rule(
    "stream-repeated",
    threshold=1.5,  # workers that yield a sample, mean
    saving=Saving.RUN,
    label="REPEATED DATA",
    saves=(0.8, 1.2),
    changes=(Change.OTHER_BATCHES,),
    call=LOADER,
    is_risk=True,
)
def stream_repeated(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag workers that yield the same samples of a stream, over 1.5 of them each sample on average.

    None where a worker itself yields samples again, as of constant, few or drawn ones: then workers have some in common
    by chance. Steps are saved where the training ends with the stream, as one of a number of steps does not.
    """
    of_training = _training(snapshot)
    known = [(loader, workers, workers.repeats) for loader in of_training if (workers := loader.workers) is not None]
    loader, workers, repeats = max(known, key=lambda each: each[2].times if each[2] else 0.0, default=(None,) * 3)
    if loader is None or workers is None or repeats is None or snapshot.step is None:
        return None
    if not has_enough_steps(snapshot):
        return None
    share = loader.batches / sum(each.batches for each in of_training) * (1 - 1 / repeats.times)
    repeated_s = share * snapshot.step.total_s
    if repeats.times <= threshold or repeats.again > MOST_AGAIN or repeated_s < MIN_SAVING_S:
        return None
    data = loader.data_set or "the data set"
    line = next((line for line in workers.lines if line.function.endswith("__iter__")), None)
    where = f"made at {loader.made_at}" if line is None else f"{line.place} {line.function}"
    who = f"{repeats.times:.1f} of {repeats.workers} workers yield each sample of {data}"
    if repeats.times >= NEARLY_ALL * repeats.workers:
        who = f"Each of the {repeats.workers} workers yields all samples of {data}"
    divide = f"{data}.__iter__: info = get_worker_info(); yield every info.num_workers-th sample, from info.id on"
    return found(
        f"{who} ({where}): {share:.0%} of the steps train on samples that the pass had already",
        {
            "loader": loader.name,
            "times": repeats.times,
            "threshold": threshold,
            "workers": repeats.workers,
            "samples": repeats.samples,
            "again": repeats.again,
            "share_of_steps": share,
        },
        Fix(
            f"Divide the samples among the workers: in {divide}",
            (Change.OTHER_BATCHES,),
            (Action(f"in {divide}", (Change.OTHER_BATCHES,)),),
        ),
        saving_s=repeated_s if repeats.is_over else 0.0,
    )


@RULES.rule(
    "same-order", 1.0, saving=Saving.UNKNOWN, changes=(Change.OTHER_ORDER,), call=LOADER, is_harmless=True
)  # passes, beside the first
def same_order(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a ``DistributedSampler`` that shuffles without a new epoch: each pass has the order of the first.

    A pass that is left after a batch does not count, such as a look at the data before the training.
    """
    passes, loader = max(
        ((loader.same_order - loader.cut_passes, loader) for loader in _training(snapshot)),
        key=lambda each: each[0],
        default=(0, None),
    )
    if loader is None or passes <= threshold or not has_enough_steps(snapshot):
        return None
    made = f" made at {loader.made_at}" if loader.made_at else ""
    return found(
        f"All {passes + 1} passes over the loader{made} have the same order: its DistributedSampler shuffles by the "
        "epoch, which set_epoch has not changed",
        {"loader": loader.name, "passes": passes + 1, "threshold": threshold},
        "Call sampler.set_epoch(epoch) before each pass",
    )


def _training(snapshot: Snapshot) -> list[LoaderStats]:
    return [loader for loader in snapshot.loaders if loader.phase == "train" and loader.batches >= BATCHES_NEEDED]


@RULES.rule(
    "workers-copy-memory",
    0.05,
    saving=Saving.UNKNOWN,
    label="MEMORY",
    changes=(Change.MAPPED_DATA,),
    is_of_workers=True,
)  # of the machine's memory, all workers of a loader
def workers_copy_memory(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag workers that copy over 5 % of the machine's memory by writing to what the training has made, two or more.

    Reading an object of Python writes to it, as its references are counted.
    """
    total = None if snapshot.machine is None else snapshot.machine.ram_host_total_bytes
    for loader in _training(snapshot):
        copied = 0 if loader.workers is None else loader.workers.memory_copied_bytes or 0
        share = copied * (loader.num_workers or 0) / total if total else 0.0
        if share <= threshold or (loader.num_workers or 0) < 2:
            continue
        data_set = loader.data_set or "the data set"
        return found(
            f"Each of the {loader.num_workers} workers copies up to {bytes_text(copied)} of the memory that it has in "
            f"common with the training, {share:.0%} of the machine's in all, as by reading Python objects, whose "
            "references are counted",
            {"ram_share": share, "threshold": threshold, "copied_bytes": copied, "workers": loader.num_workers or 0},
            f"Keep what {data_set} lists in a NumPy array, or in one bytes buffer with an array of offsets",
        )
    return None


@RULES.rule(
    "sampler-slow",
    threshold=0.05,  # of step time
    label="INPUT-BOUND",
    claims=(DATA_LOADING,),
    changes=(Change.AHEAD_OF_TIME,),
    is_of_host=True,
)
def sampler_slow(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a sampler or batch sampler that takes over 5 % of step time; None below 10 samples of its lines."""
    step = snapshot.step
    lines = [line for name in _FETCHING for line in snapshot.lines.get(name, ()) if line.phase == SAMPLER]
    if step is None or not has_enough_steps(snapshot) or not step.total_s or not lines:
        return None
    if loader_restarted(snapshot, snapshot.thresholds) is not None:  # the cause
        return None
    if sum(line.samples for line in lines) < 10:  # fewer may be chance
        return None
    spent_s = sum(line.share for line in lines) * snapshot.wall_s
    share = min(1.0, spent_s / step.total_s)
    potential_saving_s = share * step.settled_s
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    hottest = max(lines, key=lambda line: line.share)
    part = hottest.share / sum(line.share for line in lines)
    place = f"{hottest.place} {hottest.what} ({part:.0%} of it)"
    return found(
        f"The sampler of a data loader takes {share:.1%} of step time ({ms_text(spent_s / step.count)} per "
        f"step) to choose samples, above all in {place}",
        {"share_of_step": share, "threshold": threshold, "seconds": spent_s, "lines": place},
        "Compute the order once, ahead of time, or with torch or NumPy: the sampler runs in the training process, "
        "so DataLoader workers cannot take it over",
        saving_s=potential_saving_s,
    )
